// Time and memory of loading one adapter with all experts of gpt-oss-20b at rank 16 (354 MB), from
// a file in the page cache. Usage: adapter_load_bench [standard|swapped] [FOLDER]; the folder is
// made and left there.
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "bench/arguments.h"
#include "model/arch/gpt_oss.h"

namespace {

constexpr int kLayers = 24, kExperts = 32, kRank = 16;
constexpr int64_t kHidden = 2880;

lk::LinearTable make_table() {
  lk::GptOssConfig config;
  config.layers = kLayers;
  config.hidden = config.intermediate = kHidden;
  config.experts = kExperts;
  config.heads = 64;
  config.kv_heads = 8;
  config.head_dim = 64;
  config.vocab = 201088;
  return lk::gpt_oss_linear_table(config);
}

void write_adapter(const std::string& folder, bool swapped) {
  ::mkdir(folder.c_str(), 0700);
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type": "LORA", "r": 16, "lora_alpha": 32,
             "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]})";
  lk::OrderedJson header;
  int64_t offset = 0;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    const int64_t end = offset + rows * cols * 2;
    header[name] = {{"dtype", "BF16"}, {"shape", {rows, cols}}, {"data_offsets", {offset, end}}};
    offset = end;
  };
  const int64_t up_in = swapped ? 2 * kHidden : kHidden, up_out = swapped ? kHidden : 2 * kHidden;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string experts = fmt::format("base_model.model.model.layers.{}.mlp.experts", layer);
    add(experts + ".base_layer.lora_A.weight", kExperts * kRank, up_in);
    add(experts + ".base_layer.lora_B.weight", up_out, kExperts * kRank);
    add(experts + ".lora_A.weight", kExperts * kRank, kHidden);
    add(experts + ".lora_B.weight", kHidden, kExperts * kRank);
  }
  const std::string text = header.dump();
  std::ofstream file(folder + "/adapter_model.safetensors", std::ios::binary);
  const uint64_t size = text.size();
  file.write(reinterpret_cast<const char*>(&size), 8) << text;
  std::vector<uint16_t> block(1 << 16);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint16_t>(0x3c00 + i % 251);
  for (int64_t left = offset; left > 0;) {
    const int64_t n = std::min<int64_t>(left, static_cast<int64_t>(block.size() * 2));
    file.write(reinterpret_cast<const char*>(block.data()), n);
    left -= n;
  }
}

rusage usage() {
  rusage out{};
  ::getrusage(RUSAGE_SELF, &out);
  return out;
}

double peak_mib() { return static_cast<double>(usage().ru_maxrss) / 1024; }

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Also meaningful on a machine that others use.
double cpu_seconds() { return seconds_of(usage().ru_utime) + seconds_of(usage().ru_stime); }

}  // namespace

int main(int argc, char** argv) {
  const lk::bench::Arguments arguments("adapter_load_bench", "[standard|swapped] [FOLDER]");
  const std::vector<std::string> words = arguments.parse(argc, argv, 0, 2);
  const bool swapped = !words.empty() && words[0] == "swapped";
  if (!words.empty() && !swapped && words[0] != "standard")
    arguments.die("the orientation is " + words[0] + ", expected standard or swapped");
  const std::string folder = words.size() > 1 ? words[1] : "/tmp/lk_adapter_load_bench";
  const lk::LinearTable table = make_table();
  write_adapter(folder, swapped);
  for (int run = 0; run < 5; ++run) {
    const double before = peak_mib(), cpu = cpu_seconds();
    const auto begin = std::chrono::steady_clock::now();
    const auto adapter = lk::load_peft_adapter(folder, "bench", table, {});
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!adapter) {
      fmt::print(stderr, "{}\n", adapter.error().message);
      return 1;
    }
    const double bytes = static_cast<double>((*adapter)->bytes());
    fmt::print(
        "{}: {:.1f} MB in {:.3f} s ({:.3f} s of CPU, {:.2f} GB/s); peak memory from {:.0f} to "
        "{:.0f} MiB\n",
        swapped ? "swapped" : "standard", bytes / 1e6, seconds, cpu_seconds() - cpu,
        bytes / (cpu_seconds() - cpu) / 1e9, before, peak_mib());
  }
  return 0;
}

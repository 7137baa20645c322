// Public failures of other servers that concern quantized bases under adapters, by the number that
// docs/bug-cases.md gives them: the small model in every format that `quantize` writes against
// plain loops over the same weights decoded, and models of sizes that kernels do not like.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json.h"
#include "model/archs.h"
#include "model/quantize.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/harness.h"
#include "tests/model/made_models.h"

namespace lk::test {
namespace {

std::unique_ptr<Model> load_folder(const std::string& folder, const std::string& kernels = "",
                                   const std::string& backend = "", int slots = 16) {
  ModelOptions options;
  options.kernels = kernels;
  options.kv_type = KvType::kF32;
  options.moe.backend = backend;
  options.moe.max_rank = 256;
  options.adapter_slots = slots;
  auto model = Model::load(folder, options);
  if (!model) throw std::runtime_error(folder + ": " + model.error().message);
  return std::move(*model);
}

// Parts of an adapter that people train alone.
enum class Part : uint8_t { kAttention, kExperts, kBoth };
constexpr Part kParts[] = {Part::kAttention, Part::kExperts, Part::kBoth};
constexpr int kPartCount = 3;

// The adapter of "sql" with its experts' or attention's modules alone in slots 0 to 2.
void bind_parts(Model& model) {
  for (int slot = 0; slot < kPartCount; ++slot) {
    Adapter adapter = load_adapter(model, "sql");
    std::erase_if(adapter.modules, [&](const AdapterModule& module) {
      const bool expert = module.spec->experts > 0;
      return kParts[slot] == (expert ? Part::kAttention : Part::kExperts);
    });
    bind(model, slot, adapter);
  }
}

// The beginning of a prompt of "sql" on the base and on each part.
std::vector<Sequence> sequences_on_parts() {
  for (const ReferenceCase& c : reference_cases()) {
    if (c.adapter != "sql") continue;
    std::vector<int32_t> tokens = c.tokens();
    tokens.resize(std::min<size_t>(tokens.size(), 20));
    std::vector<Sequence> sequences;
    for (int slot = -1; slot < kPartCount; ++slot) sequences.push_back({tokens, slot});
    return sequences;
  }
  throw std::runtime_error("no case of sql");
}

// Of every token at every place.
std::vector<double> logprobs(const SequenceRun& run, int vocab) {
  std::vector<double> all;
  for (size_t t = 0; t < run.logits.size() / static_cast<size_t>(vocab); ++t) {
    const auto row = log_softmax(&run.logits[t * vocab], vocab);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// What the adapter of sequence `i` does, without what quantizing the base does.
std::vector<double> shift(const std::vector<SequenceRun>& runs, size_t i, int vocab) {
  std::vector<double> with = logprobs(runs[i], vocab);
  const std::vector<double> without = logprobs(runs[0], vocab);
  for (size_t k = 0; k < with.size(); ++k) with[k] -= without[k];
  return with;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::abs(value);
  return sum / static_cast<double>(values.size());
}

double mean_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return mean_of(difference);
}

// Plain loops over the weights of `format` decoded to float32.
std::vector<SequenceRun> plain_runs(const MadeFormat& format) {
  const TempFolder folder;
  write_decoded(small_model_in(format), folder.path() + "/f32");
  const auto model = load_folder(folder.path() + "/f32", "reference");
  bind_parts(*model);
  return run(*model, sequences_on_parts());
}

// The names of backends that take the format on the default kernels.
std::vector<std::string> backends_of(const MadeFormat& format) {
  std::vector<std::string> names;
  for (const MoeBackend& backend : moe_backends()) {
    if (!same_device(backend, "avx2")) continue;
    const Element element =
        format.quantizes_experts ? format.target->stored->element : Element::kBF16;
    if (std::find(backend.elements.begin(), backend.elements.end(), element) !=
        backend.elements.end())
      names.emplace_back(backend.name);
  }
  return names;
}

bool quantizes_attention(const std::string& folder) {
  const Checkpoint checkpoint = *Checkpoint::open(folder);
  const TensorView* weight = checkpoint.find("model.layers.0.self_attn.q_proj.weight");
  return !weight || weight->dtype != DType::kBF16;
}

class BugCases : public testing::TestWithParam<MadeFormat> {};

// What adapting attention (D03; where the base quantizes it, D05), experts (D01) and both does on
// every backend, against what it should do: means over all log-probabilities.
TEST_P(BugCases, B07_D01_D03_D05_AdaptersOnAQuantizedBase) {
  const MadeFormat& format = GetParam();
  EXPECT_EQ(quantizes_attention(small_model_in(format)), format.quantizes_attention);
  const auto expected = plain_runs(format);
  for (const std::string& backend : backends_of(format)) {
    const auto model = load_folder(small_model_in(format), "", backend);
    bind_parts(*model);
    const int vocab = model->info().vocab;
    const auto runs = run(*model, sequences_on_parts(), {.forced = &expected});
    const bool rounds = backend != "cpu-w16" && backend != "reference";
    // The base itself, or a wrong one would hide behind its difference.
    const double base = mean_difference(logprobs(runs[0], vocab), logprobs(expected[0], vocab));
    EXPECT_LT(base, rounds ? 0.2 : 1e-4) << format.name << " on " << backend;
    for (size_t i = 1; i < runs.size(); ++i) {
      const auto want = shift(expected, i, vocab), got = shift(runs, i, vocab);
      const double size = mean_of(want), off = mean_difference(got, want);
      fmt::print("{} on {}, part {}: shift {:.3f}, off by {:.5f}, the base by {:.5f}\n",
                 format.name, backend, i, size, off, base);
      ASSERT_GT(size, 0.5);
      // Rounded activations move the base and the base with an adapter, each about as far.
      EXPECT_LT(off, rounds ? std::min(2.5 * base, 0.2 * size) : 1e-4 * size)
          << format.name << " on " << backend;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, BugCases, testing::ValuesIn(made_formats()),
                         [](const auto& info) { return case_name(info.param.name); });

// The shipped adapters were trained on weights in bf16; MXFP4 holds the same values.
TEST(QuantizedBases, D10_TrainedOnTheTwinInBf16) {
  const MadeFormat *bf16 = nullptr, *mxfp4 = nullptr;
  for (const MadeFormat& format : made_formats()) {
    if (format.name == "bf16") bf16 = &format;
    if (format.name == "mxfp4") mxfp4 = &format;
  }
  ASSERT_TRUE(bf16 && mxfp4);
  std::vector<std::vector<SequenceRun>> both;
  for (const MadeFormat* format : {bf16, mxfp4}) {
    const auto model = load_folder(small_model_in(*format));
    bind_parts(*model);
    both.push_back(run(*model, sequences_on_parts()));
  }
  for (size_t i = 0; i < both[0].size(); ++i) {
    for (size_t k = 0; k < both[0][i].logits.size(); ++k)
      ASSERT_NEAR(both[0][i].logits[k], both[1][i].logits[k], 1e-3) << i << " " << k;
  }
}

// Multiplies a tensor scale of every `up` of an NVFP4 checkpoint by 4 in its convention and the
// block scales by 1/4: other bytes, the same weights.
void split_scales(const std::string& folder, const std::string& tensor_scale, float factor,
                  bool blocks_too) {
  const std::string path = folder + "/model.safetensors";
  std::string file = read_whole(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const Json header = Json::parse(file.substr(8, length));
  int changed = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name.find(".up_proj.") == name.npos) continue;
    char* data = file.data() + 8 + length + entry["data_offsets"][0].get<size_t>();
    const size_t size =
        entry["data_offsets"][1].get<size_t>() - entry["data_offsets"][0].get<size_t>();
    if (name.ends_with("." + tensor_scale)) {
      float value = 0;
      std::memcpy(&value, data, 4);
      value *= factor;
      std::memcpy(data, &value, 4);
      ++changed;
    } else if (name.ends_with(".weight_scale") && blocks_too) {
      for (size_t i = 0; i < size; ++i) {
        if (data[i] == 0) continue;
        // Two off the exponent of E4M3; below 2^-4 a quarter would be subnormal.
        ASSERT_GE(static_cast<uint8_t>(data[i]), 0x18) << name;
        data[i] = static_cast<char>(data[i] - 0x10);
      }
    }
  }
  ASSERT_EQ(changed, 6 * 16);
  std::ofstream(path, std::ios::binary) << file;
}

TEST(QuantizedBases, L02_GateAndUpWithTensorScalesOfTheirOwn) {
  struct Row {
    const char *recipe, *tensor_scale;
    float factor;
  };
  for (const Row& row : {Row{"modelopt", "weight_scale_2", 4.0f},
                         Row{"compressed-tensors", "weight_global_scale", 0.25f}}) {
    const TempFolder folder;
    QuantizeOptions options;
    options.target = *find_target("nvfp4", row.recipe);
    const std::string even = folder.path() + "/even";
    ASSERT_TRUE(quantize_checkpoint(model_folder(), even, options));
    for (const char* other : {"split", "wrong"})
      std::filesystem::copy(even, folder.path() + "/" + other);
    split_scales(folder.path() + "/split", row.tensor_scale, row.factor, true);
    split_scales(folder.path() + "/wrong", row.tensor_scale, row.factor, false);
    const Sequence prompt{sequences_on_parts()[0].tokens, -1};
    for (const char* backend : {"cpu-w16", "cpu-w4a8", "reference"}) {
      const auto logits = [&](const std::string& name) {
        return run(*load_folder(folder.path() + "/" + name, "", backend), {prompt})[0].logits;
      };
      const auto expected = logits("even"), split = logits("split"), wrong = logits("wrong");
      double largest = 0, planted = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, double{std::abs(split[i] - expected[i])});
        planted = std::max(planted, double{std::abs(wrong[i] - expected[i])});
      }
      EXPECT_LT(largest, 1e-2) << row.recipe << " on " << backend;
      EXPECT_GT(planted, 1.0) << "one scale for both would not be seen";
    }
  }
}

// Many tiny experts, ten of them for each token, with an adapter on all: few slots and many.
TEST(QuantizedBases, M06_FiveHundredAndTwelveExperts) {
  const TempFolder folder;
  const std::string plain = folder.path() + "/plain";
  write_made_model(plain, {.experts = 512, .top_k = 10, .hidden = 64, .intermediate = 32}, 5);
  std::mt19937_64 random(6);
  std::vector<Sequence> sequences;
  for (int slot = -1; slot < 1; ++slot) {
    Sequence& s = sequences.emplace_back();
    s.slot = slot;
    for (int t = 0; t < 20; ++t) s.tokens.push_back(static_cast<int32_t>(random() % 256));
  }
  const std::string lora = folder.path() + "/lora";
  bool written = false;
  for (const char* format : {"mxfp4", "nvfp4", "fp8-block"}) {
    QuantizeOptions options;
    options.target = *find_target(format, "");
    const std::string quantized = folder.path() + "/" + format;
    const auto report = quantize_checkpoint(plain, quantized, options);
    ASSERT_TRUE(report) << report.error().message;
    std::vector<SequenceRun> expected;
    for (const char* kernels : {"reference", ""}) {
      for (const int slots : {1, 16}) {
        const auto model = load_folder(quantized, kernels, "", slots);
        if (!std::exchange(written, true))
          write_random_adapter(lora, model->linears(), 2, "BF16", 7);
        auto adapter = load_peft_adapter(lora, "a", model->linears(), {});
        ASSERT_TRUE(adapter) << adapter.error().message;
        bind(*model, 0, **adapter);
        if (expected.empty()) {
          expected = run(*model, sequences);
          EXPECT_FALSE(same_bits(expected[0].logits, expected[1].logits));
          continue;
        }
        const auto runs = run(*model, sequences, {.forced = &expected});
        for (size_t i = 0; i < runs.size(); ++i) {
          for (size_t k = 0; k < runs[i].logits.size(); ++k)
            ASSERT_NEAR(runs[i].logits[k], expected[i].logits[k], 1e-3) << format << " " << kernels;
        }
      }
    }
  }
}

// A row of the architectures' table that has no model here fails: it must bring one.
TEST(QuantizedBases, M08_EveryArchitectureStartsWithLoraOn) {
  const std::string whole = hybrid_model("tiny-qwen3.6-fp8").folder;
  // The same as a text model.
  const TempFolder text;
  Json config = *read_json_file(whole + "/config.json");
  config["text_config"]["quantization_config"] = config["quantization_config"];
  text.write("config.json", config["text_config"].dump());
  std::filesystem::create_symlink(whole + "/model.safetensors", text.path() + "/model.safetensors");
  const std::map<std::string_view, std::string> models = {
      {"gpt_oss", model_folder()},
      {"qwen3_moe", small_model("qwen3_moe").folder},
      {"olmoe", small_model("olmoe").folder},
      {"mixtral", small_model("mixtral").folder},
      {"qwen3_5_moe", whole},
      {"qwen3_5_moe_text", text.path()},
      {"nemotron_h", hybrid_model("tiny-nemotron-nvfp4").folder}};
  for (const ArchRow* row : archs_table()) {
    const auto folder = models.find(row->model_type);
    ASSERT_NE(folder, models.end()) << row->model_type;
    const auto model = load_folder(folder->second);
    EXPECT_EQ(run(*model, {{{1, 2, 3}, -1}})[0].logits.size(), size_t{3} * model->info().vocab);
  }
}

}  // namespace
}  // namespace lk::test

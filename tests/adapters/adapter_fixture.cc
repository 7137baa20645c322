#include "tests/adapters/adapter_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/numeric.h"

namespace lk {
namespace {

LinearSpec linear(Stage stage, int layer, int64_t out, int64_t in, std::vector<LinearName> names) {
  LinearSpec spec{};
  spec.stage = stage;
  spec.layer = layer;
  spec.out = out;
  spec.in = in;
  spec.names = std::move(names);
  return spec;
}

LinearTable table_of(const TableSizes& s, bool gpt_oss) {
  const NameForm form = gpt_oss ? NameForm::kParameterInOut : NameForm::kParameterOutIn;
  LinearTable table;
  table.architecture = gpt_oss ? "gpt_oss" : "qwen3_moe";
  table.prefixes = {"model."};
  table.rootless = {"lm_head"};
  table.linears.push_back(linear(Stage::kEmbedding, -1, s.vocab, s.hidden, {{"embed_tokens"}}));
  for (int i = 0; i < s.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const std::string experts = layer + "mlp.experts.";
    const auto module = NameForm::kExpertModule;
    table.linears.push_back(
        linear(Stage::kQuery, i, s.query, s.hidden, {{layer + "self_attn.q_proj"}}));
    table.linears.push_back(
        linear(Stage::kKey, i, s.key_value, s.hidden, {{layer + "self_attn.k_proj"}}));
    table.linears.push_back(
        linear(Stage::kValue, i, s.key_value, s.hidden, {{layer + "self_attn.v_proj"}}));
    table.linears.push_back(
        linear(Stage::kAttentionOut, i, s.hidden, s.query, {{layer + "self_attn.o_proj"}}));
    table.linears.push_back(linear(Stage::kRouter, i, s.experts, s.hidden,
                                   {{layer + (gpt_oss ? "mlp.router" : "mlp.gate")}}));
    LinearSpec up = linear(Stage::kExpertUp, i, 2 * s.intermediate, s.hidden,
                           {{experts + "gate_up_proj", form},
                            {experts + "gate_up_projs.{expert}", module},
                            {experts + "{expert}.gate_proj", module, RowPart::kGate},
                            {experts + "{expert}.up_proj", module, RowPart::kUp},
                            {experts + "{expert}.w1", module, RowPart::kGate},
                            {experts + "{expert}.w3", module, RowPart::kUp}});
    up.experts = s.experts;
    up.row_order = gpt_oss ? RowOrder::kInterleavedGateUp : RowOrder::kStackedGateUp;
    table.linears.push_back(up);
    LinearSpec down = linear(Stage::kExpertDown, i, s.hidden, s.intermediate,
                             {{experts + "down_proj", form},
                              {experts + "down_projs.{expert}", module},
                              {experts + "{expert}.down_proj", module},
                              {experts + "{expert}.w2", module}});
    down.experts = s.experts;
    table.linears.push_back(down);
  }
  table.linears.push_back(linear(Stage::kHead, -1, s.vocab, s.hidden, {{"lm_head"}}));
  return table;
}

uint16_t f32_to_f16(float value) {
  // Test values are small multiples of powers of two: exact in float16 or not used.
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

LinearTable gpt_oss_test_table(const TableSizes& sizes) { return table_of(sizes, true); }
LinearTable qwen_test_table(const TableSizes& sizes) { return table_of(sizes, false); }

void AdapterFiles::add(const std::string& name, Shape shape, const std::vector<float>& values,
                       DType dtype) {
  Stored stored{dtype, std::move(shape), {}};
  for (float value : values) {
    switch (dtype) {
      case DType::kF32:
        append(stored.data, value);
        break;
      case DType::kF16:
        append(stored.data, f32_to_f16(value));
        break;
      case DType::kBF16:
        append(stored.data, f32_to_bf16(value));
        break;
      case DType::kF64:
        append(stored.data, static_cast<double>(value));
        break;
      default:
        append(stored.data, static_cast<uint8_t>(0x38));
        break;
    }
  }
  tensors_[name] = std::move(stored);
}

void AdapterFiles::add_random(const std::string& name, Shape shape, DType dtype) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  std::vector<float> values(static_cast<size_t>(count));
  // Seven significant bits and a few binary orders: exact in float16 and bfloat16.
  std::uniform_int_distribution<int> mantissa(-127, 127);
  for (float& value : values) value = static_cast<float>(mantissa(random_)) / 256.0f;
  add(name, std::move(shape), values, dtype);
}

void AdapterFiles::add_pair(const std::string& module, int64_t rank, int64_t in, int64_t out,
                            DType dtype) {
  add_random(module + ".lora_A.weight", {rank, in}, dtype);
  add_random(module + ".lora_B.weight", {out, rank}, dtype);
}

void AdapterFiles::rename(const std::string& from, const std::string& to) {
  auto node = tensors_.extract(from);
  ASSERT_FALSE(node.empty()) << from;
  node.key() = to;
  tensors_.insert(std::move(node));
}

std::vector<std::string> AdapterFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, stored] : tensors_) out.push_back(name);
  return out;
}

std::string AdapterFiles::bytes() const {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, stored] : tensors_) {
    header[name] = {{"dtype", std::string(dtype_name(stored.dtype))},
                    {"shape", stored.shape},
                    {"data_offsets", {data.size(), data.size() + stored.data.size()}}};
    data += stored.data;
  }
  const std::string text = header.dump();
  std::string out;
  append(out, uint64_t{text.size()});
  return out + text + data;
}

std::string AdapterFiles::write() const {
  const std::string folder = new_folder();
  write_text(folder + "/adapter_config.json", config);
  write_text(folder + "/adapter_model.safetensors", bytes());
  return folder;
}

Result<std::shared_ptr<const Adapter>> AdapterFiles::load(const LinearTable& table,
                                                          const AdapterLoadOptions& options) const {
  return load_peft_adapter(write(), "test", table, options);
}

std::string new_folder() {
  static int count = 0;
  const std::string root = fmt::format("{}lk_adapters_{}", testing::TempDir(), ::getpid());
  ::mkdir(root.c_str(), 0700);
  const std::string folder = fmt::format("{}/{}", root, count++);
  ::mkdir(folder.c_str(), 0700);
  return folder;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string refusal(const Result<std::shared_ptr<const Adapter>>& result) {
  if (result) return "(was loaded)";
  return result.error().message;
}

std::vector<float> dense_delta(const AdapterModule& module, size_t expert) {
  const LinearSpec& spec = *module.spec;
  const LoraPair& pair = module.experts[expert];
  std::vector<float> out(static_cast<size_t>(spec.out * spec.in));
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t i = 0; i < spec.in; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < pair.rank; ++k) {
        sum += double{bf16_to_f32(pair.b[static_cast<size_t>(o * pair.rank + k)])} *
               bf16_to_f32(pair.a[static_cast<size_t>(k * spec.in + i)]);
      }
      out[static_cast<size_t>(o * spec.in + i)] = static_cast<float>(sum * pair.scale);
    }
  }
  return out;
}

}  // namespace lk

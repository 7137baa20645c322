#include "tests/model/made_models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "base/json.h"
#include "base/numeric.h"
#include "checkpoint/checkpoint.h"
#include "model/archs.h"
#include "model/quantize.h"
#include "quant/detect.h"
#include "quant/formats.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/harness.h"

namespace lk::test {
namespace {

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

std::string bytes_of_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// The tensors of a table's linears and plain tensors under their first names. `values` gives those
// of a linear, expert after expert and row after row; `bias` and `plain` likewise.
template <typename Values, typename Bias, typename Plain>
std::vector<WrittenTensor> tensors_of(const LinearTable& table, Values&& values, Bias&& bias,
                                      Plain&& plain) {
  std::vector<WrittenTensor> out;
  const std::string prefix = table.prefixes.front();
  for (size_t i = 0; i < table.linears.size(); ++i) {
    const LinearSpec& spec = table.linears[i];
    if (spec.stage == Stage::kHead && table.tied_head) continue;
    const std::string path = table.full_name(spec.path(), prefix);
    const bool parameter = spec.experts > 0;
    std::vector<float> all = values(i);
    WrittenTensor weight{path, "F32", {spec.out, spec.in}, ""};
    if (parameter) {  // (E, in, out)
      std::vector<float> turned(all.size());
      for (int64_t e = 0; e < spec.experts; ++e) {
        float* to = turned.data() + e * spec.out * spec.in;
        const float* from = all.data() + e * spec.out * spec.in;
        for (int64_t o = 0; o < spec.out; ++o) {
          for (int64_t c = 0; c < spec.in; ++c) to[c * spec.out + o] = from[o * spec.in + c];
        }
      }
      all = std::move(turned);
      weight.shape = {spec.experts, spec.in, spec.out};
    } else {
      weight.name += ".weight";
    }
    weight.bytes = bytes_of_floats(all);
    out.push_back(std::move(weight));
    if (!spec.bias) continue;
    WrittenTensor b{path + (parameter ? "_bias" : ".bias"), "F32", {spec.out}, ""};
    if (parameter) b.shape.insert(b.shape.begin(), spec.experts);
    b.bytes = bytes_of_floats(bias(i));
    out.push_back(std::move(b));
  }
  for (size_t i = 0; i < table.plain.size(); ++i) {
    const PlainTensorSpec& spec = table.plain[i];
    out.push_back(
        {table.full_name(spec.name, prefix), "F32", spec.shape, bytes_of_floats(plain(i))});
  }
  return out;
}

LinearTable table_of(const HfConfig& config) {
  return must(must(find_arch(config.model_type()))->table(config));
}

}  // namespace

const std::vector<MadeFormat>& made_formats() {
  static const std::vector<MadeFormat> formats = [] {
    std::vector<MadeFormat> found = {{"bf16", all_targets().front(), false, false}};
    for (const Target* target : all_targets()) {
      const std::string name(target->stored->name);
      if (std::any_of(found.begin(), found.end(), [&](auto& f) { return f.name == name; }))
        continue;
      found.push_back({name, target, true, target->scope == Scope::kLinears});
    }
    return found;
  }();
  return formats;
}

std::string case_name(const std::string& format) {
  std::string name = format;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const std::string& small_model_in(const MadeFormat& format) {
  static const TempFolder root;
  static std::map<std::string, std::string> made;
  std::string& folder = made[format.name];
  if (!folder.empty()) return folder;
  QuantizeOptions options;
  options.target = format.target;
  options.threads = 2;
  if (!format.quantizes_experts) options.keep = {"*"};
  const std::string to = root.path() + "/" + format.name;
  must(quantize_checkpoint(model_folder(), to, options));
  return folder = to;
}

void write_decoded(const std::string& from, const std::string& to) {
  const Checkpoint checkpoint = must(Checkpoint::open(from));
  const LinearTable table = table_of(checkpoint.config());
  const StoredModel stored = must(match_checkpoint(checkpoint, table));
  const auto values = [&](size_t i) {
    const StoredLinear& linear = stored.linears[i];
    const LinearSpec& spec = *linear.spec;
    std::vector<float> all(static_cast<size_t>(linear.expert_count() * spec.out * spec.in));
    float* row = all.data();
    for (int e = 0; e < linear.expert_count(); ++e) {
      for (int64_t r = 0; r < spec.out; ++r, row += spec.in) {
        const StoredRow at = stored_row(linear, e, r);
        decode_row(*linear.format, *at.matrix, at.row, row);
      }
    }
    return all;
  };
  const auto bias = [&](size_t i) {
    const StoredLinear& linear = stored.linears[i];
    std::vector<float> all;
    for (int e = 0; e < linear.expert_count(); ++e) {
      for (int64_t r = 0; r < linear.spec->out; ++r) all.push_back(stored_bias(linear, e, r));
    }
    return all;
  };
  const auto plain = [&](size_t i) {
    std::vector<float> all;
    for (int64_t k = 0; k < stored.plain[i].elements(); ++k)
      all.push_back(load_f32(stored.plain[i], k));
    return all;
  };
  std::filesystem::create_directories(to);
  Json config = *checkpoint.config().config;
  config.erase("quantization_config");
  std::ofstream(to + "/config.json") << config.dump();
  std::ofstream(to + "/model.safetensors", std::ios::binary)
      << file_of(tensors_of(table, values, bias, plain));
}

void write_made_model(const std::string& folder, const MadeSizes& sizes, uint64_t seed) {
  const Json config = {{"model_type", "gpt_oss"},
                       {"num_hidden_layers", sizes.layers},
                       {"num_local_experts", sizes.experts},
                       {"num_experts_per_tok", sizes.top_k},
                       {"hidden_size", sizes.hidden},
                       {"intermediate_size", sizes.intermediate},
                       {"vocab_size", sizes.vocab},
                       {"head_dim", 32},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"sliding_window", 16},
                       {"max_position_embeddings", 256},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 150000.0},
                       {"eos_token_id", 0}};
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  const LinearTable table = table_of(must(HfConfig::read(folder)));
  std::mt19937_64 random(seed);
  // What bf16 holds: the same model may be written in any type.
  const auto normal = [&](int64_t count, float mean, float deviation) {
    std::normal_distribution<float> draw(mean, deviation);
    std::vector<float> all(static_cast<size_t>(count));
    for (float& value : all) value = bf16_to_f32(f32_to_bf16(draw(random)));
    return all;
  };
  const auto count = [&](size_t i) {
    return std::max(table.linears[i].experts, 1) * table.linears[i].out;
  };
  const auto values = [&](size_t i) {
    const LinearSpec& spec = table.linears[i];
    const float deviation =
        spec.stage == Stage::kEmbedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(spec.in));
    return normal(count(i) * spec.in, 0, deviation);
  };
  const auto bias = [&](size_t i) { return normal(count(i), 0, 0.1f); };
  const auto plain = [&](size_t i) {
    int64_t elements = 1;
    for (const int64_t extent : table.plain[i].shape) elements *= extent;
    return normal(elements, 1, 0.1f);
  };
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << file_of(tensors_of(table, values, bias, plain));
}

}  // namespace lk::test

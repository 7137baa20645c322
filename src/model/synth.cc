#include "model/synth.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_writer.h"
#include "model/archs.h"
#include "model/synth_writer.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

struct Preset {
  std::string_view name;
  const char* config;
  const char* generation_config;
};

// Published values (config.json of the named repositories).
#define LK_GPT_OSS(layers, experts)                                                                                \
  R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": )" layers              \
  R"(, "num_local_experts": )" experts                                                                             \
  R"(, "num_experts_per_tok": 4, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,)"      \
  R"( "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true, "sliding_window": 128,)"                   \
  R"( "max_position_embeddings": 131072, "initial_context_length": 4096, "rope_theta": 150000,)"                   \
  R"( "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,)"                 \
  R"( "original_max_position_embeddings": 4096, "truncate": false}, "rms_norm_eps": 1e-05, "hidden_act": "silu",)" \
  R"( "swiglu_limit": 7.0, "vocab_size": 201088, "tie_word_embeddings": false, "eos_token_id": 200002,)"           \
  R"( "pad_token_id": 199999, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert":)"         \
  R"( ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})"

constexpr const char* kGptOssGeneration = R"({"bos_token_id": 199998, "do_sample": true,
 "eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999})";

constexpr Preset kPresets[] = {
    {"gpt-oss-20b", LK_GPT_OSS("24", "32"), kGptOssGeneration},
    {"gpt-oss-120b", LK_GPT_OSS("36", "128"), kGptOssGeneration},
};
#undef LK_GPT_OSS

// The tensors of one linear as its published layout spells them.
void add_linear(const LinearTable& table, const LinearSpec& spec, bool mxfp4_experts,
                double router_skew, std::vector<SynthTensor>& out) {
  const LinearName& name = spec.names.front();
  const std::string path = table.full_name(name.path, table.prefixes.front());
  const float deviation = 1.0f / std::sqrt(static_cast<float>(spec.in));
  if (name.form == NameForm::kModule) {
    out.push_back({path + ".weight",
                   DType::kBF16,
                   {spec.out, spec.in},
                   spec.stage == Stage::kEmbedding ? 1.0f : deviation});
    if (spec.bias) out.push_back({path + ".bias", DType::kBF16, {spec.out}, 0.02f});
    if (spec.bias && spec.stage == Stage::kRouter) {
      out.back().skew = static_cast<float>(router_skew);
    }
    return;
  }
  const int64_t experts = spec.experts;
  if (mxfp4_experts) {
    // A random E2M1 code has a root mean square of 2.9; scales of 2^-8 to 2^-5 around 1/sqrt(in)
    // keep activations near one.
    const int scale = 127 + static_cast<int>(std::lround(std::log2(deviation / 2.9f))) - 2;
    out.push_back(
        {path + "_blocks", DType::kU8, {experts, spec.out, spec.in / 32, 16}, 0, 0, true});
    out.push_back(
        {path + "_scales", DType::kU8, {experts, spec.out, spec.in / 32}, 0, 0, false, scale});
  } else {
    out.push_back({path, DType::kBF16,
                   name.form == NameForm::kParameterInOut ? Shape{experts, spec.in, spec.out}
                                                          : Shape{experts, spec.out, spec.in},
                   deviation});
  }
  if (spec.bias) out.push_back({path + "_bias", DType::kBF16, {experts, spec.out}, 0.02f});
}

// One token for each byte, spelled as byte-level BPE spells it, and the special ids of the
// generation config.
std::string byte_tokenizer(const Json& config, const Json& generation) {
  OrderedJson vocab = OrderedJson::object();
  int extra = 0;
  for (int b = 0; b < 256; ++b) {
    // GPT-2's table: printable Latin-1 stands for itself, the others for U+0100 and up, in order.
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const int code = printable ? b : 256 + extra++;
    std::string text;
    if (code < 0x80) {
      text = std::string(1, static_cast<char>(code));
    } else {
      text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 63));
    }
    vocab[text] = b;
  }
  std::set<int64_t> special = {config["eos_token_id"].get<int64_t>(),
                               config["pad_token_id"].get<int64_t>()};
  for (const Json& id : generation["eos_token_id"]) special.insert(id.get<int64_t>());
  OrderedJson added = OrderedJson::array();
  for (int64_t id : special) {
    added.push_back({{"id", id},
                     {"content", fmt::format("<|special_{}|>", id)},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const OrderedJson byte_level = {{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", true}};
  return OrderedJson{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", OrderedJson::array()}}}}
      .dump();
}

}  // namespace

std::string synth_presets() {
  std::string names;
  for (const Preset& preset : kPresets)
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

Status synthesize_checkpoint(const std::string& folder, const SynthOptions& options) {
  const Preset* preset = nullptr;
  for (const Preset& p : kPresets) {
    if (p.name == options.preset) preset = &p;
  }
  if (!preset)
    return invalid("there is no preset '{}'; known are {}", options.preset, synth_presets());
  LK_ASSIGN_OR_RETURN(Json json, parse_json(preset->config, "preset config"));
  LK_ASSIGN_OR_RETURN(Json generation,
                      parse_json(preset->generation_config, "preset generation config"));
  const int all = json["num_hidden_layers"];
  if (options.layers < 0 || options.layers > all)
    return invalid("{} has {} layers, not {}", preset->name, all, options.layers);
  if (options.layers > 0) json["num_hidden_layers"] = options.layers;

  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return invalid("cannot make {}: {}", folder, error.message());
  if (fs::exists(folder + "/config.json")) return invalid("{} holds a model already", folder);

  HfConfig config;
  config.config = std::make_shared<const Json>(json);
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(config.model_type()));
  LK_ASSIGN_OR_RETURN(LinearTable table, row->table(config));
  const bool mxfp4 = json.contains("quantization_config") &&
                     json["quantization_config"]["quant_method"] == "mxfp4";
  std::vector<SynthTensor> tensors;
  for (const LinearSpec& spec : table.linears) {
    if (spec.stage == Stage::kRouter && !spec.bias && options.router_skew > 0) {
      return unsupported("the router of {} has no bias by which it could be skewed", preset->name);
    }
    add_linear(table, spec, mxfp4, options.router_skew, tensors);
  }
  for (const PlainTensorSpec& plain : table.plain) {
    const bool norm = plain.name.find("norm") != std::string::npos;
    tensors.push_back({table.prefixes.front() + plain.name, DType::kBF16, plain.shape,
                       norm ? 0.1f : 1.0f, norm ? 1.0f : 0.0f});
  }
  LK_RETURN_IF_ERROR(write_random_safetensors(folder, "model", tensors, options.seed,
                                              options.shard_bytes, options.progress));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/generation_config.json", generation.dump(1) + "\n"));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/tokenizer.json", byte_tokenizer(json, generation) + "\n"));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/chat_template.jinja",
                      "{%- for m in messages -%}{{ m['role'] + ': ' + m['content'] + "
                      "'\\n' }}{%- endfor -%}{{ 'assistant: ' }}\n"));
  // Last, so that a folder with a config is a whole one.
  return write_text_file(folder + "/config.json", json.dump(1) + "\n");
}

}  // namespace lk

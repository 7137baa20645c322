#include "model/synth.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_writer.h"
#include "model/output_folder.h"
#include "model/synth_presets.h"
#include "model/synth_writer.h"

namespace lk {
namespace {

// Experts, and attention; of a model whose kept layers have none of it, the recurrent mixers.
std::vector<std::string> adapter_targets(const LinearTable& table) {
  const auto has = [&](Stage stage) {
    return std::any_of(table.linears.begin(), table.linears.end(),
                       [stage](const LinearSpec& spec) { return spec.stage == stage; });
  };
  std::vector<std::string> targets;
  if (has(Stage::kQuery))
    targets.emplace_back("attention");
  else if (has(Stage::kRecurrentIn))
    targets.emplace_back("recurrent");
  if (has(Stage::kExpertUp)) targets.emplace_back("experts");
  return targets;
}

// False if `progress` said so.
Result<bool> write_adapters(const std::string& folder, const LinearTable& table,
                            const SynthOptions& options) {
  for (int i = 0; i < options.adapters; ++i) {
    SynthAdapterOptions adapter;
    adapter.rank = options.adapter_rank;
    adapter.alpha = 2.0 * options.adapter_rank;
    adapter.targets = adapter_targets(table);
    adapter.seed = options.seed + 1 + static_cast<uint64_t>(i);
    adapter.progress = options.progress;
    LK_ASSIGN_OR_RETURN(const bool whole,
                        synthesize_adapter(fmt::format("{}/adapter{}", folder, i), table, adapter));
    if (!whole) return false;
  }
  return true;
}

}  // namespace

Result<std::string> byte_tokenizer(const SynthModel& model) {
  const HfConfig& files = model.files;
  const int64_t vocab_size = model.table.find(Stage::kEmbedding, -1)->out;
  LK_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, files.eos_token_ids());
  std::set<int64_t> special(ends.begin(), ends.end());
  for (const auto& json : {files.generation_config, files.config}) {
    if (json && json->contains("pad_token_id") && json->at("pad_token_id").is_number_unsigned())
      special.insert(json->at("pad_token_id").get<int64_t>());
  }
  // Bytes stand where no special id does.
  int64_t first = 0;
  for (const int64_t id : special) {
    if (id < first + 256) first = id + 1;
  }
  const int64_t last = special.empty() ? 0 : *special.rbegin();
  if (std::max(first + 255, last) >= vocab_size) {
    return unsupported("a vocabulary of {} has no room for the 256 bytes beside the special ids",
                       vocab_size);
  }
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
    vocab[text] = first + b;
  }
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

Result<bool> synthesize_checkpoint(const std::string& folder, const SynthOptions& options) {
  LK_ASSIGN_OR_RETURN(const SynthModel model, synth_model(options.preset, options.layers));
  LK_ASSIGN_OR_RETURN(const auto tensors, synth_tensors(model, options.router_skew));
  std::error_code absent;
  std::vector<std::string> sources;
  if (std::filesystem::is_directory(options.preset, absent)) {
    sources.push_back(options.preset);
    LK_RETURN_IF_ERROR(check_outside(folder, options.preset));
  }
  LK_ASSIGN_OR_RETURN(OutputFolder output, OutputFolder::make(folder, sources));
  const HfConfig& files = model.files;
  LK_ASSIGN_OR_RETURN(const std::string tokenizer, byte_tokenizer(model));
  LK_ASSIGN_OR_RETURN(const bool model_whole,
                      write_random_safetensors(folder, "model", tensors, options.seed,
                                               options.shard_bytes, options.progress));
  if (!model_whole) return false;
  LK_ASSIGN_OR_RETURN(const bool adapters_whole, write_adapters(folder, model.table, options));
  if (!adapters_whole) return false;
  const auto write_json = [&](const char* name, const std::shared_ptr<const Json>& json) -> Status {
    return json ? write_text_file(folder + name, json_file_text(*json)) : Status{};
  };
  LK_RETURN_IF_ERROR(write_json("/generation_config.json", files.generation_config));
  LK_RETURN_IF_ERROR(write_json("/hf_quant_config.json", files.hf_quant_config));
  LK_RETURN_IF_ERROR(write_text_file(folder + "/tokenizer.json", tokenizer + "\n"));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/chat_template.jinja",
                      "{%- for m in messages -%}{{ m['role'] + ': ' + m['content'] + "
                      "'\\n' }}{%- endfor -%}{{ 'assistant: ' }}\n"));
  // Last, so that a folder with a config is a whole one.
  LK_RETURN_IF_ERROR(write_json("/config.json", files.config));
  output.keep();
  return true;
}

}  // namespace lk

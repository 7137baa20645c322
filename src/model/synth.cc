#include "model/synth.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors_writer.h"
#include "model/synth_presets.h"
#include "model/synth_writer.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

// One token for each byte, spelled as byte-level BPE spells it, and the special ids of the
// generation config.
Result<std::string> byte_tokenizer(const HfConfig& files) {
  LK_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, files.eos_token_ids());
  std::set<int64_t> special(ends.begin(), ends.end());
  special.insert((*files.generation_config)["pad_token_id"].get<int64_t>());
  // Bytes stand where no special id does.
  int64_t first = 0;
  for (const int64_t id : special) {
    if (id < first + 256) first = id + 1;
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

}  // namespace

Status synthesize_checkpoint(const std::string& folder, const SynthOptions& options) {
  LK_ASSIGN_OR_RETURN(const SynthModel model, synth_model(options.preset, options.layers));
  LK_ASSIGN_OR_RETURN(const auto tensors, synth_tensors(model, options.router_skew));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return invalid("cannot make {}: {}", folder, error.message());
  if (fs::exists(folder + "/config.json", error))
    return invalid("{} holds a model already", folder);
  if (error) return invalid("cannot look into {}: {}", folder, error.message());

  const HfConfig& files = model.files;
  LK_ASSIGN_OR_RETURN(const std::string tokenizer, byte_tokenizer(files));
  LK_RETURN_IF_ERROR(write_random_safetensors(folder, "model", tensors, options.seed,
                                              options.shard_bytes, options.progress));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/generation_config.json", files.generation_config->dump(1) + "\n"));
  if (files.hf_quant_config) {
    LK_RETURN_IF_ERROR(
        write_text_file(folder + "/hf_quant_config.json", files.hf_quant_config->dump(1) + "\n"));
  }
  LK_RETURN_IF_ERROR(write_text_file(folder + "/tokenizer.json", tokenizer + "\n"));
  LK_RETURN_IF_ERROR(
      write_text_file(folder + "/chat_template.jinja",
                      "{%- for m in messages -%}{{ m['role'] + ': ' + m['content'] + "
                      "'\\n' }}{%- endfor -%}{{ 'assistant: ' }}\n"));
  // Last, so that a folder with a config is a whole one.
  return write_text_file(folder + "/config.json", files.config->dump(1) + "\n");
}

}  // namespace lk

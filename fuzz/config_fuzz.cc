// config.json: whatever it says, the parsed config is sane, and a checkpoint laid out as its table
// says is accepted. What it says about quantization is recipe_fuzz's matter.
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "model/arch/gpt_oss.h"
#include "model/archs.h"
#include "quant/detect.h"

namespace {

// The header of the checkpoint that `table` describes, experts as blocks where their width allows.
class Header {
 public:
  explicit Header(const lk::LinearTable& table) {
    for (const lk::LinearSpec& spec : table.linears) {
      if (spec.stage == lk::Stage::kHead && table.tied_head) continue;
      const std::string path = table.full_name(spec.path(), table.prefixes.front());
      if (spec.experts == 0) {
        add(path + ".weight", "BF16", 2, {spec.out, spec.in});
        if (spec.bias) add(path + ".bias", "BF16", 2, {spec.out});
        continue;
      }
      if (spec.in % 32 == 0) {
        add(path + "_blocks", "U8", 1, {spec.experts, spec.out, spec.in / 32, 16});
        add(path + "_scales", "U8", 1, {spec.experts, spec.out, spec.in / 32});
      } else {
        add(path, "BF16", 2, {spec.experts, spec.in, spec.out});
      }
      add(path + "_bias", "BF16", 2, {spec.experts, spec.out});
    }
    for (const lk::PlainTensorSpec& spec : table.plain) {
      add(table.full_name(spec.name, table.prefixes.front()), "F32", 4, spec.shape);
    }
    text_.back() = '}';
  }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& name, const char* dtype, int64_t size, const lk::Shape& shape) {
    for (int64_t extent : shape) {
      if (extent <= 0 || __builtin_mul_overflow(size, extent, &size)) std::abort();
    }
    text_ += fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", name,
                         dtype, fmt::join(shape, ","), offset_, offset_ + size);
    offset_ += size;
  }

  std::string text_ = "{";
  int64_t offset_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  auto json = lk::parse_json({reinterpret_cast<const char*>(input), size}, "config.json");
  if (!json) return 0;
  if (json->is_object()) json->erase("quantization_config");
  lk::HfConfig files;
  files.config = std::make_shared<const lk::Json>(std::move(*json));
  (void)files.eos_token_ids();
  (void)files.model_type();
  // Every architecture reads it, or says in a sentence why not; table and decoder agree.
  for (const lk::ArchRow* row : lk::archs_table()) {
    const auto table = row->table(files);
    const auto decoder = row->decoder(files);
    if (table.has_value() != decoder.has_value()) std::abort();
    if (!table && table.error().message.empty()) std::abort();
  }
  auto config = lk::parse_gpt_oss_config(files);
  if (!config) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  if (config->sliding.size() != static_cast<size_t>(config->layers)) std::abort();
  if (config->layers > 8) config->layers = 8;
  const lk::LinearTable table = lk::gpt_oss_linear_table(*config);
  const Header header(table);
  auto checkpoint = lk::Checkpoint::from_headers({header.text()}, files);
  if (!checkpoint) {
    // Only what no disk holds is refused here.
    if (checkpoint.error().message.find("out of range") == std::string::npos) std::abort();
    return 0;
  }
  auto model = lk::match_checkpoint(*checkpoint, table);
  if (!model || model->linears.size() != table.linears.size()) std::abort();
  return 0;
}

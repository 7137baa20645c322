// config.json: whatever it says, an architecture reads it or says in a sentence why not, its
// decoder asks for nothing that its table lacks, and a checkpoint laid out as the table says is
// accepted. What it says about quantization is recipe_fuzz's matter.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "model/archs.h"
#include "quant/detect.h"

namespace {

// Longer headers teach nothing more, and take their time.
constexpr int64_t kMostTensors = 400;

// Whether `name` belongs to the first way in which `spec` may be stored: whole, or a gate and its
// up.
bool is_first(const lk::LinearSpec& spec, const lk::LinearName& name) {
  return &name == &spec.names.front() || (&name == &spec.names[1] && name.part == lk::RowPart::kUp);
}

int64_t count_tensors(const lk::LinearTable& table) {
  int64_t count = static_cast<int64_t>(table.plain.size());
  for (const lk::LinearSpec& spec : table.linears) count += 2 * std::max(spec.experts, 1);
  return count;
}

// The header of the checkpoint that `table` describes, stacked experts as blocks where their width
// allows.
class Header {
 public:
  explicit Header(const lk::LinearTable& table) : prefix_(table.prefixes.front()) {
    for (const lk::LinearSpec& spec : table.linears) {
      if (spec.stage == lk::Stage::kHead && table.tied_head) continue;
      for (const lk::LinearName& name : spec.names) {
        if (is_first(spec, name)) add_linear(table, spec, name);
      }
    }
    for (const lk::PlainTensorSpec& spec : table.plain)
      add(table.full_name(spec.name, prefix_), "F32", 4, spec.shape);
    text_.back() = '}';
  }
  const std::string& text() const { return text_; }

 private:
  void add_linear(const lk::LinearTable& table, const lk::LinearSpec& spec,
                  const lk::LinearName& name) {
    const std::string path = table.full_name(name.path, prefix_);
    const int64_t out = name.part == lk::RowPart::kAll ? spec.out : spec.out / 2;
    if (name.form == lk::NameForm::kModule) return add_module(path, spec, out);
    if (name.form == lk::NameForm::kExpertModule) {
      constexpr std::string_view kHole = "{expert}";
      for (int e = 0; e < spec.experts; ++e) {
        std::string one = path;
        one.replace(one.find(kHole), kHole.size(), std::to_string(e));
        add_module(one, spec, out);
      }
      return;
    }
    if (spec.in % 32 == 0) {
      add(path + "_blocks", "U8", 1, {spec.experts, out, spec.in / 32, 16});
      add(path + "_scales", "U8", 1, {spec.experts, out, spec.in / 32});
    } else if (name.form == lk::NameForm::kParameterInOut) {
      add(path, "BF16", 2, {spec.experts, spec.in, out});
    } else {
      add(path, "BF16", 2, {spec.experts, out, spec.in});
    }
    if (spec.bias) add(path + "_bias", "BF16", 2, {spec.experts, out});
  }

  void add_module(const std::string& path, const lk::LinearSpec& spec, int64_t out) {
    add(path + ".weight", "BF16", 2, {out, spec.in});
    if (spec.bias) add(path + ".bias", "BF16", 2, {out});
  }

  void add(const std::string& name, const char* dtype, int64_t size, const lk::Shape& shape) {
    for (int64_t extent : shape)
      LK_CHECK(extent > 0 && !__builtin_mul_overflow(size, extent, &size));
    text_ += fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", name,
                         dtype, fmt::join(shape, ","), offset_, offset_ + size);
    offset_ += size;
  }

  const std::string prefix_;
  std::string text_ = "{";
  int64_t offset_ = 0;
};

// That the table holds each tensor which the decoder names, with as many values as it will read.
class NamedByDecoder {
 public:
  explicit NamedByDecoder(const lk::LinearTable& table) {
    for (const lk::PlainTensorSpec& spec : table.plain) {
      int64_t size = 1;
      for (const int64_t extent : spec.shape) size *= extent;
      LK_CHECK(sizes_.emplace(spec.name, size).second);
    }
  }

  void check(const lk::DecoderSpec& decoder) const {
    check(decoder.final_norm, decoder.hidden);
    for (const lk::LayerSpec& layer : decoder.layers) {
      if (layer.attention) check(*layer.attention, decoder.hidden);
      if (layer.delta_net) check(*layer.delta_net, decoder.hidden);
      if (layer.mamba) check(*layer.mamba, decoder.hidden);
      if (!layer.moe) continue;
      check(layer.moe->norm, decoder.hidden);
      check_if_named(layer.moe->correction, layer.moe->experts);
      LK_CHECK(layer.moe->top_k >= 1 && layer.moe->top_k <= layer.moe->experts);
      LK_CHECK(layer.moe->experts % layer.moe->groups == 0);
    }
  }

 private:
  void check(const std::string& name, int64_t size) const {
    const auto found = sizes_.find(name);
    LK_CHECK(found != sizes_.end() && found->second == size);
  }
  void check_if_named(const std::string& name, int64_t size) const {
    if (!name.empty()) check(name, size);
  }

  void check(const lk::AttentionSpec& spec, int hidden) const {
    check(spec.norm, hidden);
    check_if_named(spec.sinks, spec.heads);
    const int64_t dim = spec.head_dim;
    check_if_named(spec.query_norm, spec.norm_whole ? spec.heads * dim : dim);
    check_if_named(spec.key_norm, spec.norm_whole ? spec.kv_heads * dim : dim);
    LK_CHECK(spec.heads % spec.kv_heads == 0);
  }

  void check(const lk::DeltaNetSpec& spec, int hidden) const {
    check(spec.norm, hidden);
    check(spec.conv, int64_t{spec.channels()} * spec.kernel);
    check(spec.a_log, spec.value_heads);
    check(spec.dt_bias, spec.value_heads);
    check(spec.out_norm, spec.value_dim);
    LK_CHECK(spec.value_heads % spec.key_heads == 0);
  }

  void check(const lk::MambaSpec& spec, int hidden) const {
    check(spec.norm, hidden);
    check(spec.conv, int64_t{spec.channels()} * spec.kernel);
    check_if_named(spec.conv_bias, spec.channels());
    for (const std::string* name : {&spec.a_log, &spec.d, &spec.dt_bias}) check(*name, spec.heads);
    check(spec.out_norm, spec.inner());
    LK_CHECK(spec.heads % spec.groups == 0);
  }

  std::map<std::string, int64_t> sizes_;
};

void try_checkpoint(const lk::LinearTable& table, const lk::HfConfig& files) {
  const Header header(table);
  const auto checkpoint = lk::Checkpoint::from_headers({header.text()}, files);
  if (!checkpoint) {
    // Only what no disk holds is refused here.
    LK_CHECK(checkpoint.error().message.find("out of range") != std::string::npos);
    return;
  }
  const auto model = lk::match_checkpoint(*checkpoint, table);
  LK_CHECK(model && model->linears.size() == table.linears.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  auto json = lk::parse_json({reinterpret_cast<const char*>(input), size}, "config.json");
  if (!json) return 0;
  if (json->is_object()) json->erase("quantization_config");
  lk::HfConfig files;
  files.config = std::make_shared<const lk::Json>(std::move(*json));
  (void)files.eos_token_ids();
  (void)files.model_type();
  for (const lk::ArchRow* row : lk::archs_table()) {
    const auto table = row->table(files);
    const auto decoder = row->decoder(files);
    LK_CHECK(table.has_value() == decoder.has_value());
    if (!table) {
      LK_CHECK(!table.error().message.empty());
      continue;
    }
    NamedByDecoder(*table).check(*decoder);
    if (count_tensors(*table) <= kMostTensors) try_checkpoint(*table, files);
  }
  return 0;
}

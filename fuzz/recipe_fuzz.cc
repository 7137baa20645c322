// What a model's JSON files say about its quantization, held against one small model's tensors in
// every published form: the tensors decide, and the files agree, are warned about or are refused in
// a sentence. The input is an object with quantization_config (of config.json), hf_quant_config
// (the file), or both.
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/checkpoint.h"
#include "quant/detect.h"
#include "quant/formats.h"

namespace {

constexpr int kExperts = 2;
constexpr int64_t kOut = 32, kIn = 64;

lk::LinearTable small_table() {
  using lk::NameForm;
  using lk::RowPart;
  const std::string layer = "layers.0.", experts = layer + "mlp.experts";
  lk::LinearTable table;
  table.architecture = "small";
  table.prefixes = {"model."};
  table.rootless = {"lm_head"};
  table.linears = {
      {.stage = lk::Stage::kEmbedding, .out = kOut, .in = kIn, .names = {{"embed_tokens"}}},
      {.stage = lk::Stage::kQuery,
       .layer = 0,
       .out = kOut,
       .in = kIn,
       .names = {{layer + "self_attn.q_proj"}}},
      {.stage = lk::Stage::kRouter,
       .layer = 0,
       .out = kOut,
       .in = kIn,
       .names = {{layer + "mlp.router"}}},
      {.stage = lk::Stage::kExpertUp,
       .layer = 0,
       .experts = kExperts,
       .out = 2 * kOut,
       .in = kIn,
       .row_order = lk::RowOrder::kInterleavedGateUp,
       .names = {{experts + ".gate_up_proj", NameForm::kParameterInOut},
                 {experts + ".{expert}.gate_proj", NameForm::kExpertModule, RowPart::kGate},
                 {experts + ".{expert}.up_proj", NameForm::kExpertModule, RowPart::kUp}}},
      {.stage = lk::Stage::kHead, .out = kOut, .in = kIn, .names = {{"lm_head"}}}};
  return table;
}

class Header {
 public:
  void add(const std::string& name, const char* dtype, int64_t size, const lk::Shape& shape) {
    for (const int64_t extent : shape) size *= extent;
    text_ += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                         text_.size() > 1 ? "," : "", name, dtype, fmt::join(shape, ","), offset_,
                         offset_ + size);
    offset_ += size;
  }
  void add_bf16(const std::string& name, const lk::Shape& shape) { add(name, "BF16", 2, shape); }
  std::string text() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
  int64_t offset_ = 0;
};

struct Form {
  const lk::Format* format;
  // Adds the tensors of a module [kOut, kIn]; null: the experts lie in one parameter, and only they
  // are quantized.
  void (*module)(Header& header, const std::string& path);
};

const Form kForms[] = {
    {&lk::kFormatBF16,
     [](Header& h, const std::string& path) {
       h.add_bf16(path + ".weight", {kOut, kIn});
     }},
    {&lk::kFormatMxfp4, nullptr},
    {&lk::kFormatMxfp4,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight_packed", "U8", 1, {kOut, kIn / 2});
       h.add(path + ".weight_scale", "U8", 1, {kOut, kIn / 32});
     }},
    {&lk::kFormatNvfp4,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight", "U8", 1, {kOut, kIn / 2});
       h.add(path + ".weight_scale", "F8_E4M3", 1, {kOut, kIn / 16});
       h.add(path + ".weight_scale_2", "F32", 4, {});
     }},
    {&lk::kFormatNvfp4Divide,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight_packed", "U8", 1, {kOut, kIn / 2});
       h.add(path + ".weight_scale", "F8_E4M3", 1, {kOut, kIn / 16});
       h.add(path + ".weight_global_scale", "F32", 4, {1});
     }},
    {&lk::kFormatFp8Block,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight", "F8_E4M3", 1, {kOut, kIn});
       h.add(path + ".weight_scale_inv", "F32", 4, {1, 1});
     }},
    {&lk::kFormatFp8Channel,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight", "F8_E4M3", 1, {kOut, kIn});
       h.add(path + ".weight_scale", "F32", 4, {kOut, 1});
     }},
    {&lk::kFormatFp8Tensor,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight", "F8_E4M3", 1, {kOut, kIn});
       h.add(path + ".weight_scale", "F32", 4, {});
     }},
    {&lk::kFormatMxfp8,
     [](Header& h, const std::string& path) {
       h.add(path + ".weight", "F8_E4M3", 1, {kOut, kIn});
       h.add(path + ".weight_scale", "U8", 1, {kOut, kIn / 32});
     }},
};

std::string header_of(const Form& form) {
  Header header;
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.mlp.router.weight", "lm_head.weight"})
    header.add_bf16(name, {kOut, kIn});
  const std::string layer = "model.layers.0.", experts = layer + "mlp.experts.";
  if (form.module) {
    form.module(header, layer + "self_attn.q_proj");
    for (int e = 0; e < kExperts; ++e) {
      for (const char* part : {"gate_proj", "up_proj"})
        form.module(header, fmt::format("{}{}.{}", experts, e, part));
    }
  } else {
    header.add_bf16(layer + "self_attn.q_proj.weight", {kOut, kIn});
    header.add(experts + "gate_up_proj_blocks", "U8", 1, {kExperts, 2 * kOut, kIn / 32, 16});
    header.add(experts + "gate_up_proj_scales", "U8", 1, {kExperts, 2 * kOut, kIn / 32});
  }
  return header.text();
}

void check_sentence(const std::string& text) {
  if (text.empty() || text.size() > 4000 || text.find('\n') != std::string::npos) std::abort();
}

// Whether the form's tensors and what the files say agree without a word.
bool agrees(const Form& form, const std::string& header, const lk::LinearTable& table,
            const lk::HfConfig& files) {
  auto checkpoint = lk::Checkpoint::from_headers({header}, files);
  if (!checkpoint) std::abort();
  const auto model = lk::match_checkpoint(*checkpoint, table);
  if (!model) {
    check_sentence(model.error().message);
    return false;
  }
  if (model->linears.size() != table.linears.size()) std::abort();
  for (const lk::StoredLinear& linear : model->linears) {
    const bool expert = linear.spec->experts > 0;
    const bool query = linear.spec->stage == lk::Stage::kQuery && form.module;
    if (linear.format != (expert || query ? form.format : &lk::kFormatBF16)) std::abort();
  }
  for (const std::string& warning : model->warnings) check_sentence(warning);
  return model->warnings.empty();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  static const lk::LinearTable table = small_table();
  static const std::vector<std::string> headers = [] {
    std::vector<std::string> all;
    for (const Form& form : kForms) all.push_back(header_of(form));
    return all;
  }();
  auto json = lk::parse_json({reinterpret_cast<const char*>(input), size}, "input");
  if (!json || !json->is_object()) return 0;
  lk::Json config = {{"model_type", "small"}};
  if (json->contains("quantization_config"))
    config["quantization_config"] = (*json)["quantization_config"];
  lk::HfConfig files;
  files.config = std::make_shared<const lk::Json>(std::move(config));
  if (json->contains("hf_quant_config"))
    files.hf_quant_config = std::make_shared<const lk::Json>((*json)["hf_quant_config"]);
  // One description cannot fit weights of different elements.
  std::set<lk::Element> silent;
  for (size_t i = 0; i < std::size(kForms); ++i) {
    if (agrees(kForms[i], headers[i], table, files)) silent.insert(kForms[i].format->element);
  }
  if (silent.size() > 1) std::abort();
  return 0;
}

// An adapter folder from hostile bytes: adapter_config.json, then 0xff, then the JSON header of the
// tensor file. Headers that pass are given values, so that planning, conversion, identity and
// description run too.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "adapters/adapter_build.h"
#include "adapters/adapter_config.h"
#include "adapters/adapter_plan.h"
#include "checkpoint/safetensors.h"

namespace {

constexpr size_t kMaxTensorBytes = 1 << 16;

lk::LinearTable make_table() {
  using lk::NameForm, lk::RowPart, lk::Stage;
  lk::LinearTable table;
  table.architecture = "gpt_oss";
  table.prefixes = {"model."};
  table.rootless = {"lm_head"};
  const auto add = [&](Stage stage, int layer, int experts, int64_t out, int64_t in,
                       lk::RowOrder order, std::vector<lk::LinearName> names) {
    lk::LinearSpec spec{};
    spec.stage = stage;
    spec.layer = layer;
    spec.experts = experts;
    spec.out = out;
    spec.in = in;
    spec.row_order = order;
    spec.names = std::move(names);
    table.linears.push_back(std::move(spec));
  };
  const auto plain = lk::RowOrder::kPlain;
  add(Stage::kEmbedding, -1, 0, 40, 16, plain, {{"embed_tokens"}});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const std::string experts = layer + "mlp.experts.";
    add(Stage::kQuery, i, 0, 32, 16, plain, {{layer + "self_attn.q_proj"}});
    add(Stage::kRouter, i, 0, 3, 16, plain, {{layer + "mlp.router"}});
    add(Stage::kExpertUp, i, 3, 24, 16, lk::RowOrder::kInterleavedGateUp,
        {{experts + "gate_up_proj", NameForm::kParameterInOut},
         {experts + "gate_up_projs.{expert}", NameForm::kExpertModule},
         {experts + "{expert}.gate_proj", NameForm::kExpertModule, RowPart::kGate},
         {experts + "{expert}.up_proj", NameForm::kExpertModule, RowPart::kUp}});
    add(Stage::kExpertDown, i, 3, 16, 12, plain,
        {{experts + "down_proj", NameForm::kParameterInOut},
         {experts + "{expert}.down_proj", NameForm::kExpertModule}});
  }
  add(Stage::kHead, -1, 0, 40, 16, plain, {{"lm_head"}});
  return table;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lk::LinearTable table = make_table();
  static const lk::LinearIndex index(table);
  static const std::vector<std::byte> values(kMaxTensorBytes, std::byte{0x3e});

  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\xff');
  const auto config = lk::parse_adapter_config(input.substr(0, cut), "adapter_config.json");
  if (!config || cut == std::string_view::npos) return 0;
  auto header =
      lk::parse_safetensors_header(input.substr(cut + 1), nullptr, lk::kUnknownDataSize, "file");
  if (!header) return 0;
  for (auto& [name, view] : header->tensors) {
    if (view.bytes() > kMaxTensorBytes) return 0;
    view.data = values.data();
  }
  auto plan = lk::plan_adapter(*config, header->tensors, index, {});
  if (!plan) {
    if (plan.error().message.empty()) std::abort();
    return 0;
  }
  const auto adapter = lk::build_adapter(std::move(*plan), {});
  if (!adapter) return 0;
  // Whatever was accepted has every value in place.
  for (const lk::AdapterModule& module : (*adapter)->modules) {
    for (const lk::LoraPair& pair : module.experts) {
      if (pair.a.size() != static_cast<size_t>(pair.rank * module.spec->in)) std::abort();
      if (pair.b.size() != static_cast<size_t>(pair.rank * module.spec->out)) std::abort();
    }
  }
  if ((*adapter)->describe().dump(-1, ' ', true).empty()) std::abort();
  return 0;
}

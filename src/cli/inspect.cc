#include "cli/inspect.h"

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "cli/hub_models.h"
#include "cli/model_parts.h"
#include "cli/output.h"
#include "cli/request_fields.h"
#include "cli/session.h"
#include "engine/kv_plan.h"
#include "engine/machine_limits.h"
#include "kernels/devices.h"
#include "kernels/select.h"
#include "model/archs.h"
#include "model/decoder.h"
#include "model/moe_plan.h"
#include "quant/detect.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lk {
namespace {

size_t bytes_of(const StoredLinear& linear) {
  size_t bytes = 0;
  for (const StoredTensor& tensor : linear.tensors) bytes += tensor.view.bytes();
  return bytes;
}

OrderedJson sizes(const DecoderSpec& spec) {
  OrderedJson out = {{"layers", spec.layers.size()},
                     {"hidden", spec.hidden},
                     {"vocab", spec.vocab},
                     {"max_positions", spec.max_positions}};
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.attention || out.contains("heads")) continue;
    out["heads"] = layer.attention->heads;
    out["kv_heads"] = layer.attention->kv_heads;
    out["head_dim"] = layer.attention->head_dim;
  }
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe || out.contains("experts")) continue;
    out["experts"] = layer.moe->experts;
    out["top_k"] = layer.moe->top_k;
    out["intermediate"] = layer.moe->intermediate;
  }
  return out;
}

// One row for each stage, format and shape, in forward order.
OrderedJson tensor_groups(const StoredModel& stored) {
  OrderedJson groups = OrderedJson::array();
  for (const StoredLinear& linear : stored.linears) {
    const OrderedJson shape =
        linear.spec->experts > 0
            ? OrderedJson{linear.spec->experts, linear.spec->out, linear.spec->in}
            : OrderedJson{linear.spec->out, linear.spec->in};
    auto same = std::find_if(groups.begin(), groups.end(), [&](const OrderedJson& group) {
      return group["stage"] == stage_name(linear.spec->stage) &&
             group["format"] == linear.format->name && group["shape"] == shape;
    });
    if (same == groups.end()) {
      groups.push_back({{"stage", std::string(stage_name(linear.spec->stage))},
                        {"format", std::string(linear.format->name)},
                        {"count", 0},
                        {"shape", shape},
                        {"bytes", size_t{0}}});
      same = groups.end() - 1;
    }
    (*same)["count"] = (*same)["count"].get<int>() + 1;
    (*same)["bytes"] = (*same)["bytes"].get<size_t>() + bytes_of(linear);
  }
  return groups;
}

OrderedJson memory(const StoredModel& stored, const KvLayout& layout, size_t adapter_bytes,
                   const Device& device) {
  size_t linears = 0, plain = 0;
  for (const StoredLinear& linear : stored.linears) linears += bytes_of(linear);
  for (const TensorView& tensor : stored.plain) plain += tensor.bytes();
  OrderedJson groups = OrderedJson::array();
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    groups.push_back({{"window", layout.groups[g].window},
                      {"layers", layout.groups[g].layers.size()},
                      {"bytes_per_block", layout.block_bytes(static_cast<int>(g))}});
  }
  return {{"weight_bytes", linears + plain},
          {"linear_bytes", linears},
          {"other_bytes", plain},
          {"kv_dtype", layout.type == KvType::kBF16 ? "bf16" : "f32"},
          {"kv_bytes_per_token", kv_bytes_per_token(layout)},
          {"kv_bytes_per_1k_context", kv_bytes_of_sequence(layout, 1024) - layout.state_bytes()},
          {"state_bytes_per_sequence", layout.state_bytes()},
          {"kv_block_tokens", kKvBlockTokens},
          {"kv_groups", groups},
          {"adapter_bytes", adapter_bytes},
          {"available_bytes", device.is_host() ? available_memory() : device.free_memory()}};
}

std::string reason(const KernelsRow& row, bool on_gpu, bool chosen, bool after_chosen,
                   const std::string& asked) {
  if (!row.supported()) return fmt::format("this CPU lacks what it needs: {}", row.needs);
  if (on_gpu) return "the model is on the GPU";
  if (chosen) return asked.empty() ? "the fastest that this CPU has" : "asked for";
  if (!asked.empty()) return "not asked for";
  if (!row.preferred()) return "slower on this CPU than the next one";
  return after_chosen ? "slower than the chosen one" : "not chosen";
}

OrderedJson kernels(const std::string& name, const Kernels& made) {
  const char* forced = std::getenv("LORIKEET_KERNELS");
  const std::string asked = name.empty() && forced ? forced : name;
  OrderedJson rows = OrderedJson::array();
  bool after_chosen = false;
  for (const KernelsRow& row : kernels_table()) {
    const bool chosen = row.name == made.name();
    rows.push_back(
        {{"name", std::string(row.name)},
         {"needs", std::string(row.needs)},
         {"supported", row.supported()},
         {"chosen", chosen},
         {"reason", reason(row, !made.device().is_host(), chosen, after_chosen, asked)}});
    after_chosen = after_chosen || chosen;
  }
  return rows;
}

// One entry for each layer group, with every backend's verdict.
OrderedJson moe_groups(const std::vector<MoeGroup>& groups) {
  OrderedJson out = OrderedJson::array();
  for (const MoeGroup& group : groups) {
    OrderedJson rows = OrderedJson::array();
    for (const MoeVerdict& verdict : group.choice.verdicts) {
      rows.push_back({{"name", std::string(verdict.backend->name)},
                      {"what", std::string(verdict.backend->what)},
                      {"chosen", verdict.backend == group.choice.backend},
                      {"reason", verdict.reason}});
    }
    out.push_back({{"first_layer", group.first_layer},
                   {"last_layer", group.last_layer},
                   {"up_format", std::string(group.needs.up->name)},
                   {"down_format", std::string(group.needs.down->name)},
                   {"backend", std::string(group.choice.backend->name)},
                   {"backends", std::move(rows)}});
  }
  return out;
}

// An adapter that cannot even be read, as opposed to one that does not fit.
Status check_readable(const std::string& folder) {
  LK_RETURN_IF_ERROR(read_ordered_json_file(folder + "/adapter_config.json"));
  LK_RETURN_IF_ERROR(SafetensorsFile::open(folder + "/adapter_model.safetensors"));
  return {};
}

Result<OrderedJson> adapters(const std::vector<LoraFlag>& flags, const LinearTable& table,
                             const AdapterLoadOptions& options, size_t& bytes) {
  OrderedJson out = OrderedJson::array();
  for (const LoraFlag& flag : flags) {
    LK_ASSIGN_OR_RETURN(const std::string folder, find_adapter(flag.path, ""));
    const auto adapter = load_peft_adapter(folder, flag.name, table, options);
    if (!adapter && (adapter.error().kind == ErrorKind::kNotFound || !check_readable(folder)))
      return tl::unexpected<Error>(adapter.error());
    OrderedJson entry = {{"name", flag.name}, {"path", flag.path}, {"fits", adapter.has_value()}};
    if (adapter) {
      entry.update((*adapter)->describe());
      bytes += (*adapter)->bytes();
    } else {
      entry["error"] = adapter.error().message;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

// What `run` and `serve` read beside the weights. `error` says why they would not start, or would
// answer no messages for a template that is there.
OrderedJson text_files(const std::string& folder, const HfConfig& config, int vocab) {
  OrderedJson tokenizer = {{"found", true}}, chat_template = {{"found", true}};
  const auto note = [](OrderedJson& entry, const Error& error) {
    if (error.kind == ErrorKind::kNotFound) {
      entry["found"] = false;
    } else {
      entry["error"] = error.message;
    }
  };
  if (const auto loaded = Tokenizer::load(folder + "/tokenizer.json"); !loaded) {
    tokenizer["found"] = loaded.error().kind != ErrorKind::kNotFound;
    tokenizer["error"] = loaded.error().message;
  } else {
    tokenizer["ids"] = (*loaded)->vocab_size();
    if ((*loaded)->vocab_size() > vocab) {
      tokenizer["error"] =
          fmt::format("tokenizer.json has {} ids, but the model's vocabulary has {}",
                      (*loaded)->vocab_size(), vocab);
    }
  }
  if (const auto loaded = ChatTemplate::load(folder); !loaded) note(chat_template, loaded.error());
  OrderedJson generation = {{"found", config.generation_config != nullptr}};
  if (const auto defaults = sampling_defaults({}, config, {}); !defaults)
    generation["error"] = defaults.error().message;
  if (const auto ends = config.eos_token_ids(); !ends && !generation.contains("error"))
    generation["error"] = ends.error().message;
  return {{"tokenizer", tokenizer},
          {"chat_template", chat_template},
          {"generation_config", generation}};
}

}  // namespace

Result<OrderedJson> inspect_report(const InspectOptions& options) {
  const ModelFlags& flags = options.model;
  LK_ASSIGN_OR_RETURN(const std::string folder, find_model(flags.model, flags.revision));
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_flags(flags.lora));
  LK_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(checkpoint.config().model_type()));
  LK_ASSIGN_OR_RETURN(const LinearTable table, row->table(checkpoint.config()));
  LK_ASSIGN_OR_RETURN(const DecoderSpec spec, row->decoder(checkpoint.config()));
  LK_ASSIGN_OR_RETURN(const StoredModel stored, match_checkpoint(checkpoint, table));
  LK_ASSIGN_OR_RETURN(const DeviceChoice device,
                      choose_device({.device = flags.device,
                                     .kernels = flags.kernels,
                                     .threads = 1,
                                     .bytes = checkpoint.total_bytes()}));
  const Kernels* made = device.kernels.get();
  LK_ASSIGN_OR_RETURN(const std::vector<MoeGroup> moe, plan_moe(stored, table, spec, made->name(),
                                                                moe_options(flags, /*lora=*/true)));
  size_t adapter_bytes = 0;
  LK_ASSIGN_OR_RETURN(OrderedJson adapter_rows,
                      adapters(lora, table, flags.adapter_options, adapter_bytes));
  OrderedJson report;
  report["model"] = flags.model;
  report["architecture"] = table.architecture;
  report["sizes"] = sizes(spec);
  report["tensors"] = tensor_groups(stored);
  report["memory"] =
      memory(stored, make_kv_layout(spec, flags.kv_type), adapter_bytes, made->device());
  report.update(text_files(folder, checkpoint.config(), spec.vocab));
  report["device"] = {{"name", std::string(made->device().name())}, {"reason", device.why}};
  report["kernels"] = kernels(flags.kernels, *made);
  report["moe"] = moe_groups(moe);
  report["adapters"] = std::move(adapter_rows);
  report["warnings"] = stored.warnings;
  return report;
}

int inspect_command(const InspectOptions& options) {
  Output output;
  const auto report = inspect_report(options);
  if (!report) {
    print_error(report.error().message);
    return interrupted() ? kExitInterrupted : kExitUsage;
  }
  output.write(options.json
                   ? report->dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
                   : inspect_text(*report));
  bool usable = true;
  for (const char* part : {"tokenizer", "chat_template", "generation_config"}) {
    if (!(*report)[part].contains("error")) continue;
    print_error((*report)[part]["error"].get<std::string>());
    usable = false;
  }
  for (const OrderedJson& adapter : (*report)["adapters"]) {
    usable = usable && adapter["fits"].get<bool>();
  }
  return usable && !output.closed() ? kExitGood : kExitFailed;
}

}  // namespace lk

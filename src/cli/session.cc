#include "cli/session.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "adapters/adapter.h"
#include "cli/output.h"

namespace lk {
namespace {

constexpr int kMostSlots = 16;

}  // namespace

Result<std::unique_ptr<Session>> Session::load(const RunOptions& options) {
  LK_RETURN_IF_ERROR(check_model_folder(options.model.model));
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_flags(options.model.lora));
  std::unique_ptr<Session> session(new Session);
  const int slots = std::min<int>(kMostSlots, static_cast<int>(lora.size()));
  LK_ASSIGN_OR_RETURN(session->parts_,
                      load_model_parts(options.model, !lora.empty(), options.threads, slots));
  const ModelInfo& info = session->parts_.model->info();
  if (info.device_among) print_error(fmt::format("device {}: {}", info.device, info.device_reason));
  LK_RETURN_IF_ERROR(session->load_adapters(options, lora));

  EngineOptions engine_options;
  engine_options.max_sequences = options.max_num_seqs;
  engine_options.max_step_tokens = options.max_num_batched_tokens.value_or(
      std::max(default_step_tokens(session->parts_.model->device()), options.max_num_seqs));
  engine_options.max_model_len = options.max_model_len;
  engine_options.adapter_slots = slots;
  LK_ASSIGN_OR_RETURN(session->engine_,
                      Engine::create(*session->parts_.model,
                                     make_vocabulary(session->parts_.tokenizer,
                                                     session->parts_.model->info().vocab),
                                     engine_options));
  return session;
}

Status Session::load_adapters(const RunOptions& options, const std::vector<LoraFlag>& flags) {
  for (const LoraFlag& flag : flags) {
    LK_ASSIGN_OR_RETURN(
        const std::shared_ptr<const EngineAdapter> adapter,
        within_memory("adapter " + flag.path, file_bytes(flag.path + "/adapter_model.safetensors"),
                      [&] { return load_adapter(flag, options.model.adapter_options); }));
    adapters_[flag.name] = adapter;
  }
  return {};
}

Result<std::shared_ptr<const EngineAdapter>> Session::load_adapter(
    const LoraFlag& flag, const AdapterLoadOptions& options) {
  LK_ASSIGN_OR_RETURN(std::shared_ptr<const Adapter> adapter,
                      load_peft_adapter(flag.path, flag.name, parts_.model->linears(), options));
  for (const std::string& warning : adapter->warnings)
    print_warning(fmt::format("adapter {}: {}", flag.name, warning));
  const uint64_t identity = adapter->identity;
  return std::make_shared<const EngineAdapter>(
      EngineAdapter{flag.name, identity, parts_.model->prepare_adapter(std::move(adapter))});
}

Result<std::shared_ptr<const EngineAdapter>> Session::adapter(const std::string& name) const {
  if (name == "base") return nullptr;
  const auto at = adapters_.find(name);
  if (at != adapters_.end()) return at->second;
  std::vector<std::string> known = {"base"};
  for (const auto& [other, adapter] : adapters_) known.push_back(other);
  return fail(ErrorKind::kNotFound, "there is no adapter '{}'; loaded are: {}", name,
              fmt::join(known, ", "));
}

Result<std::vector<int32_t>> Session::encode_prompt(std::string_view text) const {
  return parts_.tokenizer->encode(text);
}

Result<std::vector<int32_t>> Session::encode_chat(const OrderedJson& messages,
                                                  const OrderedJson& tools,
                                                  const OrderedJson& extra_variables) const {
  if (!parts_.chat_template) return tl::unexpected<Error>(parts_.no_template);
  LK_ASSIGN_OR_RETURN(const std::string text,
                      parts_.chat_template->render(messages, tools, extra_variables,
                                                   /*add_generation_prompt=*/true));
  return parts_.tokenizer->encode(text, {.add_special_tokens = false});
}

}  // namespace lk

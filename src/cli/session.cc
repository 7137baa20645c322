#include "cli/session.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "adapters/adapter.h"
#include "cli/output.h"

namespace lk {
namespace {

constexpr int kMostSlots = 16;

uint64_t file_bytes(const std::string& path) {
  std::error_code missing;
  const uintmax_t bytes = std::filesystem::file_size(path, missing);
  return missing ? 0 : bytes;
}

// Runs `load`; where memory does not suffice, the error names what was loaded from a file of
// `bytes`.
template <typename Load>
auto within_memory(const std::string& what, uint64_t bytes, Load&& load) -> decltype(load()) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kResource, "memory ran out while {} of {} bytes was loaded", what,
                bytes);
  }
}

}  // namespace

Status check_model_folder(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return {};
  return fail(ErrorKind::kNotFound,
              "there is no model folder '{}': give the path of a folder with config.json and "
              "safetensors files",
              model);
}

Result<std::unique_ptr<Session>> Session::load(const RunOptions& options) {
  LK_RETURN_IF_ERROR(check_model_folder(options.model.model));
  LK_ASSIGN_OR_RETURN(const std::vector<LoraFlag> lora, parse_lora_flags(options.model.lora));
  std::unique_ptr<Session> session(new Session);
  const std::string& folder = options.model.model;
  const std::string tokenizer = folder + "/tokenizer.json";
  LK_ASSIGN_OR_RETURN(session->tokenizer_, within_memory(tokenizer, file_bytes(tokenizer), [&] {
                        return Tokenizer::load(tokenizer);
                      }));
  auto chat_template = ChatTemplate::load(folder);
  if (chat_template) {
    session->template_ = std::move(*chat_template);
  } else {
    session->no_template_ = chat_template.error();
  }

  StatusLine status;
  ModelOptions model_options;
  model_options.kernels = options.model.kernels;
  model_options.threads = options.threads;
  model_options.kv_type = options.model.kv_type;
  model_options.adapter_slots = std::min<int>(kMostSlots, static_cast<int>(lora.size()));
  model_options.progress = [&status](size_t done, size_t total) {
    if (status.due())
      status.show("loading the model " +
                  progress_bar(static_cast<double>(done) /
                               static_cast<double>(std::max<size_t>(1, total))));
  };
  LK_ASSIGN_OR_RETURN(session->model_, Model::load(folder, model_options));
  status.clear();
  const ModelInfo& info = session->model_->info();
  for (const std::string& warning : info.warnings) print_warning(warning);
  LK_RETURN_IF_ERROR(session->load_adapters(options, lora));

  EngineOptions engine_options;
  engine_options.max_sequences = options.max_num_seqs;
  engine_options.max_step_tokens = options.max_num_batched_tokens.value_or(
      std::max(engine_options.max_step_tokens, options.max_num_seqs));
  engine_options.max_model_len = options.max_model_len;
  engine_options.adapter_slots = model_options.adapter_slots;
  LK_ASSIGN_OR_RETURN(
      session->engine_,
      Engine::create(*session->model_, make_vocabulary(session->tokenizer_, info.vocab),
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
                      load_peft_adapter(flag.path, flag.name, model_->linears(), options));
  for (const std::string& warning : adapter->warnings)
    print_warning(fmt::format("adapter {}: {}", flag.name, warning));
  const uint64_t identity = adapter->identity;
  return std::make_shared<const EngineAdapter>(
      EngineAdapter{flag.name, identity, model_->prepare_adapter(std::move(adapter))});
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
  return tokenizer_->encode(text);
}

Result<std::vector<int32_t>> Session::encode_chat(const OrderedJson& messages,
                                                  const OrderedJson& tools,
                                                  const OrderedJson& extra_variables) const {
  if (!template_) return tl::unexpected<Error>(no_template_);
  LK_ASSIGN_OR_RETURN(const std::string text, template_->render(messages, tools, extra_variables,
                                                                /*add_generation_prompt=*/true));
  return tokenizer_->encode(text, {.add_special_tokens = false});
}

}  // namespace lk

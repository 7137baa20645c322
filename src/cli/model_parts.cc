#include "cli/model_parts.h"

#include <algorithm>
#include <filesystem>

#include "cli/output.h"

namespace lk {

uint64_t file_bytes(const std::string& path) {
  std::error_code missing;
  const uintmax_t bytes = std::filesystem::file_size(path, missing);
  return missing ? 0 : bytes;
}

Status check_model_folder(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return {};
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    return invalid("cannot read the model folder {}: {}", model, error.message());
  }
  return fail(ErrorKind::kNotFound,
              "there is no model folder '{}': give the path of a folder with config.json and "
              "safetensors files",
              model);
}

MoeOptions moe_options(const ModelFlags& flags, bool lora) {
  return {.backend = flags.moe_backend,
          .activations = flags.activations,
          .lora = lora,
          .max_rank = flags.adapter_options.max_rank};
}

Result<ModelParts> load_model_parts(const ModelFlags& flags, bool lora, int threads,
                                    int adapter_slots) {
  ModelParts parts;
  const std::string folder = flags.tokenizer.empty() ? flags.model : flags.tokenizer;
  const std::string tokenizer = folder + "/tokenizer.json";
  LK_ASSIGN_OR_RETURN(parts.tokenizer, within_memory(tokenizer, file_bytes(tokenizer),
                                                     [&] { return Tokenizer::load(tokenizer); }));
  auto chat_template = ChatTemplate::load(folder);
  if (!chat_template && folder != flags.model) chat_template = ChatTemplate::load(flags.model);
  if (chat_template) {
    parts.chat_template = std::move(*chat_template);
  } else {
    parts.no_template = chat_template.error();
  }
  StatusLine status;
  ModelOptions options;
  options.device = flags.device;
  options.kernels = flags.kernels;
  options.moe = moe_options(flags, lora);
  options.threads = threads;
  options.kv_type = flags.kv_type;
  options.adapter_slots = adapter_slots;
  options.progress = [&status](size_t done, size_t total) {
    if (status.due())
      status.show("loading the model " +
                  progress_bar(static_cast<double>(done) /
                               static_cast<double>(std::max<size_t>(1, total))));
  };
  LK_ASSIGN_OR_RETURN(parts.model, Model::load(flags.model, options));
  status.clear();
  const int vocab = parts.model->info().vocab;
  if (!flags.tokenizer.empty() && parts.tokenizer->vocab_size() > vocab) {
    return invalid("{} has {} tokens, the model knows {}: it is another model's", tokenizer,
                   parts.tokenizer->vocab_size(), vocab);
  }
  for (const std::string& warning : parts.model->info().warnings) print_warning(warning);
  return parts;
}

}  // namespace lk

#include "model/quantize.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mmap_file.h"
#include "model/archs.h"
#include "model/output_folder.h"
#include "model/quantize_linear.h"
#include "model/quantize_plan.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

// Beside the weights: tokenizer, chat templates, defaults of generation, terms.
bool is_companion(std::string_view name) {
  constexpr std::string_view kNames[] = {"generation_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "preprocessor_config.json",
                                         "video_preprocessor_config.json",
                                         "processor_config.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "LICENSE",
                                         "LICENSE.txt",
                                         "LICENSE.md",
                                         "USAGE_POLICY",
                                         "NOTICE"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         name.starts_with("tokenizer") || name.starts_with("chat_template") ||
         name.ends_with(".tiktoken");
}

Status copy_companions(const std::string& in, const std::string& out) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(in, error)) {
    const std::string name = entry.path().filename();
    const bool templates = name == "additional_chat_templates" && entry.is_directory();
    if (!templates && (!entry.is_regular_file() || !is_companion(name))) continue;
    fs::copy(entry.path(), fs::path(out) / name, fs::copy_options::recursive, error);
    if (error) {
      return fail(ErrorKind::kResource, "cannot copy {} to {}: {}", entry.path().string(), out,
                  error.message());
    }
  }
  if (error) return fail(ErrorKind::kResource, "cannot list {}: {}", in, error.message());
  return {};
}

Status write_configs(const std::string& in, const std::string& out, const Target& target,
                     const ModuleNames& names) {
  LK_ASSIGN_OR_RETURN(OrderedJson config, read_ordered_json_file(in + "/config.json"));
  config.erase("quantization_config");
  config.erase("compression_config");
  config["quantization_config"] = target.tool->config(target, names);
  if (target.tool->hf_quant_config) {
    LK_RETURN_IF_ERROR(
        write_text_file(out + "/hf_quant_config.json",
                        json_file_text(target.tool->hf_quant_config(target, names))));
  }
  return write_text_file(out + "/config.json", json_file_text(config));
}

// A tensor as it is, in pieces whose pages are given back.
Result<bool> copy_tensor(const SafetensorsWriter& writer, size_t tensor, const TensorView& view,
                         const std::function<bool(uint64_t)>& wrote) {
  constexpr size_t kPiece = size_t{8} << 20;
  const size_t bytes = view.bytes();
  for (size_t at = 0; at < bytes; at += kPiece) {
    const size_t n = std::min(kPiece, bytes - at);
    LK_RETURN_IF_ERROR(writer.write(tensor, at, {view.data + at, n}));
    drop_mapped_pages(view.data + at, n);
    if (!wrote(n)) return false;
  }
  return true;
}

void warn_of_unmatched(const NamePatterns& keep, const LinearTable& table,
                       const StoredModel& stored, QuantizeReport& report) {
  std::vector<std::string> paths;
  for (const LinearSpec& spec : table.linears) {
    for (int e = -1; e < spec.experts; ++e) {
      for (std::string& path : keep_spellings(table, stored.prefix, spec, e))
        paths.push_back(std::move(path));
    }
  }
  for (const std::string& pattern : keep.unmatched(paths)) {
    report.warnings.push_back(
        fmt::format("--keep {} names no linear of the model", pattern.substr(0, 200)));
  }
}

struct Work {
  const Checkpoint& checkpoint;
  const QuantizePlan& plan;
  const QuantizeOptions& options;
  QuantizeReport& report;
};

// False if it was stopped.
Result<bool> write_tensors(const Work& work, const SafetensorsWriter& writer) {
  uint64_t done = 0;
  const auto wrote = [&](uint64_t bytes) {
    done += bytes;
    return !work.options.progress || work.options.progress(done, writer.total_bytes());
  };
  ThreadPool pool(work.options.threads);
  LinearWriter linears(*work.options.target, work.plan, writer, pool, work.options.measure, wrote);
  for (const PlannedLinear& linear : work.plan.linears) {
    if (linear.fate == Fate::kNone) continue;
    LK_RETURN_IF_ERROR(check_finite(*linear.source));
    bool go_on = true;
    if (linear.fate == Fate::kCopied) {
      size_t tensor = linear.first_tensor;
      for (const StoredTensor& stored : linear.source->tensors) {
        if (!go_on) break;
        LK_ASSIGN_OR_RETURN(go_on, copy_tensor(writer, tensor++, stored.view, wrote));
      }
    } else {
      LK_ASSIGN_OR_RETURN(go_on, linears.write(linear));
      for (const StoredTensor& stored : linear.source->tensors) {
        drop_mapped_pages(stored.view.data, stored.view.bytes());
      }
    }
    if (!go_on) return false;
    const Fate fate = linear.fate;
    const std::string_view from = linear.source->format->name;
    work.report.linears.push_back(
        {linear.name, from,
         fate == Fate::kCopied    ? from
         : fate == Fate::kDecoded ? "bf16"
                                  : work.options.target->stored->name,
         fate == Fate::kEncoded || fate == Fate::kDecoded ? linears.error() : 0});
  }
  for (const auto& [tensor, name] : work.plan.copied) {
    const TensorView& view = *work.checkpoint.find(name);
    LK_RETURN_IF_ERROR(check_finite(view, name, /*mapped=*/true));
    LK_ASSIGN_OR_RETURN(const bool go_on, copy_tensor(writer, tensor, view, wrote));
    if (!go_on) return false;
  }
  return true;
}

}  // namespace

Result<QuantizeReport> quantize_checkpoint(const std::string& in, const std::string& out,
                                           const QuantizeOptions& options) {
  QuantizeReport report;
  LK_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(in));
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(checkpoint.config().model_type()));
  LK_ASSIGN_OR_RETURN(const LinearTable table, row->table(checkpoint.config()));
  LK_ASSIGN_OR_RETURN(const StoredModel stored, match_checkpoint(checkpoint, table));
  report.warnings = stored.warnings;
  LK_ASSIGN_OR_RETURN(const NamePatterns keep,
                      NamePatterns::make(options.keep, PatternStyle::kTransformers, "--keep"));
  warn_of_unmatched(keep, table, stored, report);
  LK_ASSIGN_OR_RETURN(const QuantizePlan plan,
                      plan_quantization(checkpoint, table, stored, *options.target, keep));
  LK_RETURN_IF_ERROR(check_outside(out, in));
  LK_ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::make(out, {in}));
  LK_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create(out, "model", plan.tensors, options.shard_bytes));
  report.bytes = writer.total_bytes();
  LK_ASSIGN_OR_RETURN(const bool whole, write_tensors({checkpoint, plan, options, report}, writer));
  if (!whole) {
    report.stopped = true;
    return report;
  }
  LK_RETURN_IF_ERROR(copy_companions(in, out));
  LK_RETURN_IF_ERROR(writer.finish());
  LK_RETURN_IF_ERROR(write_configs(in, out, *options.target, plan.names));
  folder.keep();
  return report;
}

}  // namespace lk

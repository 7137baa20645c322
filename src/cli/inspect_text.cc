#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/inspect.h"

namespace lk {
namespace {

std::string human_bytes(size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string text(const OrderedJson& value) { return value.get<std::string>(); }
size_t size(const OrderedJson& value) { return value.get<size_t>(); }

std::string shape(const OrderedJson& dimensions) {
  std::string out;
  for (const OrderedJson& dimension : dimensions)
    out += (out.empty() ? "" : " x ") + dimension.dump();
  return out;
}

void add_adapter(std::string& out, const OrderedJson& adapter) {
  if (!adapter["fits"].get<bool>()) {
    out += fmt::format("  {}: does not fit: {}\n", text(adapter["name"]), text(adapter["error"]));
    return;
  }
  const OrderedJson& totals = adapter["totals"];
  out += fmt::format("  {}: fits; {} modules, {} pairs, rank up to {}, {}, identity {}\n",
                     text(adapter["name"]), size(totals["modules"]), size(totals["pairs"]),
                     size(totals["max_rank"]), human_bytes(size(totals["bytes"])),
                     text(adapter["identity"]));
  // Modules of one stage that are alike in every layer make one row.
  std::vector<std::pair<std::string, std::vector<int>>> rows;
  for (const OrderedJson& module : adapter["modules"]) {
    std::string row = fmt::format("{:<15} rank {} scale {}", text(module["stage"]),
                                  module["ranks"].dump(), module["scales"].dump());
    if (module.contains("experts"))
      row += fmt::format(" experts {} of {}", size(module["experts_adapted"]),
                         size(module["experts"]));
    auto same = std::find_if(rows.begin(), rows.end(),
                             [&](const auto& other) { return other.first == row; });
    if (same == rows.end()) same = rows.insert(rows.end(), {row, {}});
    if (module.contains("layer")) same->second.push_back(module["layer"].get<int>());
  }
  for (const auto& [row, layers] : rows) {
    out += fmt::format("    {}{}\n", row,
                       layers.empty() ? ""
                                      : fmt::format(" in {} layers ({}..{})", layers.size(),
                                                    layers.front(), layers.back()));
  }
  for (const OrderedJson& name : adapter["not_adapted"])
    out += fmt::format("    not adapted: {}\n", text(name));
  for (const OrderedJson& warning : adapter["warnings"])
    out += fmt::format("    warning: {}\n", text(warning));
}

std::string text_file(std::string_view name, const OrderedJson& entry, std::string_view missing) {
  std::string state = "good";
  if (!entry["found"].get<bool>()) {
    state = missing;
  } else if (entry.contains("error")) {
    state = "cannot be used: " + text(entry["error"]);
  } else if (entry.contains("ids")) {
    state = fmt::format("good, {} ids", size(entry["ids"]));
  }
  return fmt::format("  {:<14} {}\n", name, state);
}

}  // namespace

std::string inspect_text(const OrderedJson& report) {
  std::string out = fmt::format("{}: {}\n ", text(report["model"]), text(report["architecture"]));
  for (const auto& [key, value] : report["sizes"].items())
    out += fmt::format(" {} {},", key, value.dump());
  out.back() = '\n';
  out += "\ntensors\n";
  for (const OrderedJson& group : report["tensors"]) {
    out += fmt::format("  {:<15} {:<12} {:>4} of {:<20} {:>10}\n", text(group["stage"]),
                       text(group["format"]), size(group["count"]), shape(group["shape"]),
                       human_bytes(size(group["bytes"])));
  }
  const OrderedJson& memory = report["memory"];
  out += fmt::format("  {:<54} {:>10}\n", "norms and the like",
                     human_bytes(size(memory["other_bytes"])));
  out += fmt::format("\nmemory\n  weights {}\n", human_bytes(size(memory["weight_bytes"])));
  out += fmt::format("  KV cache ({}) {} a token of long context, {} for 1,024 tokens\n",
                     text(memory["kv_dtype"]), human_bytes(size(memory["kv_bytes_per_token"])),
                     human_bytes(size(memory["kv_bytes_per_1k_context"])));
  for (const OrderedJson& group : memory["kv_groups"]) {
    const size_t window = size(group["window"]);
    out += fmt::format("    {} layers {}\n", size(group["layers"]),
                       window == 0 ? "see everything" : fmt::format("see {} tokens", window));
  }
  if (const size_t state = size(memory["state_bytes_per_sequence"]); state > 0)
    out += fmt::format("  recurrent layers {} a sequence\n", human_bytes(state));
  out += fmt::format("  adapters {}\n  available {}\n\ntext\n",
                     human_bytes(size(memory["adapter_bytes"])),
                     human_bytes(size(memory["available_bytes"])));
  out += text_file("tokenizer", report["tokenizer"], "none: run and serve need tokenizer.json");
  out += text_file("chat template", report["chat_template"], "none: messages cannot be answered");
  out += text_file("generation", report["generation_config"], "no generation_config.json");
  out += fmt::format("\ndevice {}: {}\n", report["device"]["name"].get<std::string>(),
                     report["device"]["reason"].get<std::string>());
  out += "\nkernels\n";
  for (const OrderedJson& row : report["kernels"]) {
    out += fmt::format("{} {:<12} {}\n", row["chosen"].get<bool>() ? "*" : " ", text(row["name"]),
                       text(row["reason"]));
  }
  for (const OrderedJson& group : report["moe"]) {
    const size_t first = size(group["first_layer"]), last = size(group["last_layer"]);
    const std::string up = text(group["up_format"]), down = text(group["down_format"]);
    out +=
        fmt::format("\nexperts of layer{} ({})\n",
                    first == last ? fmt::format(" {}", first) : fmt::format("s {}-{}", first, last),
                    up == down ? up : up + " and " + down);
    for (const OrderedJson& row : group["backends"]) {
      out += fmt::format("{} {:<14} {}\n", row["chosen"].get<bool>() ? "*" : " ", text(row["name"]),
                         text(row["reason"]));
    }
  }
  if (!report["adapters"].empty()) out += "\nadapters\n";
  for (const OrderedJson& adapter : report["adapters"]) add_adapter(out, adapter);
  for (const OrderedJson& warning : report["warnings"])
    out += fmt::format("\nwarning: {}\n", text(warning));
  return out;
}

}  // namespace lk

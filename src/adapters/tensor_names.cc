#include "adapters/tensor_names.h"

#include <algorithm>
#include <charconv>

namespace lk {
namespace {

using Segments = std::vector<std::string_view>;

Segments split(std::string_view path) {
  Segments out;
  size_t begin = 0;
  while (true) {
    const size_t end = path.find('.', begin);
    out.push_back(path.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

std::string join(const Segments& segments, size_t begin) {
  std::string out;
  for (size_t i = begin; i < segments.size(); ++i) {
    if (i > begin) out += '.';
    out += segments[i];
  }
  return out;
}

// Modules that distributed training, compilation and checkpointing wrap around others.
bool is_wrapper(std::string_view segment) {
  return segment == "_orig_mod" || segment == "_fsdp_wrapped_module" ||
         segment == "_checkpoint_wrapped_module";
}

struct RoleRow {
  std::string_view segment;
  TensorRole role;
};
constexpr RoleRow kRoles[] = {
    {"lora_A", TensorRole::kA},
    {"lora_B", TensorRole::kB},
    {"lora_embedding_A", TensorRole::kEmbeddingA},
    {"lora_embedding_B", TensorRole::kEmbeddingB},
    {"lora_magnitude_vector", TensorRole::kMagnitude},
};

// The role of `role.<tail>`: PEFT removes the adapter's name when saving, but files made by hand
// keep it as the first segment of the tail ("lora_A.default.weight").
TensorRole role_with_tail(TensorRole role, const Segments& tail) {
  const bool weight = !tail.empty() && tail.back() == "weight" && tail.size() <= 2;
  switch (role) {
    case TensorRole::kA:
    case TensorRole::kB:
      if (weight) return role;
      return !tail.empty() && tail.back() == "bias" && tail.size() <= 2 ? TensorRole::kBias
                                                                        : TensorRole::kOther;
    case TensorRole::kEmbeddingA:
    case TensorRole::kEmbeddingB:
      return tail.size() <= 1 || weight ? role : TensorRole::kOther;
    default:
      return role;
  }
}

std::optional<int64_t> plain_number(std::string_view text) {
  if (text.empty() || text.size() > 9 || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string_view leaf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

LinearIndex::LinearIndex(const LinearTable& table)
    : table_(&table), root_segments_{"base_model", "model", "language_model", "module"} {
  for (const std::string& prefix : table.prefixes) {
    for (std::string_view segment : split(prefix)) {
      if (!segment.empty()) root_segments_.emplace(segment);
    }
  }
  for (const LinearSpec& spec : table.linears) {
    for (const LinearName& name : spec.names) {
      const LinearPlace place{&spec, &name};
      switch (name.form) {
        case NameForm::kModule:
          modules_.emplace(name.path, place);
          break;
        case NameForm::kExpertModule:
          expert_modules_.emplace(name.path, place);
          break;
        case NameForm::kParameterOutIn:
        case NameForm::kParameterInOut: {
          const size_t dot = name.path.rfind('.');
          auto& siblings = parameters_[dot == std::string::npos ? "" : name.path.substr(0, dot)];
          const bool known =
              std::any_of(siblings.begin(), siblings.end(),
                          [&](const LinearPlace& other) { return other.name->path == name.path; });
          if (!known) siblings.push_back(place);
          break;
        }
      }
    }
  }
}

std::string LinearIndex::without_root(std::string_view path) const {
  const Segments segments = split(path);
  size_t begin = 0;
  while (begin + 1 < segments.size() && root_segments_.count(std::string(segments[begin]))) ++begin;
  return join(segments, begin);
}

AdapterTensorName LinearIndex::parse(std::string_view tensor) const {
  AdapterTensorName out;
  Segments segments = split(tensor);
  std::erase_if(segments, is_wrapper);
  size_t module_end = segments.size();
  for (size_t i = segments.size(); i-- > 0 && module_end == segments.size();) {
    for (const RoleRow& row : kRoles) {
      if (segments[i] != row.segment) continue;
      out.role = role_with_tail(
          row.role, Segments(segments.begin() + static_cast<ptrdiff_t>(i) + 1, segments.end()));
      module_end = i;
    }
  }
  if (module_end == segments.size() && segments.size() >= 2) {
    const std::string_view last = segments.back(), parent = segments[segments.size() - 2];
    if (parent == "base_layer" && last == "weight") out.role = TensorRole::kBaseWeight;
    if (parent == "rotary_emb" && last == "inv_freq") out.role = TensorRole::kRotaryTable;
    module_end = segments.size() - 1;
  }
  segments.resize(module_end);
  const size_t count = segments.size();
  std::erase(segments, "base_layer");
  out.depth = static_cast<int>(count - segments.size());
  const bool peft_root =
      segments.size() > 2 && segments[0] == "base_model" && segments[1] == "model";
  out.trained_path = join(segments, peft_root ? 2 : 0);
  out.path = without_root(out.trained_path);
  return out;
}

LinearPlace LinearIndex::module(const std::string& path) const {
  const auto it = modules_.find(path);
  return it == modules_.end() ? LinearPlace{} : it->second;
}

std::optional<LinearIndex::ExpertPlace> LinearIndex::expert_module(const std::string& path) const {
  Segments segments = split(path);
  for (size_t i = segments.size(); i-- > 0;) {
    const std::optional<int64_t> number = plain_number(segments[i]);
    if (!number) continue;
    const std::string_view kept = segments[i];
    segments[i] = "{expert}";
    const auto it = expert_modules_.find(join(segments, 0));
    if (it != expert_modules_.end()) return ExpertPlace{it->second, *number};
    segments[i] = kept;
  }
  return std::nullopt;
}

const std::vector<LinearPlace>* LinearIndex::parameters_of(const std::string& path) const {
  const auto it = parameters_.find(path);
  return it == parameters_.end() ? nullptr : &it->second;
}

}  // namespace lk

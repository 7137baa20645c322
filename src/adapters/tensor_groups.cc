#include "adapters/tensor_groups.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace lk {
namespace {

bool is_a(TensorRole role) { return role == TensorRole::kA || role == TensorRole::kEmbeddingA; }
bool is_embedding(TensorRole role) {
  return role == TensorRole::kEmbeddingA || role == TensorRole::kEmbeddingB;
}

struct Half {
  std::string name;
  TensorView view;
  AdapterTensorName parsed;
};
struct Halves {
  std::vector<Half> a, b;
};

Status check_half(const std::string& name, const TensorView& view) {
  if (view.dtype != DType::kF32 && view.dtype != DType::kF16 && view.dtype != DType::kBF16) {
    return unsupported("tensor {} has type {}, expected F32, F16 or BF16", name,
                       dtype_name(view.dtype));
  }
  if (view.shape.size() != 2) {
    return unsupported("tensor {} has shape {}, expected two dimensions (PEFT's layout)", name,
                       shape_string(view.shape));
  }
  return {};
}

// PEFT copies the frozen embedding or head into the file when it carries a pair; only its shape can
// differ.
Status check_base_copy(const std::string& name, const AdapterTensorName& parsed,
                       const TensorView& view, const LinearIndex& index) {
  const LinearSpec* spec = index.module(parsed.path).spec;
  const Shape expected = spec ? Shape{spec->out, spec->in} : Shape{};
  if (view.shape == expected) return {};
  return unsupported(
      "tensor {} has shape {}, but the base model has {} (a resized vocabulary is not supported)",
      name, shape_string(view.shape), shape_string(expected));
}

// A trained weight that replaces the base's. Empty if the tensor is something else.
std::string replaced_weight(const std::string& name, const AdapterTensorName& parsed,
                            const TensorView& view, const LinearIndex& index) {
  const LinearSpec* spec = index.module(parsed.path).spec;
  if (!spec || leaf(name) != "weight") return {};
  const Shape expected{spec->out, spec->in};
  return fmt::format(
      "tensor {} holds full weights {} for {}, where the base model has {}; adapters with fully "
      "trained "
      "modules{} are not supported",
      name, shape_string(view.shape), spec->path(), shape_string(expected),
      view.shape == expected ? "" : " or a resized vocabulary");
}

Result<TensorGroup> join(Halves halves) {
  if (halves.a.size() > 1 || halves.b.size() > 1) {
    const auto& twice = halves.a.size() > 1 ? halves.a : halves.b;
    return invalid("tensors {} and {} name the same matrix", twice[0].name, twice[1].name);
  }
  if (halves.a.empty() || halves.b.empty()) {
    const Half& lone = halves.a.empty() ? halves.b[0] : halves.a[0];
    return invalid("tensor {} has no partner: expected {} for the same module", lone.name,
                   halves.a.empty() ? "its lora_A" : "its lora_B");
  }
  Half& a = halves.a[0];
  Half& b = halves.b[0];
  if (is_embedding(a.parsed.role) != is_embedding(b.parsed.role)) {
    return invalid("tensors {} and {} are halves of different kinds", a.name, b.name);
  }
  if (a.view.shape[0] == 0 || b.view.shape[1] == 0) {
    const Half& empty = a.view.shape[0] == 0 ? a : b;
    return invalid("tensor {} has shape {}, which is rank 0", empty.name,
                   shape_string(empty.view.shape));
  }
  TensorGroup group{std::move(a.parsed), {a.name, b.name, a.view, b.view}};
  return group;
}

}  // namespace

std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string out = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + std::min(names.size(), kShown), ", "));
  if (names.size() > kShown) out += fmt::format(" and {} more", names.size() - kShown);
  return out;
}

Result<GroupedTensors> group_tensors(const AdapterTensors& tensors, const LinearIndex& index) {
  std::map<std::pair<std::string, int>, Halves> halves;
  std::vector<std::string> unknown, magnitudes, biases, replaced, copies;
  GroupedTensors out;
  for (const auto& [name, view] : tensors) {
    AdapterTensorName parsed = index.parse(name);
    switch (parsed.role) {
      case TensorRole::kA:
      case TensorRole::kB:
      case TensorRole::kEmbeddingA:
      case TensorRole::kEmbeddingB: {
        LK_RETURN_IF_ERROR(check_half(name, view));
        Halves& both = halves[{parsed.path, parsed.depth}];
        (is_a(parsed.role) ? both.a : both.b).push_back({name, view, std::move(parsed)});
        break;
      }
      case TensorRole::kMagnitude:
        magnitudes.push_back(name);
        break;
      case TensorRole::kBias:
        biases.push_back(name);
        break;
      case TensorRole::kBaseWeight:
        LK_RETURN_IF_ERROR(check_base_copy(name, parsed, view, index));
        copies.push_back(name);
        break;
      case TensorRole::kRotaryTable:
        out.warnings.push_back(
            fmt::format("tensor {} is a constant of the architecture and is ignored", name));
        break;
      case TensorRole::kOther:
        if (std::string sentence = replaced_weight(name, parsed, view, index); !sentence.empty()) {
          replaced.push_back(std::move(sentence));
        } else {
          unknown.push_back(fmt::format("{} {}", name, shape_string(view.shape)));
        }
        break;
    }
  }
  if (!magnitudes.empty()) {
    return unsupported("the file has DoRA magnitude vectors, which are not supported: {}",
                       list_some(magnitudes));
  }
  if (!biases.empty()) {
    return unsupported("the file has biases beside lora_A or lora_B, which are not supported: {}",
                       list_some(biases));
  }
  if (!replaced.empty()) return unsupported("{}", list_some(replaced));
  if (!unknown.empty()) {
    return unsupported("{} tensors of the file are no LoRA pairs in PEFT's layout: {}",
                       unknown.size(), list_some(unknown));
  }
  if (!copies.empty()) {
    out.warnings.push_back(fmt::format(
        "copies of frozen base weights in the file are ignored, without comparing them: {}",
        list_some(copies)));
  }
  for (auto& [key, both] : halves) {
    LK_ASSIGN_OR_RETURN(TensorGroup group, join(std::move(both)));
    out.groups.push_back(std::move(group));
  }
  if (out.groups.empty()) return invalid("the file has no LoRA tensors");
  return out;
}

}  // namespace lk

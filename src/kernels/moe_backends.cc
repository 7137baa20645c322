#include "kernels/moe_backends.h"

#include <fmt/format.h>

#include <algorithm>

namespace lk {
namespace {

constexpr Element kEveryElement[] = {Element::kF32, Element::kF16, Element::kBF16, Element::kE4M3,
                                     Element::kE2M1};
constexpr Element kE2m1Only[] = {Element::kE2M1};
constexpr Element kE4m3Only[] = {Element::kE4M3};
constexpr Activation kEveryActivation[] = {Activation::kClampedSwiGlu, Activation::kSwiGlu,
                                           Activation::kRelu2};

constexpr std::string_view kCuda = "cuda";

constexpr MoeBackend kBackends[] = {
    {.name = "cpu-w4a8",
     .what = "4-bit weights, activations rounded to int8 in groups of 32 or 16 channels",
     .elements = kE2m1Only,
     .form = {.activations = ActivationForm::kInt8},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 0.77},
    {.name = "cpu-w8a8",
     .what = "FP8 weights, activations rounded to E4M3 as the checkpoint intends",
     .elements = kE4m3Only,
     .form = {.activations = ActivationForm::kE4M3},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 1.01},
    {.name = "cpu-w8a8-int8",
     .what = "FP8 weights requantized to int8 in groups of 128 channels, activations to int8 in "
             "groups of 32",
     .elements = kE4m3Only,
     .form = {.activations = ActivationForm::kInt8, .int8_weights = true},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 0.68},
    {.name = "cpu-w16",
     .what = "weights decoded in registers, activations float32 (bfloat16 on avx512bf16)",
     .not_on = "reference",
     .elements = kEveryElement,
     .form = {},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 1},
    {.name = "cuda-w8a8",
     .what = "on a GPU: FP8 weights as they are, activations rounded to E4M3 as the checkpoint "
             "intends, FP8 products in tensor cores (decoded below compute capability 8.9)",
     .only_on = kCuda,
     .elements = kE4m3Only,
     .form = {.activations = ActivationForm::kE4M3},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 1},
    {.name = "cuda-w16",
     .what =
         "on a GPU: weights decoded to bfloat16 inside a tensor-core loop, activations bfloat16",
     .only_on = kCuda,
     .elements = kEveryElement,
     .form = {},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 1},
    {.name = "reference",
     .what = "plain loops",
     .elements = kEveryElement,
     .form = {.plain_loops = true},
     .activations = kEveryActivation,
     .ungated = true,
     .cost = 100},
};

template <typename T>
bool contains(std::span<const T> values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool quantizes(const MoeBackend& row) {
  return row.form.activations != ActivationForm::kUnquantized;
}

std::string_view activations_of(const MoeBackend& row) {
  switch (row.form.activations) {
    case ActivationForm::kUnquantized:
      return "leaves activations unquantized";
    case ActivationForm::kInt8:
      return "rounds activations to int8";
    case ActivationForm::kE4M3:
      return "rounds activations to E4M3";
  }
  return "";
}

// The first capability that a row lacks, in words; empty if it has all.
std::string lacking(const MoeBackend& row, const MoeNeeds& needs, bool named) {
  if (!same_device(row, needs.kernels)) {
    return row.only_on.empty() ? "computes on the CPU"
                               : fmt::format("runs on the {} kernels alone", row.only_on);
  }
  if (row.not_on == needs.kernels) {
    return fmt::format("does not run on the {} kernels", needs.kernels);
  }
  for (const Format* format : {needs.up, needs.down}) {
    if (!contains(row.elements, format->element))
      return fmt::format("does not take {} weights", format->name);
  }
  if (!contains(row.activations, needs.activation)) return "lacks the layer's activation function";
  if (needs.gated && !row.gated) return "takes no gated experts";
  if (!needs.gated && !row.ungated) return "takes gated experts only";
  if (needs.bias && !row.bias) return "adds no bias";
  if (needs.hidden % row.channels_multiple != 0 ||
      needs.intermediate % row.channels_multiple != 0) {
    return fmt::format("needs multiples of {} channels, and these are {} and {}",
                       row.channels_multiple, needs.hidden, needs.intermediate);
  }
  if (needs.lora && !row.supports_lora) return "takes no adapters, and LoRA is enabled";
  if (needs.lora && needs.max_rank > row.max_rank) {
    return fmt::format("takes adapters up to rank {}, and rank {} is allowed", row.max_rank,
                       needs.max_rank);
  }
  if (needs.activations == ActivationPrecision::kBF16 && quantizes(row))
    return fmt::format("{}, and --activations bf16 forbids it", activations_of(row));
  if (named && needs.activations == ActivationPrecision::k8Bit && !quantizes(row))
    return fmt::format("{}, and --activations 8bit asks for 8-bit ones", activations_of(row));
  if (named) return "";
  if (row.form.int8_weights) return "requantizes the weights: by name only";
  if (!needs.activations && quantizes(row)) {
    return fmt::format("{}: by --activations 8bit or by name only", activations_of(row));
  }
  if (!row.supports_lora) return "takes no adapters: by name only";
  return "";
}

// Where 8-bit activations are asked for, rows that have them come before all others; then the
// cheapest, then the table's order.
bool better(const MoeBackend& row, const MoeBackend& best, const MoeNeeds& needs) {
  if (needs.activations == ActivationPrecision::k8Bit && quantizes(row) != quantizes(best))
    return quantizes(row);
  return row.cost < best.cost;
}

std::string why_not(const MoeBackend& row, const MoeBackend& chosen, const MoeNeeds& needs) {
  if (needs.activations == ActivationPrecision::k8Bit && quantizes(row) != quantizes(chosen))
    return fmt::format("{}, and --activations 8bit asks for 8-bit ones", activations_of(row));
  return fmt::format("costs {:.3g} times as much as {}", row.cost / chosen.cost, chosen.name);
}

std::string all_reasons(std::span<const MoeVerdict> verdicts) {
  std::string reasons;
  for (const MoeVerdict& verdict : verdicts) {
    reasons +=
        fmt::format("{}{} {}", reasons.empty() ? "" : "; ", verdict.backend->name, verdict.reason);
  }
  return reasons;
}

std::string known_names(std::span<const MoeBackend> table) {
  std::string names = "auto";
  for (const MoeBackend& row : table) names += fmt::format(", {}", row.name);
  return names;
}

}  // namespace

std::span<const MoeBackend> moe_backends() { return kBackends; }

bool same_device(const MoeBackend& row, std::string_view kernels) {
  return row.only_on.empty() ? kernels != kCuda : row.only_on == kernels;
}

Result<MoeChoice> choose_moe_backend(const MoeNeeds& needs, std::string_view name,
                                     std::span<const MoeBackend> table) {
  const bool automatic = name.empty() || name == "auto";
  MoeChoice choice;
  for (const MoeBackend& row : table) {
    if (!automatic && row.name != name) {
      choice.verdicts.push_back({&row, "not asked for"});
      continue;
    }
    std::string reason = lacking(row, needs, !automatic);
    if (!automatic && !reason.empty()) return unsupported("--moe-backend {} {}", row.name, reason);
    if (reason.empty() && (!choice.backend || better(row, *choice.backend, needs)))
      choice.backend = &row;
    choice.verdicts.push_back({&row, std::move(reason)});
  }
  if (!choice.backend) {
    if (automatic) return unsupported("no backend computes them: {}", all_reasons(choice.verdicts));
    return invalid("there is no --moe-backend '{}'; known are {}", name, known_names(table));
  }
  for (MoeVerdict& verdict : choice.verdicts) {
    if (verdict.backend == choice.backend)
      verdict.reason = automatic ? "the cheapest that the layer's needs allow" : "asked for";
    else if (verdict.reason.empty())
      verdict.reason = why_not(*verdict.backend, *choice.backend, needs);
  }
  return choice;
}

}  // namespace lk

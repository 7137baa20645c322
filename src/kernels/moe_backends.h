// The table of ways to compute an expert layer: what each can do, and the oracle that takes the
// cheapest one that a layer's needs allow, with the reason why each other one was not taken.
// Stateless.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace lk {

// --activations: in what precision activations may meet quantized weights.
enum class ActivationPrecision : uint8_t { kBF16 /* or better */, k8Bit };

// What a layer group asks of a backend.
struct MoeNeeds {
  std::string_view kernels;  // Kernels::name() of what runs the rest of the model
  const Format* up = nullptr;
  const Format* down = nullptr;
  Activation activation = Activation::kClampedSwiGlu;
  bool gated = true;
  bool bias = false;
  int64_t hidden = 0, intermediate = 0;
  bool lora = true;                                // adapters may come
  int max_rank = 0;                                // of theirs
  std::optional<ActivationPrecision> activations;  // not set: bf16, or what a named backend has
};

struct MoeBackend {
  std::string_view name;
  std::string_view what;              // in words, for inspect
  std::string_view only_on = {};      // Kernels::name() on which alone it runs; empty: any of the
                                      // CPU's
  std::string_view not_on = {};       // row of kernels_table() on which it does not run
  std::span<const Element> elements;  // of weights
  ProductForm form;
  std::span<const Activation> activations;
  bool gated = true, ungated = false;
  bool bias = true;
  bool supports_lora = true;
  int max_rank = 1 << 16;
  int64_t channels_multiple = 1;  // of hidden and intermediate
  // Time of a layer relative to cpu-w16's, geometric mean over 1, 16 and 256 tokens with and
  // without adapters; bench/results/moe-backends.md.
  double cost = 1;
};

// Does the row compute where those kernels do?
bool same_device(const MoeBackend& row, std::string_view kernels);

// In order of preference among equal costs; the reference is the last row and takes everything.
std::span<const MoeBackend> moe_backends();

struct MoeVerdict {
  const MoeBackend* backend;
  std::string reason;  // why taken, or the first thing that it lacks
};

struct MoeChoice {
  const MoeBackend* backend = nullptr;
  std::vector<MoeVerdict> verdicts;  // of every row, in the table's order
};

// `name` empty or "auto": the cheapest that the needs allow. A name is honoured or refused with the
// capability that fails. Depends on the arguments alone: neither on adapters loaded (rows that take
// none are chosen by name only, with LoRA off) nor on a batch.
Result<MoeChoice> choose_moe_backend(const MoeNeeds& needs, std::string_view name,
                                     std::span<const MoeBackend> table = moe_backends());

}  // namespace lk

// The table of an architecture's linears: what each is called in every dialect, its shape, row
// order and stage. Each architecture exports one; weight loading, format detection, adapters,
// inspect, quantize and synth read only this. Plain values; immutable after construction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_view.h"

namespace lk {

// Where in the forward pass a linear stands (kernels/kernels.h is cut at these).
enum class Stage : uint8_t {
  kEmbedding,  // token id -> residual stream
  kQuery,
  kKey,
  kValue,
  kAttentionOut,
  kRouter,
  kExpertUp,    // first expert matrix: gate and up fused, or up alone
  kExpertDown,  // second expert matrix
  kSharedUp,    // the same of an expert that every token takes
  kSharedDown,
  kSharedGate,      // [1, hidden], its weight before a sigmoid
  kLatentIn,        // hidden -> the narrower space that the routed experts work in
  kLatentOut,       // and back
  kRecurrentIn,     // first projection of a recurrent mixer (DeltaNet's q, k, v; all of Mamba's)
  kRecurrentGate,   // DeltaNet's z
  kRecurrentDecay,  // DeltaNet's a
  kRecurrentBeta,   // DeltaNet's b
  kRecurrentOut,
  kHead,  // residual stream -> logits
};
std::string_view stage_name(Stage stage);
// False of the linears that the published recipes leave unquantized: embedding, router, head, and
// those that give one number for each head or token.
bool quantizers_take(Stage stage);

// Order of the output rows of a linear that holds two projections.
enum class RowOrder : uint8_t {
  kPlain,              // one projection
  kInterleavedGateUp,  // row 2i = gate i, row 2i+1 = up i (gpt-oss)
  kStackedGateUp,      // rows [0, out/2) gate, [out/2, out) up (Qwen, Mixtral, OLMoE)
};

// Which of a fused linear's rows one name covers.
enum class RowPart : uint8_t { kAll, kGate, kUp };

// How the tensor behind a name lies in a file.
enum class NameForm : uint8_t {
  kModule,        // module with `<path>.weight` [out, in] (or the parts of a quantized format) and
                  // `<path>.bias`
  kExpertModule,  // the same, one module for each expert; `path` contains "{expert}"
  kParameterOutIn,  // bare 3-D parameter `<path>` (E, out, in); quantized parts are
                    // `<path>_blocks`, `<path>_scales`; bias `<path>_bias`
  kParameterInOut,  // bare 3-D parameter `<path>` (E, in, out) when not quantized; quantized parts
                    // are (E, out, ...) all the same
};

struct LinearName {
  std::string
      path;  // without the root prefix, layer number filled in: "layers.3.mlp.experts.gate_up_proj"
  NameForm form = NameForm::kModule;
  RowPart part = RowPart::kAll;
};

// One linear of one layer (all its experts together).
struct LinearSpec {
  Stage stage;
  int layer = -1;   // -1: not in a layer (embedding, head)
  int experts = 0;  // 0: not an expert linear
  int64_t out = 0;  // rows of one expert's matrix
  int64_t in = 0;   // contraction length
  RowOrder row_order = RowOrder::kPlain;
  bool bias = false;  // [out] or [experts, out] stands in the checkpoint
  // Every name under which checkpoints and adapters know it; the first is the published
  // checkpoint's own. Names with part kGate/kUp come in pairs that together make the whole.
  std::vector<LinearName> names;

  const std::string& path() const { return names.front().path; }
};

// A tensor that is no linear: norms, sinks, convolution kernels.
struct PlainTensorSpec {
  std::string name;  // without the root prefix
  Shape shape;
  float offset = 0;  // added when it is read: 1 for norms that are stored around zero
};

struct LinearTable {
  std::string architecture;  // "gpt_oss"
  // Root prefixes that stand before every name except those in `rootless`; the first is canonical
  // ("model.").
  std::vector<std::string> prefixes;
  std::vector<std::string> rootless;  // top-level module paths without prefix, e.g. "lm_head"
  std::vector<LinearSpec> linears;    // layer by layer, in forward order
  std::vector<PlainTensorSpec> plain;
  std::vector<std::string>
      ignored;             // full-name prefixes that a text server skips ("model.visual.", "mtp.")
  bool tied_head = false;  // the head uses the embedding's matrix; no lm_head tensor is required

  // The linear of `stage` in `layer` (-1 for embedding and head); null if the architecture has
  // none.
  const LinearSpec* find(Stage stage, int layer) const;
  // `path` (of a linear, a plain tensor or anything below one) with `prefix` before it, unless it
  // is rootless.
  std::string full_name(std::string_view path, std::string_view prefix) const;
};

}  // namespace lk

// A product with one packed linear: which rows of x meet which expert, and what becomes of the
// sums. Host side; the kernels take these structures by value.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/cuda/context.h"
#include "kernels/cuda/packed.h"

namespace lk::cuda {

inline constexpr int kProductTile = 128;  // rows of x that a block of the tile kernel takes

// The entries, sorted by expert, and where each expert's begin. Dense: entry i is i, one expert.
// An entry names a row of z and of the output; for expert layers it is token * top_k + slot.
struct WorkMap {
  const int32_t* counts = nullptr;  // {active experts, tiles}; null: dense
  const int32_t* start = nullptr;   // [experts + 1] first of each expert in `list`
  const int32_t* active = nullptr;  // experts that have entries
  const int32_t* tiles = nullptr;   // [tiles][2] expert, first entry
  const int32_t* list = nullptr;    // the entries
  const int32_t* expert = nullptr;  // of each entry, by its number
  int entries = 0;                  // at most
  int experts = 1;
};

struct Operand {
  const __nv_bfloat16* x = nullptr;  // [rows, stride], stride a multiple of 64, zeros behind `in`
  int64_t stride = 0;
  int x_divisor = 1;      // row of x of an entry: entry / x_divisor
  int token_divisor = 1;  // token of an entry: entry / token_divisor
  // In place of x where weights meet codes. LoRA reads `full`, the products the codes.
  const float* full = nullptr;     // [rows, stride], the first `in` of a row
  const uint8_t* codes = nullptr;  // E4M3 [rows, stride], placed as place_of_codes says
  const float* scales = nullptr;   // [rows, row_scales] of the codes
  int row_scales = 0;
};

// The adapters' part: z = A x by entry, where any adapter touches the linear.
struct Adapters {
  const int32_t* slot = nullptr;       // [T]; null: none
  const void* const* table = nullptr;  // [slots] DevicePair of each expert
  const float* z = nullptr;            // [entries, z_stride]
  int z_stride = 0;
};

enum class Target : uint8_t {
  kStore,     // out[entry] = v
  kAdd,       // out[entry] += v
  kGatedAdd,  // out[entry] += sigmoid(factor[entry]) v
  kWeighted,  // out[entry] = factor[entry] v
  kActivate,  // mid[entry] = activation(v), float32 where weights meet codes
};
struct Epilogue {
  Target target = Target::kStore;
  float* out = nullptr;
  int64_t stride = 0;  // of out or mid
  const float* factor = nullptr;
  void* mid = nullptr;
  Activation activation = Activation::kSwiGlu;
  float alpha = 0, limit = 0;
};

struct Product {
  Matrix matrix;
  WorkMap map;
  Operand operand;
  Adapters adapters;
  Epilogue epilogue;
};

// call(std::integral_constant<Codec, codec>()): kernels are made for each codec.
template <typename Call>
void with_codec(Codec codec, const Call& call) {
  switch (codec) {
    case Codec::kBf16:
      return call(std::integral_constant<Codec, Codec::kBf16>{});
    case Codec::kBf16Rows:
      return call(std::integral_constant<Codec, Codec::kBf16Rows>{});
    case Codec::kMxfp4:
      return call(std::integral_constant<Codec, Codec::kMxfp4>{});
    case Codec::kNvfp4:
      return call(std::integral_constant<Codec, Codec::kNvfp4>{});
    case Codec::kFp8:
      return call(std::integral_constant<Codec, Codec::kFp8>{});
    case Codec::kMxfp8:
      return call(std::integral_constant<Codec, Codec::kMxfp8>{});
    case Codec::kFp8Block:
      return call(std::integral_constant<Codec, Codec::kFp8Block>{});
    case Codec::kFp8Codes:
      return call(std::integral_constant<Codec, Codec::kFp8Codes>{});
    case Codec::kMxfp8Codes:
      return call(std::integral_constant<Codec, Codec::kMxfp8Codes>{});
    case Codec::kFp8BlockCodes:
      return call(std::integral_constant<Codec, Codec::kFp8BlockCodes>{});
  }
}

// Rows of x a matrix meets on average decide between the two kernels; all that is known is on the
// host. How many: dense.cu.
void run_product(Context& context, Codec codec, const Product& product);
void run_small_product(Context& context, Codec codec, const Product& product, int average);
void run_tile_product(Context& context, Codec codec, const Product& product);
// Through cuBLASLt, for dense linears of kBf16Rows that are stored or added; without the adapters'
// part. False if it has no algorithm for the shape: nothing is computed then. `biased`: the linear
// has a bias.
bool run_blas_product(Context& context, const Product& product, bool biased);

// Fills product.adapters and launches z = A x, where an adapter may touch the linear.
void run_shrink(Context& context, const Batch& batch, const Linear& linear, Product& product);
// out += scale * B z, where run_shrink launched and what was launched since leaves the adapters
// out.
void run_expand(Context& context, const Product& product);

// Sorts [tokens * top_k] experts of pairs and, in the same launch, makes bfloat16 rows of x: [rows,
// in] float32 to [rows, parts * width]. Zeroes `tail_columns` of `tail` where given.
struct Prepare {
  const float* x = nullptr;
  __nv_bfloat16* to = nullptr;
  int rows = 0, in = 0, width = 0;
  __nv_bfloat16* tail = nullptr;  // [tail_rows, tail_width], columns from tail_first on become 0
  int tail_rows = 0, tail_width = 0, tail_first = 0;
  int parts = 1;  // 2: behind each row of `width` what bfloat16 leaves of it, as another one
};
void run_convert(Context& context, const Prepare& prepare);
WorkMap run_work_map(Context& context, const int32_t* expert, int pairs, int experts,
                     const Prepare& prepare);

// Makes E4M3 rows of x, as reference::quantize_activations has it: scale = max |x| / 448 of a group
// (or the power of two, or a fixed one), code = x / scale rounded to E4M3, ties to even. A group
// with a value that is no finite number gets the scale NaN.
struct Quantize {
  const float* x = nullptr;  // [.., stride], the first `in` of a row
  int64_t stride = 0;
  int in = 0;
  uint8_t* codes = nullptr;  // [rows, width], placed as place_of_codes says, zeros behind `in`
  float* scales = nullptr;   // [rows, row_scales]
  int rows = 0, width = 0, row_scales = 1;
  ActivationScale rule;             // groups of 32 or 128 channels, or the whole row
  int divisor = 1;                  // row of x: row / divisor
  const int32_t* expert = nullptr;  // [rows]; a row whose expert is negative is left alone
  const float* fixed = nullptr;     // [experts] scales of whole rows; 0: by the row's largest
};
void run_quantize(Context& context, const Quantize& quantize);
WorkMap run_work_map(Context& context, const int32_t* expert, int pairs, int experts,
                     const Quantize& quantize);

}  // namespace lk::cuda

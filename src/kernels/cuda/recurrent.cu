#include "kernels/cuda/recurrent.cuh"

#include "base/check.h"

namespace lk::cuda {
namespace {

constexpr int kChannels = 128;   // of a convolution's block
constexpr int kConvTokens = 32;  // of a convolution's block
constexpr int kMostKernel = 8;

struct ConvParams {
  Convolution c;
  const int32_t *query_start, *positions, *state_slot;
  int sequences;
};

// A thread a channel, over kConvTokens tokens of one sequence. The block of the first tokens also
// replaces the state, which it alone reads.
__global__ void __launch_bounds__(kChannels) convolution_kernel(const ConvParams p) {
  const Convolution& c = p.c;
  const Piece piece =
      find_piece(p.query_start, p.state_slot, 0, p.sequences, 1, 1, kConvTokens, blockIdx.y);
  const int channel = blockIdx.x * kChannels + threadIdx.x;
  if (piece.sequence < 0 || channel >= c.channels) return;
  const int64_t start = p.query_start[piece.sequence];
  const int count = static_cast<int>(p.query_start[piece.sequence + 1] - start);
  const bool fresh = p.positions[start] == 0;
  const int before = c.kernel - 1;
  float* state = c.state + int64_t{p.state_slot[piece.sequence]} * before * c.channels + channel;
  const float* u = c.u + start * c.stride + channel;
  const auto input = [&](int t) {  // of the sequence's t-th token in this step
    if (t >= 0) return u[t * c.stride];
    return fresh ? 0.0f : state[int64_t{before + t} * c.channels];
  };
  float weight[kMostKernel], seen[kMostKernel];  // seen: the inputs of the next token's window
#pragma unroll
  for (int j = 0; j < kMostKernel; ++j) {
    weight[j] = j < c.kernel ? c.weight[j * c.channels + channel] : 0.0f;
    seen[j] = j < before ? input(piece.first + j - before) : 0.0f;
  }
  const float bias = c.bias ? c.bias[channel] : 0.0f;
  const int end = min(piece.first + kConvTokens, count);
  // The state's new rows, before the first is overwritten: of this step's tokens and the old rows.
  float kept[kMostKernel];
  if (piece.first == 0) {
#pragma unroll
    for (int j = 0; j < kMostKernel; ++j) kept[j] = j < before ? input(count + j - before) : 0.0f;
  }
#pragma unroll 4
  for (int t = piece.first; t < end; ++t) {
    float sum = bias;
    const float next = u[t * c.stride];
#pragma unroll
    for (int j = 0; j < kMostKernel; ++j) {
      if (j == before) seen[j] = next;
      if (j < c.kernel) sum += weight[j] * seen[j];
    }
#pragma unroll
    for (int j = 0; j + 1 < kMostKernel; ++j) seen[j] = seen[j + 1];
    c.out[(start + t) * c.channels + channel] = silu(sum);
  }
  if (piece.first > 0) return;
#pragma unroll
  for (int j = 0; j < kMostKernel; ++j) {
    if (j < before) state[int64_t{j} * c.channels] = kept[j];
  }
}

struct ScanParams {
  Scan c;
  const int32_t *query_start, *positions, *state_slot;
};

constexpr int kScanWarps = 4;
constexpr int kColumns = 8;                           // of the state, of a warp
constexpr int kBlockColumns = kScanWarps * kColumns;  // of a block
constexpr int kAhead = 8;                             // tokens that are copied together

// Four lanes share a column of the state, each with every fourth quad of its rows.
template <int rows, bool delta>  // rows: of a lane
__global__ void __launch_bounds__(kScanWarps * 32, rows <= 16   ? 4
                                                   : rows <= 32 ? 3
                                                                : 2)
    scan_kernel(const ScanParams p) {
  constexpr int kKeys = 4 * rows;
  struct Tokens {
    float kq[kAhead][2][kKeys];
    float v[kAhead][kBlockColumns];
    float rates[kAhead][2];
    float dot[kAhead];
    float padding[kAhead];
  };
  __shared__ __align__(16) Tokens buffers[2];
  const Scan& c = p.c;
  const int s = blockIdx.z, h = blockIdx.y, lane = threadIdx.x % 32;
  const int slot = p.state_slot[s];
  const int64_t start = p.query_start[s];
  const int count = static_cast<int>(p.query_start[s + 1] - start);
  if (slot < 0 || count <= 0) return;
  const int key_head = h / (c.heads / c.key_heads);
  const int first_column = blockIdx.x * kBlockColumns;
  const int local = threadIdx.x / 32 * kColumns + lane % kColumns, column = first_column + local;
  const int quad = lane / kColumns;
  const bool there = column < c.value_dim;

  const auto fetch = [&](int begin) {
    Tokens& to = buffers[begin / kAhead % 2];
    const int tokens = min(kAhead, count - begin);
    for (int i = threadIdx.x; i < tokens * 2 * rows; i += kScanWarps * 32) {
      const int t = i / (2 * rows), piece = i % (2 * rows);
      const int64_t row = (start + begin + t) * c.key_heads + key_head;
      copy16(shared_address(&to.kq[t][0][0] + piece * 4), c.kq + row * 2 * kKeys + piece * 4, true);
    }
    for (int i = threadIdx.x; i < tokens * kBlockColumns; i += kScanWarps * 32) {
      const int t = i / kBlockColumns, j = i % kBlockColumns;
      if (first_column + j >= c.value_dim) continue;
      copy4(shared_address(&to.v[t][j]),
            c.v + (start + begin + t) * c.v_stride + h * c.value_dim + first_column + j);
    }
    if (static_cast<int>(threadIdx.x) < tokens) {
      const int t = threadIdx.x;
      const int64_t token = start + begin + t;
      copy4(shared_address(&to.rates[t][0]), c.rates + (token * c.heads + h) * 2);
      copy4(shared_address(&to.rates[t][1]), c.rates + (token * c.heads + h) * 2 + 1);
      copy4(shared_address(&to.dot[t]), c.dots + token * c.key_heads + key_head);
    }
    commit_copies();
  };
  fetch(0);

  float* state = c.state + (int64_t{slot} * c.heads + h) * c.key_dim * c.value_dim + column;
  const bool fresh = p.positions[start] == 0;
  float S[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int key = (i / 4 * 4 + quad) * 4 + i % 4;
    S[i] = !fresh && there && key < c.key_dim ? state[int64_t{key} * c.value_dim] : 0.0f;
  }
  for (int begin = 0; begin < count; begin += kAhead) {
    if (begin + kAhead < count) {
      fetch(begin + kAhead);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const Tokens& now = buffers[begin / kAhead % 2];
    const int tokens = min(kAhead, count - begin);
    for (int t = 0; t < tokens; ++t) {
      const auto* k4 = reinterpret_cast<const float4*>(now.kq[t][0]);
      const auto* q4 = reinterpret_cast<const float4*>(now.kq[t][1]);
      float seen[4] = {}, read[4] = {};
#pragma unroll
      for (int i = 0; i < rows / 4; ++i) {
        const float4 q = q4[i * 4 + quad];
        read[0] += S[4 * i] * q.x;
        read[1] += S[4 * i + 1] * q.y;
        read[2] += S[4 * i + 2] * q.z;
        read[3] += S[4 * i + 3] * q.w;
        if (!delta) continue;
        const float4 k = k4[i * 4 + quad];
        seen[0] += S[4 * i] * k.x;
        seen[1] += S[4 * i + 1] * k.y;
        seen[2] += S[4 * i + 2] * k.z;
        seen[3] += S[4 * i + 3] * k.w;
      }
      float b = (read[0] + read[1]) + (read[2] + read[3]);
      b += __shfl_xor_sync(kAllLanes, b, 8);
      b += __shfl_xor_sync(kAllLanes, b, 16);
      const float decay = now.rates[t][0], v = there ? now.v[t][local] : 0.0f;
      float d = now.rates[t][1] * v;
      if (delta) {
        float a = (seen[0] + seen[1]) + (seen[2] + seen[3]);
        a += __shfl_xor_sync(kAllLanes, a, 8);
        a += __shfl_xor_sync(kAllLanes, a, 16);
        d = now.rates[t][1] * (v - decay * a);
      }
#pragma unroll
      for (int i = 0; i < rows / 4; ++i) {
        const float4 k = k4[i * 4 + quad];
        S[4 * i] = decay * S[4 * i] + k.x * d;
        S[4 * i + 1] = decay * S[4 * i + 1] + k.y * d;
        S[4 * i + 2] = decay * S[4 * i + 2] + k.z * d;
        S[4 * i + 3] = decay * S[4 * i + 3] + k.w * d;
      }
      if (quad == 0 && there)
        c.out[((start + begin + t) * c.heads + h) * c.value_dim + column] =
            decay * b + d * now.dot[t];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int key = (i / 4 * 4 + quad) * 4 + i % 4;
    if (there && key < c.key_dim) state[int64_t{key} * c.value_dim] = S[i];
  }
}

template <int rows>
void launch_scan(Context& context, const dim3& grid, const ScanParams& p) {
  const auto kernel = p.c.delta ? scan_kernel<rows, true> : scan_kernel<rows, false>;
  kernel<<<grid, kScanWarps * 32, 0, context.stream()>>>(p);
}

}  // namespace

int padded_keys(int key_dim) {
  LK_CHECK(key_dim <= 256);
  return key_dim <= 16 ? 16 : key_dim <= 32 ? 32 : key_dim <= 64 ? 64 : key_dim <= 128 ? 128 : 256;
}

void run_convolution(Context& context, const Batch& batch, const Convolution& call) {
  LK_CHECK(call.kernel >= 1 && call.kernel <= kMostKernel);
  const ConvParams params{call, batch.query_start, batch.positions, batch.state_slot,
                          batch.sequences};
  const dim3 grid((call.channels + kChannels - 1) / kChannels, most_pieces(batch, 1, kConvTokens));
  convolution_kernel<<<grid, kChannels, 0, context.stream()>>>(params);
  check_launch("convolution");
}

void run_scan(Context& context, const Batch& batch, const Scan& call) {
  const ScanParams params{call, batch.query_start, batch.positions, batch.state_slot};
  const dim3 grid((call.value_dim + kBlockColumns - 1) / kBlockColumns, call.heads,
                  batch.sequences);
  switch (padded_keys(call.key_dim)) {
    case 16:
      launch_scan<4>(context, grid, params);
      break;
    case 32:
      launch_scan<8>(context, grid, params);
      break;
    case 64:
      launch_scan<16>(context, grid, params);
      break;
    case 128:
      launch_scan<32>(context, grid, params);
      break;
    default:
      launch_scan<64>(context, grid, params);
  }
  check_launch("recurrence");
}

}  // namespace lk::cuda

// The recurrent mixers on CPU: projections as one plan, a causal convolution, then one scan that
// both mixers share, then norm and gate. Used by one engine thread; scratch is kept between calls.
#pragma once

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/gemm_plan.h"

namespace lk::cpu {

class RecurrentStages {
 public:
  RecurrentStages(const CpuIsa& isa, ThreadPool& pool, GemmPlan& plan)
      : isa_(isa), pool_(pool), plan_(plan) {}

  void delta_net(const Batch& batch, const DeltaNetArgs& args);
  void mamba(const Batch& batch, const MambaArgs& args);

 private:
  struct Convolution;
  struct Scan;

  void convolve(const Batch& batch, const Convolution& conv);
  void convolve_block(const Batch& batch, const Convolution& conv, int64_t sequence, int64_t first,
                      int64_t count) const;
  void scan(const Batch& batch, const Scan& scan);

  const CpuIsa& isa_;
  ThreadPool& pool_;
  GemmPlan& plan_;
  AlignedBuffer x_, inputs_, gate_, rates_, mixed_, zeros_, scratch_;
};

}  // namespace lk::cpu

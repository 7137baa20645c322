// Lays out many matrix products (dense layers, experts) as one parallel loop over blocks of rows:
// activations interleaved into tiles, LoRA shrinks first, products with an epilogue after. Used by
// one engine thread; scratch memory is kept between calls.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {

// One product: rows of activations through one matrix, each row with its own LoRA term.
struct GemmJob {
  const PackedWeights* weights = nullptr;
  int expert = 0;
  int rows = 0;
  std::vector<const float*> x;                // [rows] each [in]
  std::vector<const PackedLora::Pair*> lora;  // [rows], null for none
};

class GemmPlan {
 public:
  GemmPlan(const CpuIsa& isa, ThreadPool& pool);

  // Jobs live until the next `clear`; `add` reuses their memory.
  void clear() { used_ = 0; }
  GemmJob& add(const PackedWeights* weights, int expert);

  // Runs all jobs. For each job, each of its rows and each block of at most 64 packed rows:
  // epilogue(job, row, first packed row, values, count of packed rows), with bias and LoRA in
  // `values`.
  template <typename Epilogue>
  void run(Epilogue&& epilogue) {
    prepare();
    pool_.run(items_, 1, [&](int64_t item, int thread) {
      const Place place = locate(item);
      compute(place, thread, [&](int row, float* values) {
        epilogue(place.job, row, place.group * kRows, values, place.groups * kRows);
      });
    });
  }

 private:
  // Tokens whose sums one thread holds at a time: with 64 rows 48 KiB.
  static constexpr int kSuperTokens = 192;

  struct Place {
    int job;
    int64_t group;
    int groups;
  };
  struct Layout {  // of one job
    int64_t first_item, first_tile;
    int tiles;
    int64_t z_offset, z_stride;
  };

  struct Shrink {
    int job, row, rank;
  };

  void prepare();
  void shrink();
  Place locate(int64_t item) const;
  template <typename Row>
  void compute(const Place& place, int thread, Row&& row);
  void multiply(const Place& place, int thread, int first_tile, int tiles);
  void finish_row(const Place& place, int row, float* values) const;

  const CpuIsa& isa_;
  ThreadPool& pool_;
  std::vector<GemmJob> jobs_;
  size_t used_ = 0;
  int64_t items_ = 0;
  std::vector<Layout> layout_;
  std::vector<Tile> tiles_;
  std::vector<size_t> panel_offset_;
  std::vector<std::pair<int, int>> tile_home_;  // job and first row of each tile
  std::vector<Shrink> shrinks_;
  AlignedBuffer panels_, z_, acc_, scratch_;
};

template <typename Row>
void GemmPlan::compute(const Place& place, int thread, Row&& row) {
  const Layout& layout = layout_[place.job];
  float* acc = acc_.as<float>() + int64_t{thread} * kSuperTokens * kBlockRows;
  int first_row = 0;
  for (int first = 0; first < layout.tiles;) {
    int count = 0, rows = 0;
    while (first + count < layout.tiles &&
           rows + tiles_[layout.first_tile + first + count].tokens <= kSuperTokens) {
      rows += tiles_[layout.first_tile + first + count++].tokens;
    }
    multiply(place, thread, first, count);
    for (int r = 0; r < rows; ++r) {
      float* values = acc + int64_t{r} * kBlockRows;
      finish_row(place, first_row + r, values);
      row(first_row + r, values);
    }
    first += count;
    first_row += rows;
  }
}

}  // namespace lk::cpu

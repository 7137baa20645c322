#include "kernels/cpu/gemm_plan.h"

#include <algorithm>

namespace lk::cpu {

GemmPlan::GemmPlan(const CpuIsa& isa, ThreadPool& pool)
    : isa_(isa),
      pool_(pool),
      acc_(size_t(pool.threads()) * kSuperTokens * kBlockRows * sizeof(float)),
      scratch_(size_t(pool.threads()) * isa.decode_scratch * sizeof(float)) {}

GemmJob& GemmPlan::add(const PackedWeights* weights, int expert) {
  if (used_ == jobs_.size()) jobs_.emplace_back();
  GemmJob& job = jobs_[used_++];
  job.weights = weights;
  job.expert = expert;
  job.rows = 0;
  job.x.clear();
  job.lora.clear();
  return job;
}

void GemmPlan::prepare() {
  layout_.resize(used_);
  tiles_.clear();
  panel_offset_.clear();
  items_ = 0;
  size_t panel_bytes = 0;
  int64_t z_floats = 0;
  for (size_t j = 0; j < used_; ++j) {
    GemmJob& job = jobs_[j];
    job.rows = static_cast<int>(job.x.size());
    Layout& layout = layout_[j];
    layout.first_item = items_;
    layout.first_tile = static_cast<int64_t>(tiles_.size());
    items_ += (job.weights->row_groups + kBlockGroups - 1) / kBlockGroups;
    const CpuProduct& product = isa_.product(*job.weights);
    // Even tiles: 13 rows as 7 + 6 rather than 12 + 1.
    layout.tiles = (job.rows + product.max_tile - 1) / product.max_tile;
    for (int i = 0, done = 0; i < layout.tiles; ++i) {
      const int rows = (job.rows - done + layout.tiles - i - 1) / (layout.tiles - i);
      tiles_.push_back({nullptr, rows});
      panel_offset_.push_back(panel_bytes);
      panel_bytes += (product.panel_bytes(*job.weights, rows) + 63) / 64 * 64;
      done += rows;
    }
    layout.z_stride = 0;
    for (const PackedLora::Pair* pair : job.lora) {
      if (pair) layout.z_stride = std::max<int64_t>(layout.z_stride, pair->rank);
    }
    layout.z_offset = z_floats;
    z_floats += layout.z_stride * job.rows;
  }
  panels_.reserve(panel_bytes);
  for (size_t i = 0; i < tiles_.size(); ++i) tiles_[i].panel = panels_.data() + panel_offset_[i];

  // (job, tile) of every tile, to interleave them in parallel.
  std::vector<std::pair<int, int>>& where = tile_home_;
  where.clear();
  for (size_t j = 0; j < used_; ++j) {
    for (int i = 0, row = 0; i < layout_[j].tiles; ++i) {
      where.emplace_back(static_cast<int>(j), row);
      row += tiles_[layout_[j].first_tile + i].tokens;
    }
  }
  pool_.run(static_cast<int64_t>(where.size()), 1, [&](int64_t i, int) {
    const GemmJob& job = jobs_[where[i].first];
    isa_.product(*job.weights)
        .pack_tile({job.x.data() + where[i].second, tiles_[i].tokens, job.weights, job.expert,
                    const_cast<void*>(tiles_[i].panel)});
  });
  if (z_floats > 0) {
    z_.reserve(z_floats * sizeof(float));
    shrink();
  }
}

void GemmPlan::shrink() {
  // One item: a few ranks of one row, so that one row's large rank spreads over the threads too.
  constexpr int kRanks = 8;
  shrinks_.clear();
  for (size_t j = 0; j < used_; ++j) {
    for (int row = 0; row < static_cast<int>(jobs_[j].lora.size()); ++row) {
      const PackedLora::Pair* pair = jobs_[j].lora[row];
      for (int r = 0; pair && r < pair->rank; r += kRanks)
        shrinks_.push_back({static_cast<int>(j), row, r});
    }
  }
  pool_.run(static_cast<int64_t>(shrinks_.size()), 1, [&](int64_t i, int) {
    const Shrink& s = shrinks_[i];
    const GemmJob& job = jobs_[s.job];
    const PackedLora::Pair& pair = *job.lora[s.row];
    const int64_t in = job.weights->in;
    float* z = z_.as<float>() + layout_[s.job].z_offset + s.row * layout_[s.job].z_stride;
    isa_.shrink(pair.a + s.rank * in, job.x[s.row], in, std::min(kRanks, pair.rank - s.rank),
                pair.scale, z + s.rank);
  });
}

GemmPlan::Place GemmPlan::locate(int64_t item) const {
  const auto after =
      std::upper_bound(layout_.begin(), layout_.end(), item,
                       [](int64_t i, const Layout& layout) { return i < layout.first_item; });
  const int job = static_cast<int>(after - layout_.begin()) - 1;
  const int64_t group = (item - layout_[job].first_item) * kBlockGroups;
  const int64_t left = jobs_[job].weights->row_groups - group;
  return {job, group, static_cast<int>(std::min<int64_t>(kBlockGroups, left))};
}

void GemmPlan::multiply(const Place& place, int thread, int first_tile, int tiles) {
  const GemmJob& job = jobs_[place.job];
  GemmItem item;
  item.weights = job.weights;
  item.expert = job.expert;
  item.group = place.group;
  item.groups = place.groups;
  item.tiles = &tiles_[layout_[place.job].first_tile + first_tile];
  item.tile_count = tiles;
  item.acc = acc_.as<float>() + int64_t{thread} * kSuperTokens * kBlockRows;
  item.scratch = scratch_.as<float>() + int64_t{thread} * isa_.decode_scratch;
  isa_.product(*job.weights).gemm(item);
}

void GemmPlan::finish_row(const Place& place, int row, float* values) const {
  const GemmJob& job = jobs_[place.job];
  const Layout& layout = layout_[place.job];
  LoraTerm term;
  if (row < static_cast<int>(job.lora.size()) && job.lora[row]) {
    term.pair = job.lora[row];
    term.z = z_.as<float>() + layout.z_offset + row * layout.z_stride;
  }
  const float* bias = job.weights->group_bias(job.expert, place.group);
  if (bias || term.pair) isa_.add_bias_lora(values, bias, term, place.group, place.groups);
}

}  // namespace lk::cpu

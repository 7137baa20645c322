#include "tests/engine/fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/reference/choose.h"

namespace lk {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ (hash >> 31)) * 0xbf58476d1ce4e5b9u + value;
  hash = (hash ^ (hash >> 30)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 27);
}

std::vector<float> logits_of(uint64_t all, uint64_t windowed, uint64_t identity) {
  std::vector<float> logits(FakeModel::kVocab);
  for (int id = 0; id < FakeModel::kVocab; ++id) {
    const uint64_t bits = mix(mix(mix(all, windowed), identity), id + 1) >> 40;
    logits[id] = static_cast<float>(bits) * (8.0f / (1 << 24));
  }
  return logits;
}

}  // namespace

FakeModel::FakeModel(int adapter_slots, int max_positions, bool recurrent)
    : slots_(adapter_slots, 0), cells_(2) {
  info_.vocab = kVocab;
  info_.max_positions = max_positions;
  info_.eos_token_ids = {kVocab - 1};
  layout_.groups = {{kWindow, {0}}, {0, {1}}};
  layout_.layer_group = {0, 1};
  layout_.kv_heads = layout_.head_dim = 1;
  if (recurrent) layout_.states = {{.conv = 2, .state = sizeof(State) / sizeof(float)}};
}

// A state must be that of the tokens before the chunk, and of the same adapter.
void FakeModel::recur(const Batch& batch, KvCache& cache, int sequence) {
  const int slot = batch.state_slot[sequence];
  check(slot >= 0 && slot < cache.state_slots(), "a state slot outside the cache");
  float* at = cache.state(0).state + slot * (sizeof(State) / sizeof(float));
  State state;
  const int first = batch.query_start[sequence];
  const uint64_t identity = identity_of(batch.adapter[first]);
  if (batch.positions[first] > 0) {
    std::memcpy(&state, at, sizeof(state));
    check(state.position == batch.positions[first], "a state of another position");
    check(state.identity == identity, "another adapter's state");
    uint64_t hash = 1;
    for (int p = 0; p < batch.positions[first]; ++p) {
      const int32_t block = batch.kv[1].block_table[sequence * batch.kv[1].max_blocks + p / 16];
      hash = mix(hash, cells_[1][int64_t{block} * 16 + p % 16].token + 1);
    }
    check(state.hash == hash, "a state of other tokens");
  }
  for (int t = first; t < batch.query_start[sequence + 1]; ++t)
    state.hash = mix(state.hash, batch.token_ids[t] + 1);
  state.position = batch.context_len[sequence];
  state.identity = identity;
  std::memcpy(at, &state, sizeof(state));
}

const Kernels& FakeModel::kernels() const { std::abort(); }

void FakeModel::set_slot(int slot, std::shared_ptr<const PreparedAdapter> adapter) {
  slots_.at(slot) = adapter ? *reinterpret_cast<const uint64_t*>(adapter.get()) : 0;
  if (!adapter) ++emptied;
}

std::shared_ptr<const EngineAdapter> FakeModel::adapter(uint64_t identity,
                                                        const std::string& name) {
  auto value = std::make_shared<uint64_t>(identity);
  std::shared_ptr<const PreparedAdapter> prepared(
      value, reinterpret_cast<const PreparedAdapter*>(value.get()));
  return std::make_shared<EngineAdapter>(
      EngineAdapter{name.empty() ? "a" + std::to_string(identity) : name, identity, prepared});
}

void FakeModel::forward_and_choose(const Batch& batch, KvCache& cache, const StepOutput& output) {
  forward(batch, cache, output.logits, {});
  rows_.assign(output.logits, output.logits + batch.logit_count * kVocab);
  reference::choose({.logits = rows_.data(),
                     .rows = batch.logit_count,
                     .vocab = kVocab,
                     .choices = output.choices.data(),
                     .top = output.top,
                     .results = output.results,
                     .best = output.best});
  check(output.top <= most_best, "more of the largest logits than the device tells");
  for (int r = 0; r < batch.logit_count; ++r) {
    if (!output.chosen[r]) continue;
    check(output.choices[r].top <= output.top, "a choice wants more than the step");
    std::fill_n(output.logits + r * kVocab, kVocab, std::nanf(""));
    ++chosen;
  }
}

void FakeModel::read_row(int row, float* logits) {
  std::copy_n(rows_.data() + row * kVocab, kVocab, logits);
  ++read;
}

void FakeModel::forward(const Batch& batch, KvCache& cache, float* logits, const ForwardTrace&) {
  if (before_forward) before_forward(batch);
  largest_step = std::max(largest_step, batch.tokens);
  most_sequences = std::max(most_sequences, batch.sequences);
  most_rows = std::max(most_rows, batch.logit_count);
  std::set<int> slots(batch.adapter, batch.adapter + batch.tokens);
  slots.erase(-1);
  most_adapters = std::max(most_adapters, slots.size());
  for (int g = 0; g < 2; ++g) {
    for (int t = 0; t < batch.tokens; ++t) {
      const int64_t slot = batch.kv[g].slot_mapping[t];
      check(slot >= 0 && slot < int64_t{16} * cache.blocks(g), "slot outside the cache");
      cells_[g][slot] = {batch.token_ids[t], batch.positions[t], identity_of(batch.adapter[t])};
    }
  }
  for (int s = 0; s < batch.sequences && !layout_.states.empty(); ++s) recur(batch, cache, s);
  for (int r = 0; r < batch.logit_count; ++r) {
    const int t = batch.logit_rows[r], s = batch.sequence[t];
    check(t >= batch.query_start[s] && t < batch.query_start[s + 1], "row of another sequence");
    check(batch.context_len[s] == batch.positions[batch.query_start[s + 1] - 1] + 1, "context_len");
    const uint64_t identity = identity_of(batch.adapter[t]);
    check(batch.adapter[t] < 0 || identity != 0, "an empty slot");
    uint64_t hashes[2] = {1, 1};
    for (int g = 0; g < 2; ++g) {
      const int first = g == 0 ? std::max(0, batch.positions[t] - kWindow + 1) : 0;
      for (int p = first; p <= batch.positions[t]; ++p) {
        const int32_t block = batch.kv[g].block_table[s * batch.kv[g].max_blocks + p / 16];
        check(block >= 0, "a visible block is gone");
        const Cell cell = block < 0 ? Cell{} : cells_[g][int64_t{block} * 16 + p % 16];
        check(cell.position == p, "a block holds another position");
        check(cell.identity == identity, "a block holds another adapter's values");
        hashes[g] = mix(hashes[g], cell.token + 1);
      }
    }
    const std::vector<float> row = logits_of(hashes[1], hashes[0], identity);
    std::copy(row.begin(), row.end(), logits + static_cast<size_t>(r) * kVocab);
  }
}

std::vector<float> FakeModel::logits_after(const std::vector<int32_t>& tokens, uint64_t identity) {
  uint64_t all = 1, windowed = 1;
  for (size_t p = 0; p < tokens.size(); ++p) {
    all = mix(all, tokens[p] + 1);
    if (p + kWindow >= tokens.size()) windowed = mix(windowed, tokens[p] + 1);
  }
  return logits_of(all, windowed, identity);
}

int32_t FakeModel::greedy_after(const std::vector<int32_t>& tokens, uint64_t identity) {
  const std::vector<float> row = logits_after(tokens, identity);
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace lk

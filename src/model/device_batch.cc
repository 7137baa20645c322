#include "model/device_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace lk {
namespace {

constexpr size_t kAlignment = 64;

// Decode steps of up to so many sequences are computed as if they had as many: at most a third of
// the rows is padding, and padding reads no expert.
int padded_sequences(int count) {
  if (count <= 4) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)));
  const int step = std::max(4, static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))) / 4);
  return (count + step - 1) / step * step;
}

uint64_t mixed(uint64_t key, uint64_t value) { return (key ^ value) * 0x100000001b3u; }  // FNV-1a

}  // namespace

size_t DeviceBatch::section(size_t bytes) {
  const size_t offset = (staged_.size() + kAlignment - 1) / kAlignment * kAlignment;
  staged_.resize(offset + bytes);
  return offset;
}

// Offsets stand for addresses until everything is staged.
template <typename T>
const T* DeviceBatch::add(const T* values, size_t count, size_t padded, T padding) {
  const size_t offset = section(padded * sizeof(T));
  T* to = reinterpret_cast<T*>(staged_.data() + offset);
  std::copy_n(values, count, to);
  std::fill(to + count, to + padded, padding);
  return reinterpret_cast<const T*>(offset);
}

const int32_t* DeviceBatch::add_table(const KvIndex& index, int sequences, int padded, int stride) {
  const size_t offset = section(sizeof(int32_t) * padded * stride);
  auto* to = reinterpret_cast<int32_t*>(staged_.data() + offset);
  std::fill_n(to, static_cast<size_t>(padded) * stride, -1);
  for (int s = 0; s < sequences; ++s) {
    std::copy_n(index.block_table + static_cast<size_t>(s) * index.max_blocks, index.max_blocks,
                to + static_cast<size_t>(s) * stride);
  }
  return reinterpret_cast<const int32_t*>(offset);
}

void DeviceBatch::describe(const Batch& host) {
  batch_ = host;
  batch_.longest_query = batch_.longest_context = 0;
  for (int s = 0; s < host.sequences; ++s) {
    batch_.longest_query =
        std::max(batch_.longest_query, host.query_start[s + 1] - host.query_start[s]);
    batch_.longest_context = std::max(batch_.longest_context, host.context_len[s]);
  }
  batch_.adapters =
      std::any_of(host.adapter, host.adapter + host.tokens, [](int32_t slot) { return slot >= 0; });
  decodes_ =
      batch_.longest_query == 1 && host.tokens == host.sequences && host.logit_count == host.tokens;
}

const Batch& DeviceBatch::place(const Batch& host, const Rope& rope, bool pad) {
  describe(host);
  decodes_ = decodes_ && pad;
  const size_t half = rope.inv_freq.size();
  const std::span<const int32_t> positions(host.positions, host.tokens);
  angles_.resize(2 * host.tokens * half);
  rope.angles(positions, angles_.data(), angles_.data() + host.tokens * half);
  cos_ = angles_.data();
  sin_ = angles_.data() + host.tokens * half;
  if (device_.is_host()) return batch_;

  const int tokens = decodes_ ? padded_sequences(host.tokens) : host.tokens;
  const int sequences = decodes_ ? tokens : host.sequences;
  const int rows = decodes_ ? tokens : host.logit_count;
  staged_.clear();
  batch_.token_ids = add(host.token_ids, host.tokens, tokens, 0);
  batch_.positions = add(host.positions, host.tokens, tokens, 0);
  batch_.adapter = add(host.adapter, host.tokens, tokens, -1);
  batch_.sequence = add(host.sequence, host.tokens, tokens, -1);
  batch_.query_start =
      add(host.query_start, host.sequences + 1, sequences + 1, static_cast<int32_t>(host.tokens));
  batch_.context_len = add(host.context_len, host.sequences, sequences, 0);
  batch_.logit_rows = add(host.logit_rows, host.logit_count, rows, 0);
  batch_.state_slot =
      host.state_slot ? add(host.state_slot, host.sequences, sequences, -1) : nullptr;
  cos_ = add(cos_, host.tokens * half, tokens * half, 0.0f);
  sin_ = add(sin_, host.tokens * half, tokens * half, 0.0f);
  key_ = mixed(mixed(0xcbf29ce484222325u, tokens), batch_.adapters);
  kv_.clear();
  int widest = 1;
  for (const KvIndex& index : host.kv) {
    const int stride =
        decodes_
            ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(1, index.max_blocks))))
            : index.max_blocks;
    widest = std::max(widest, stride);
    kv_.push_back({.block_table = add_table(index, host.sequences, sequences, stride),
                   .slot_mapping = add(index.slot_mapping, host.tokens, tokens, int64_t{-1}),
                   .max_blocks = stride});
    key_ = mixed(key_, stride);
  }
  if (decodes_) batch_.longest_context = widest * kKvBlockTokens;
  batch_.tokens = tokens;
  batch_.sequences = sequences;
  batch_.logit_count = rows;

  buffer_.reserve(device_, staged_.size());
  device_.upload(buffer_.data(), staged_.data(), staged_.size());
  const auto place = [this](auto*& array) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(
        buffer_.as<char>() + reinterpret_cast<uintptr_t>(array));
  };
  place(batch_.token_ids);
  place(batch_.positions);
  place(batch_.adapter);
  place(batch_.sequence);
  place(batch_.query_start);
  place(batch_.context_len);
  place(batch_.logit_rows);
  if (host.state_slot) place(batch_.state_slot);
  place(cos_);
  place(sin_);
  for (KvIndex& index : kv_) {
    place(index.block_table);
    place(index.slot_mapping);
  }
  batch_.kv = kv_;
  return batch_;
}

}  // namespace lk

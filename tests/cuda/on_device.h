// A test's data on the GPU. One GPU for all tests of the program.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "backend/device_buffer.h"
#include "kernels/kernels.h"

namespace lk::test {

// Tests that have no GPU fail: whoever runs this program wants to know.
inline CudaDevice& gpu() {
  static const Result<CudaDevice*> device = CudaDevice::open(0);
  if (!device) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    std::exit(2);
  }
  return **device;
}

// The cases of a test; with LORIKEET_SMALL in the environment the few of them that a checker of
// memory or races, which is slow, has time for: at least one for each kernel.
template <typename T>
std::vector<T> cases(std::initializer_list<T> all, std::initializer_list<T> few) {
  return std::getenv("LORIKEET_SMALL") ? few : all;
}

// Keeps what it puts on the GPU.
class OnDevice {
 public:
  template <typename T>
  T* put(const T* data, size_t count) {
    if (!data) return nullptr;
    kept_.push_back(
        DeviceBuffer(gpu(), std::max<size_t>(1, count) * sizeof(T), MemoryUse::kWorkspace));
    if (count > 0) gpu().upload(kept_.back().data(), data, count * sizeof(T));
    return kept_.back().as<T>();
  }
  template <typename T>
  T* put(const std::vector<T>& data) {
    return put(data.data(), data.size());
  }
  template <typename T>
  static std::vector<T> get(const T* data, size_t count) {
    std::vector<T> result(count);
    gpu().download(result.data(), data, count * sizeof(T));
    return result;
  }

  // The same batch with its arrays on the GPU. Valid as long as this.
  Batch put(const Batch& host) {
    Batch batch = host;
    const auto move = [this](auto*& array, size_t count) { array = put(array, count); };
    move(batch.token_ids, host.tokens);
    move(batch.positions, host.tokens);
    move(batch.adapter, host.tokens);
    move(batch.sequence, host.tokens);
    move(batch.query_start, host.sequences + 1);
    move(batch.context_len, host.sequences);
    move(batch.logit_rows, host.logit_count);
    move(batch.state_slot, host.sequences);
    kv_.push_back(std::make_unique<std::vector<KvIndex>>());
    for (KvIndex index : host.kv) {
      move(index.block_table, size_t(host.sequences) * index.max_blocks);
      move(index.slot_mapping, host.tokens);
      kv_.back()->push_back(index);
    }
    batch.kv = *kv_.back();
    batch.longest_query = batch.longest_context = 0;
    for (int s = 0; s < host.sequences; ++s) {
      batch.longest_query =
          std::max(batch.longest_query, host.query_start[s + 1] - host.query_start[s]);
      batch.longest_context = std::max(batch.longest_context, host.context_len[s]);
    }
    return batch;
  }

  // A linear packed for the GPU with its table of pairs.
  Linear put(Linear linear) {
    std::vector<const void*> table;
    for (const LoraWeights* pairs : linear.lora)
      table.push_back(pairs ? pairs->device_address() : nullptr);
    linear.device_lora = put(table);
    return linear;
  }

 private:
  std::vector<DeviceBuffer> kept_;
  std::vector<std::unique_ptr<std::vector<KvIndex>>> kv_;
};

}  // namespace lk::test

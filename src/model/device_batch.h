// A step's arrays in a device's memory. On the host they stay where they are.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/device_buffer.h"
#include "kernels/kernels.h"
#include "model/rope.h"

namespace lk {

class DeviceBatch {
 public:
  explicit DeviceBatch(Device& device) : device_(device) {}

  // `host` with what the kernels know of its arrays; elsewhere the arrays are copies, valid until
  // the next call. A decode step is padded, so that steps of like sizes have the same key().
  // Without `pad` no step is.
  const Batch& place(const Batch& host, const Rope& rope, bool pad = true);
  const float* rope_cos() const { return cos_; }  // [T, rotary / 2]
  const float* rope_sin() const { return sin_; }
  // Every sequence has one token and wants its logits: worth a recording.
  bool decodes() const { return decodes_; }
  // Of everything that the launches of a decode step depend on here.
  uint64_t key() const { return key_; }

 private:
  void describe(const Batch& host);
  size_t section(size_t bytes);  // its offset in staged_
  template <typename T>
  const T* add(const T* values, size_t count, size_t padded, T padding);
  const int32_t* add_table(const KvIndex& index, int sequences, int padded, int stride);

  Device& device_;
  Batch batch_;
  std::vector<KvIndex> kv_;
  std::vector<float> angles_;  // cos, then sin
  const float *cos_ = nullptr, *sin_ = nullptr;
  std::vector<std::byte> staged_;
  DeviceBuffer buffer_;
  bool decodes_ = false;
  uint64_t key_ = 0;
};

}  // namespace lk

// The identity of a base model: one number for what its tensors and its configuration say. Used by
// the loading thread; hashes with threads of its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "checkpoint/hf_config.h"

namespace lk {

class ContentHasher {
 public:
  // `threads`: as ThreadPool.
  explicit ContentHasher(int threads) : pool_(threads) {}

  // A tensor by its name, once; a second time adds nothing. With `drop` its mapped pages are given
  // back as it is read. Without data only name, type and shape count.
  void add(std::string_view name, const TensorView& tensor, bool drop);

  // XXH3 of all tensors in order of their names (name, type, shape, and the hashes of their bytes
  // by 4 MiB), of the fields of config.json but those that change no result, and of the end-of-turn
  // ids in the generation config. Never 0. Neither threads nor the order of `add` enter it.
  uint64_t finish(const HfConfig& config) const;

 private:
  ThreadPool pool_;
  std::map<std::string, uint64_t, std::less<>> tensors_;
};

}  // namespace lk

// Writes a checkpoint's safetensors files: tensors are declared first, in the order of the files,
// and filled piece by piece in any order. Movable; owns its files; write() may be called from many
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"

namespace lk {

struct DeclaredTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;

  uint64_t bytes() const { return TensorView{nullptr, dtype, shape}.bytes(); }
};

class SafetensorsWriter {
 public:
  // Makes <stem>.safetensors in `folder`, or shards where the sum is over `shard_bytes`, and
  // reserves their space. Errors: kResource naming file and reason (the disk has no room).
  static Result<SafetensorsWriter> create(const std::string& folder, const std::string& stem,
                                          const std::vector<DeclaredTensor>& tensors,
                                          uint64_t shard_bytes);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  // Removes the files unless finish() succeeded.
  ~SafetensorsWriter();

  // Bytes of tensor `tensor` (its number in the declaration) from `offset` on. Errors: kResource.
  Status write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) const;
  // Closes the files and writes the index where there are shards. Whether every byte was written
  // is the caller's business.
  Status finish();

  uint64_t total_bytes() const { return total_; }

 private:
  struct Shard {
    std::string path;
    int fd = -1;
  };
  struct Place {
    size_t shard = 0;
    uint64_t offset = 0;  // in the file
  };
  SafetensorsWriter() = default;
  Status open_shard(Shard& shard, const std::string& header, uint64_t size);
  void discard();

  std::vector<Shard> shards_;
  std::vector<Place> places_;
  std::string index_path_, index_text_;
  uint64_t total_ = 0;
  bool finished_ = false;
};

// Writes a small file whole: to a name beside it, then renamed. Errors: kResource.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace lk

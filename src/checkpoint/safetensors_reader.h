// One safetensors file whose tensors are read on demand with read(2), for files that somebody may
// replace or truncate meanwhile. Movable; safe to read from many threads.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "base/file_reader.h"
#include "base/result.h"
#include "base/tensor_view.h"
#include "checkpoint/safetensors.h"

namespace lk {

class SafetensorsReader {
 public:
  // Reads and checks the header. Errors: as SafetensorsFile::open.
  static Result<SafetensorsReader> open(const std::string& path);

  // Views without data.
  const std::map<std::string, TensorView>& tensors() const { return header_.tensors; }
  // The values of tensor `name`, which the file has, into `out` of its size in bytes. Errors:
  // kInvalid if the file ends early.
  Status read(const std::string& name, std::span<std::byte> out) const;
  // Errors: kInvalid if the file was changed since open.
  Status check_unchanged() const { return file_.check_unchanged(); }

 private:
  SafetensorsReader(FileReader file, SafetensorsHeader header, uint64_t data_begin)
      : file_(std::move(file)), header_(std::move(header)), data_begin_(data_begin) {}
  FileReader file_;
  SafetensorsHeader header_;
  uint64_t data_begin_;
};

}  // namespace lk

// One safetensors file: header parsed and checked, tensors as views into the mapping. Thread-safe
// to read.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/mmap_file.h"
#include "base/result.h"
#include "base/tensor_view.h"

namespace lk {

struct SafetensorsHeader {
  std::map<std::string, TensorView> tensors;    // data = null or base + offset
  std::map<std::string, uint64_t> offsets;      // of the tensors, from the end of the header
  std::map<std::string, std::string> metadata;  // __metadata__
};

// A data range whose length is not known: ends are not compared with it.
inline constexpr size_t kUnknownDataSize = SIZE_MAX;

// Parses a header's JSON text. `data` is the byte range behind the header (null with `data_size`
// given, or kUnknownDataSize, for header-only use). Checks offsets, lengths against dtype x shape,
// overlaps, holes, duplicate names and number ranges. Errors: kInvalid naming `what` and the
// tensor.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, const std::byte* data,
                                                   size_t data_size, std::string_view what);

// The length that stands in a file's first eight bytes. Errors: kInvalid naming `what` if it is
// over the limit or more than the file's `size` holds.
Status check_header_length(uint64_t length, uint64_t size, std::string_view what);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  const std::map<std::string, TensorView>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::string& path() const { return file_.path(); }

 private:
  SafetensorsFile(MmapFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  MmapFile file_;
  SafetensorsHeader header_;
};

}  // namespace lk

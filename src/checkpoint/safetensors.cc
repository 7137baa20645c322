#include "checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace lk {
namespace {

constexpr size_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;
// Keeps sums over many files far from overflow.
constexpr uint64_t kMaxOffset = uint64_t{1} << 50;
constexpr std::string_view kMetadata = "__metadata__";

// One entry of the header, as written.
struct Entry {
  std::string name;
  std::optional<DType> dtype;
  std::optional<Shape> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Follows the header's fixed form {name: {dtype, shape, data_offsets}, "__metadata__": {string:
// string}} event by event, so that a hostile header neither nests nor grows beyond what a tensor
// may hold.
class HeaderReader {
 public:
  using Json = nlohmann::json;

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(Json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const std::string& text) {
    return unexpected(fmt::format("the number {}", text.substr(0, 40)));
  }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return unexpected("a number");
    if (value > kMaxOffset) return refuse(fmt::format("the number {} is out of range", value));
    if (place_ == Place::kShape) {
      if (entry().shape->size() == kMaxRank) {
        return refuse(fmt::format("its shape has more than {} extents", kMaxRank));
      }
      entry().shape->push_back(static_cast<int64_t>(value));
    } else {
      if (entry().offsets->size() == 2) return refuse("data_offsets holds more than two numbers");
      entry().offsets->push_back(value);
    }
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ != Place::kEntry || key_ != "dtype") return unexpected("a string");
    entry().dtype = dtype_from_name(value);
    if (!entry().dtype) return refuse(fmt::format("unknown dtype {}", value.substr(0, 40)));
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadata) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      place_ = Place::kEntry;
      entries.push_back({key_, {}, {}, {}});
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(std::string& value) {
    if (place_ == Place::kRoot && value == kMetadata) {
      if (seen_metadata_) return refuse("__metadata__ occurs twice");
      seen_metadata_ = true;
    }
    if (place_ == Place::kMetadata && metadata.count(value)) {
      return refuse(fmt::format("__metadata__ holds the key {} twice", value.substr(0, 100)));
    }
    if (place_ == Place::kEntry) {
      const bool repeated = (value == "dtype" && entry().dtype) ||
                            (value == "shape" && entry().shape) ||
                            (value == "data_offsets" && entry().offsets);
      if (repeated) return refuse(fmt::format("the field {} occurs twice", value));
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        return refuse(fmt::format("unknown field {}", value.substr(0, 40)));
      }
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() {
    if (place_ == Place::kEntry) {
      if (!entry().dtype) return refuse("dtype is missing");
      if (!entry().shape) return refuse("shape is missing");
      if (!entry().offsets || entry().offsets->size() != 2) {
        return refuse("data_offsets does not hold two numbers");
      }
    }
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool start_array(size_t) {
    if (place_ == Place::kEntry && key_ == "shape") {
      place_ = Place::kShape;
      entry().shape.emplace();
    } else if (place_ == Place::kEntry && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      entry().offsets.emplace();
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() {
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& fault) {
    constexpr int kOutOfRange = 406;  // in the library's own numbering
    error = fault.id == kOutOfRange
                ? fmt::format("the number {} is out of range", token.substr(0, 40))
                : fmt::format("the header is not valid JSON at byte {}", position);
    return false;
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets, kEnd };

  Entry& entry() { return entries.back(); }

  bool refuse(std::string_view reason) {
    const bool in_entry =
        place_ == Place::kEntry || place_ == Place::kShape || place_ == Place::kOffsets;
    error = in_entry ? fmt::format("tensor {}: {}", entry().name, reason) : std::string(reason);
    return false;
  }
  bool unexpected(std::string_view found) {
    if (place_ == Place::kStart) return refuse(fmt::format("the header is {}, no object", found));
    return refuse(fmt::format("{} stands where the header's {} has none", found,
                              place_ == Place::kRoot
                                  ? fmt::format("entry {}", key_.substr(0, 100))
                                  : fmt::format("field {}", key_.substr(0, 100))));
  }

  Place place_ = Place::kStart;
  std::string key_;
  bool seen_metadata_ = false;
};

// dtype x shape in bytes; the running product is the one that TensorView::elements() takes.
std::optional<uint64_t> byte_size(DType dtype, const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(count), uint64_t{dtype_size(dtype)}, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

Status check_entry(const Entry& entry, size_t data_size, std::string_view what) {
  const uint64_t begin = (*entry.offsets)[0], end = (*entry.offsets)[1];
  if (begin > end) {
    return invalid("{}: tensor {}: data_offsets [{}, {}] run backwards", what, entry.name, begin,
                   end);
  }
  const auto bytes = byte_size(*entry.dtype, *entry.shape);
  if (!bytes) {
    return invalid("{}: tensor {}: shape {} is too large", what, entry.name,
                   shape_string(*entry.shape));
  }
  if (*bytes != end - begin) {
    return invalid("{}: tensor {}: {} {} needs {} bytes, but data_offsets [{}, {}] hold {}", what,
                   entry.name, dtype_name(*entry.dtype), shape_string(*entry.shape), *bytes, begin,
                   end, end - begin);
  }
  if (data_size != kUnknownDataSize && end > data_size) {
    return invalid("{}: tensor {} ends at byte {}, but the file holds {} bytes of data", what,
                   entry.name, end, data_size);
  }
  return {};
}

// The tensors must fill the data range one after the other.
Status check_coverage(const std::vector<Entry>& entries, size_t data_size, std::string_view what) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return *a->offsets < *b->offsets; });
  uint64_t position = 0;
  const Entry* previous = nullptr;
  for (const Entry* entry : order) {
    const uint64_t begin = (*entry->offsets)[0];
    if (begin < position) {
      return invalid("{}: tensor {} starts at byte {}, inside tensor {} which ends at {}", what,
                     entry->name, begin, previous->name, position);
    }
    if (begin > position) {
      return invalid("{}: bytes {} to {}, before tensor {}, belong to no tensor", what, position,
                     begin, entry->name);
    }
    position = (*entry->offsets)[1];
    previous = entry;
  }
  if (data_size != kUnknownDataSize && position != data_size) {
    return invalid("{}: the tensors end at byte {}, but the file holds {} bytes of data", what,
                   position, data_size);
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, const std::byte* data,
                                                   size_t data_size, std::string_view what) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return invalid("{}: {}", what, reader.error);
  }
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  for (const Entry& entry : reader.entries) {
    LK_RETURN_IF_ERROR(check_entry(entry, data_size, what));
    const std::byte* begin = data ? data + (*entry.offsets)[0] : nullptr;
    if (!header.tensors.emplace(entry.name, TensorView{begin, *entry.dtype, *entry.shape}).second) {
      return invalid("{}: tensor {} occurs twice in the header", what, entry.name);
    }
    header.offsets.emplace(entry.name, (*entry.offsets)[0]);
  }
  LK_RETURN_IF_ERROR(check_coverage(reader.entries, data_size, what));
  return header;
}

Status check_header_length(uint64_t length, uint64_t size, std::string_view what) {
  if (length > kMaxHeaderBytes) {
    return invalid("{}: the header claims {} bytes, more than the {} allowed", what, length,
                   kMaxHeaderBytes);
  }
  if (length > size - sizeof(length)) {
    return invalid("{}: the header claims {} bytes, but only {} follow (truncated file?)", what,
                   length, size - sizeof(length));
  }
  return {};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  LK_ASSIGN_OR_RETURN(MmapFile file, MmapFile::open(path));
  const auto bytes = file.bytes();
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return invalid("{} has {} bytes, too few for a safetensors file", path, bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  LK_RETURN_IF_ERROR(check_header_length(length, bytes.size(), path));
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof(length));
  const auto data = bytes.subspan(sizeof(length) + length);
  LK_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      parse_safetensors_header({text, length}, data.data(), data.size(), path));
  return SafetensorsFile(std::move(file), std::move(header));
}

}  // namespace lk

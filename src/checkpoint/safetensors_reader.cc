#include "checkpoint/safetensors_reader.h"

#include "base/check.h"

namespace lk {

Result<SafetensorsReader> SafetensorsReader::open(const std::string& path) {
  LK_ASSIGN_OR_RETURN(FileReader file, FileReader::open(path));
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return invalid("{} has {} bytes, too few for a safetensors file", path, file.size());
  }
  LK_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(&length, 1))));
  LK_RETURN_IF_ERROR(check_header_length(length, file.size(), path));
  std::string text(length, '\0');
  LK_RETURN_IF_ERROR(
      file.read_at(sizeof(length), std::as_writable_bytes(std::span(text.data(), text.size()))));
  const uint64_t data_begin = sizeof(length) + length;
  LK_ASSIGN_OR_RETURN(
      SafetensorsHeader header,
      parse_safetensors_header(text, nullptr, static_cast<size_t>(file.size() - data_begin), path));
  return SafetensorsReader(std::move(file), std::move(header), data_begin);
}

Status SafetensorsReader::read(const std::string& name, std::span<std::byte> out) const {
  const auto offset = header_.offsets.find(name);
  LK_CHECK(offset != header_.offsets.end() && header_.tensors.at(name).bytes() == out.size());
  return file_.read_at(data_begin_ + offset->second, out);
}

}  // namespace lk

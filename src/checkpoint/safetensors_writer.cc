#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/json.h"

namespace lk {
namespace {

tl::unexpected<Error> cannot_write(const std::string& path, int error) {
  return fail(ErrorKind::kResource, "cannot write {}: {}", path, std::strerror(error));
}

Status write_all(int fd, const std::string& path, uint64_t offset,
                 std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_write(path, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

// First tensor of each shard.
std::vector<size_t> shard_starts(const std::vector<DeclaredTensor>& tensors, uint64_t shard_bytes) {
  std::vector<size_t> starts = {0};
  uint64_t in_shard = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].bytes();
    if (in_shard > 0 && in_shard + bytes > shard_bytes) {
      starts.push_back(i);
      in_shard = 0;
    }
    in_shard += bytes;
  }
  return starts;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& folder,
                                                    const std::string& stem,
                                                    const std::vector<DeclaredTensor>& tensors,
                                                    uint64_t shard_bytes) {
  SafetensorsWriter writer;
  writer.places_.resize(tensors.size());
  const std::vector<size_t> starts = shard_starts(tensors, shard_bytes);
  OrderedJson map = OrderedJson::object();
  for (size_t s = 0; s < starts.size(); ++s) {
    const std::string name = starts.size() == 1 ? stem + ".safetensors"
                                                : fmt::format("{}-{:05}-of-{:05}.safetensors", stem,
                                                              s + 1, starts.size());
    const size_t end = s + 1 < starts.size() ? starts[s + 1] : tensors.size();
    // Wide types first, so that every tensor is aligned: readers that view the file in place want
    // it.
    std::vector<size_t> order;
    for (size_t i = starts[s]; i < end; ++i) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return dtype_size(tensors[a].dtype) > dtype_size(tensors[b].dtype);
    });
    OrderedJson header = {{"__metadata__", {{"format", "pt"}}}};
    uint64_t offset = 0;
    for (size_t i : order) {
      const uint64_t bytes = tensors[i].bytes();
      header[tensors[i].name] = {{"dtype", dtype_name(tensors[i].dtype)},
                                 {"shape", tensors[i].shape},
                                 {"data_offsets", {offset, offset + bytes}}};
      map[tensors[i].name] = name;
      writer.places_[i] = {s, offset};
      offset += bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    for (size_t i : order) writer.places_[i].offset += sizeof(uint64_t) + text.size();
    writer.total_ += offset;
    writer.shards_.push_back({folder + "/" + name});
    LK_RETURN_IF_ERROR(writer.open_shard(writer.shards_.back(), text, offset));
  }
  if (starts.size() > 1) {
    writer.index_path_ = folder + "/" + stem + ".safetensors.index.json";
    writer.index_text_ =
        OrderedJson{{"metadata", {{"total_size", writer.total_}}}, {"weight_map", map}}.dump(1);
  }
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : shards_(std::move(other.shards_)),
      places_(std::move(other.places_)),
      index_path_(std::move(other.index_path_)),
      index_text_(std::move(other.index_text_)),
      total_(other.total_),
      finished_(other.finished_) {
  other.shards_.clear();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!finished_) discard();
}

Status SafetensorsWriter::open_shard(Shard& shard, const std::string& header, uint64_t size) {
  shard.fd = ::open(shard.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (shard.fd < 0) {
    const tl::unexpected<Error> error = cannot_write(shard.path, errno);
    shards_.pop_back();  // what is there is not ours to remove
    return error;
  }
  const uint64_t length = header.size();
  const uint64_t whole = sizeof(length) + length + size;
  // Space is reserved before the work, so that a full disk is told at once; where a file system
  // cannot, it is told when the bytes are written.
  if (::fallocate(shard.fd, 0, 0, static_cast<off_t>(whole)) != 0 && errno != EOPNOTSUPP) {
    return fail(ErrorKind::kResource, "cannot reserve {} for {}: {}", format_bytes(whole),
                shard.path, std::strerror(errno));
  }
  LK_RETURN_IF_ERROR(write_all(shard.fd, shard.path, 0, std::as_bytes(std::span(&length, 1))));
  return write_all(shard.fd, shard.path, sizeof(length), std::as_bytes(std::span(header)));
}

Status SafetensorsWriter::write(size_t tensor, uint64_t offset,
                                std::span<const std::byte> bytes) const {
  const Place& place = places_[tensor];
  const Shard& shard = shards_[place.shard];
  return write_all(shard.fd, shard.path, place.offset + offset, bytes);
}

Status SafetensorsWriter::finish() {
  for (Shard& shard : shards_) {
    const int closed = ::close(shard.fd);
    shard.fd = -1;
    if (closed != 0) return cannot_write(shard.path, errno);
  }
  if (!index_path_.empty()) LK_RETURN_IF_ERROR(write_text_file(index_path_, index_text_ + "\n"));
  finished_ = true;
  return {};
}

void SafetensorsWriter::discard() {
  for (Shard& shard : shards_) {
    if (shard.fd >= 0) ::close(shard.fd);
    ::unlink(shard.path.c_str());
  }
}

Status write_text_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".partial";
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return cannot_write(path, errno);
  Status status = write_all(fd, path, 0, std::as_bytes(std::span(text)));
  if (::close(fd) != 0 && status) status = cannot_write(path, errno);
  if (status && std::rename(beside.c_str(), path.c_str()) != 0) status = cannot_write(path, errno);
  if (!status) ::unlink(beside.c_str());
  return status;
}

}  // namespace lk

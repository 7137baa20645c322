// Where an adapter's files lie and in which state they are. Stateless; every function asks the file
// system.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

// What changes when a file is written or replaced.
struct FileState {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // mtime and ctime
  bool exists = false;
  bool operator==(const FileState&) const = default;
};

// Two sources that are equal hold the same adapter.
struct AdapterSource {
  std::string folder;  // real path
  FileState config, weights;
  bool operator==(const AdapterSource&) const = default;
};

// The state of the folder's files now. A file whose clock tick has not passed yet could be written
// again without a trace: waits until it has (20 ms). Errors: kNotFound if there is no such folder,
// kInvalid if its files change all the while (200 ms).
Result<AdapterSource> adapter_source(const std::string& path);

// The real path of what `name` is in `directory`, an adapter or not. Errors: kNotFound, in the same
// words for a name that is no plain file name (one component, no leading dot, 255 bytes at most),
// for one that is not there, and for a link that leads out of the directory.
Result<std::string> find_in_directory(const std::string& directory, const std::string& name);
bool is_plain_name(std::string_view name);

// Errors: kInvalid for a name that is empty, over 512 bytes, no UTF-8, or holds control characters.
Status check_adapter_name(const std::string& name);
// A name from outside for a sentence: 'name', bytes that are not printable ASCII as \xNN,
// shortened.
std::string quoted_name(std::string_view name);

}  // namespace lk

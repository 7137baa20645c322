#include "base/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/file_reader.h"

namespace lk {
namespace {

// An open file descriptor of a regular file, closed on scope exit.
struct OpenFile {
  int fd = -1;
  size_t size = 0;
  OpenFile() = default;
  OpenFile(OpenFile&& other) noexcept : fd(std::exchange(other.fd, -1)), size(other.size) {}
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
  }
};

Result<OpenFile> open_regular(const std::string& path) {
  OpenFile file;
  // O_NONBLOCK: a FIFO given by mistake must not hang the open; it is refused below.
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd < 0) {
    return fail(open_error_kind(errno), "cannot open {}: {}", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    return invalid("cannot stat {}: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return invalid("{} is not a regular file", path);
  file.size = static_cast<size_t>(info.st_size);
  return file;
}

// Reading a page of a mapped file that somebody has made shorter raises SIGBUS wherever the read
// stands. Nothing can be half-loaded then: the handler names the file and ends the process.
struct Mapping {
  std::atomic<const std::byte*> data = nullptr;  // written last, cleared first
  size_t size = 0;
  char path[512] = {};  // cut to fit: a handler can only write what is there
};
std::array<Mapping, 1024> mappings;  // of more files than this, the name is not told
std::mutex mappings_mutex;
struct sigaction action_before;

void tell(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void on_sigbus(int, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const std::byte* data = mapping.data.load(std::memory_order_acquire);
    if (!data || address < data || address >= data + mapping.size) continue;
    tell("lorikeet: ");
    tell(mapping.path);
    tell(" was truncated while it was read\n");
    ::_exit(2);
  }
  sigaction(SIGBUS, &action_before, nullptr);  // not ours: the read is repeated and raises again
}

void watch_mapping(const std::byte* data, size_t size, const std::string& path) {
  std::lock_guard lock(mappings_mutex);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, &action_before) == 0;
  }();
  if (!installed) return;
  for (Mapping& mapping : mappings) {
    if (mapping.data.load(std::memory_order_relaxed)) continue;
    mapping.size = size;
    mapping.path[path.copy(mapping.path, sizeof(mapping.path) - 1)] = '\0';
    mapping.data.store(data, std::memory_order_release);
    return;
  }
}

void forget_mapping(const std::byte* data) {
  std::lock_guard lock(mappings_mutex);
  for (Mapping& mapping : mappings) {
    if (mapping.data.load(std::memory_order_relaxed) == data) mapping.data = nullptr;
  }
}

}  // namespace

Result<MmapFile> MmapFile::open(const std::string& path) {
  LK_ASSIGN_OR_RETURN(OpenFile file, open_regular(path));
  MmapFile mapped;
  mapped.path_ = path;
  mapped.size_ = file.size;
  if (file.size > 0) {
    void* data = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data == MAP_FAILED) return invalid("cannot map {}: {}", path, std::strerror(errno));
    mapped.data_ = static_cast<const std::byte*>(data);
    watch_mapping(mapped.data_, mapped.size_, path);
  }
  return mapped;
}

MmapFile::MmapFile(MmapFile&& other) noexcept { *this = std::move(other); }

MmapFile& MmapFile::operator=(MmapFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MmapFile::~MmapFile() {
  if (!data_) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void drop_mapped_pages(const std::byte* data, size_t size) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

Result<std::string> read_file(const std::string& path, size_t limit) {
  LK_ASSIGN_OR_RETURN(OpenFile file, open_regular(path));
  if (file.size > limit)
    return invalid("{} has {} bytes, more than the {} allowed", path, file.size, limit);
  std::string text(file.size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(file.fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid("cannot read {}: {}", path, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace lk

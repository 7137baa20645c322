#include "hub/blob_fetch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace lk {
namespace {

// An attempt that brought this much is no failure: a slow line may be cut as often as it likes.
constexpr uint64_t kProgressBytes = 1 << 20;

// The file that grows.
class Partial {
 public:
  explicit Partial(std::string path) : path_(std::move(path)) {}
  ~Partial() { close_file(); }
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;

  Status open_file() {
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    struct stat status = {};
    if (file_ < 0 || fstat(file_, &status) != 0) return failed();
    size_ = static_cast<uint64_t>(status.st_size);
    return {};
  }

  Status clear() {
    if (ftruncate(file_, 0) != 0) return failed();
    size_ = 0;
    return {};
  }

  Status append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        const int number = errno;
        // A full disk harms others too.
        if (number == ENOSPC || number == EDQUOT) discard();
        errno = number;
        return failed();
      }
      size_ += static_cast<uint64_t>(count);
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return {};
  }

  void discard() {
    close_file();
    unlink(path_.c_str());
  }

  // Durable before it gets its name: a blob is never looked at again.
  Status move_to(const std::string& path) {
    if (fdatasync(file_) != 0 || rename(path_.c_str(), path.c_str()) != 0) return failed();
    close_file();
    return {};
  }

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  tl::unexpected<Error> failed() const {
    return fail(ErrorKind::kResource, "{} cannot be written: {}", path_, std::strerror(errno));
  }
  void close_file() {
    if (file_ >= 0) close(file_);
    file_ = -1;
  }

  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
};

// "bytes 10-99/100" → 10.
std::optional<uint64_t> range_begin(const std::string* text) {
  uint64_t value = 0;
  if (text == nullptr || !text->starts_with("bytes ")) return std::nullopt;
  const char* begin = text->data() + 6;
  const auto [end, error] = std::from_chars(begin, text->data() + text->size(), value);
  if (error != std::errc() || *end != '-') return std::nullopt;
  return value;
}

class Fetch {
 public:
  Fetch(HttpClient& client, const HubTarget& target, const BlobRequest& request,
        const std::function<bool()>& stop, std::atomic<uint64_t>& done)
      : client_(client),
        target_(target),
        request_(request),
        stop_(stop),
        done_(done),
        partial_(request.path + ".incomplete") {}

  Status run() {
    LK_RETURN_IF_ERROR(partial_.open_file());
    if (request_.size && partial_.size() > *request_.size) LK_RETURN_IF_ERROR(partial_.clear());
    bool resumed = partial_.size() > 0;
    for (;;) {
      done_ = partial_.size();
      LK_RETURN_IF_ERROR(fill());
      const Status checked = check();
      if (checked) return partial_.move_to(request_.path);
      if (checked.error().kind != ErrorKind::kInvalid) return checked;
      if (!resumed) {
        partial_.discard();
        return checked;
      }
      // What lay here from before may be to blame: once more, from the beginning.
      resumed = false;
      LK_RETURN_IF_ERROR(partial_.clear());
    }
  }

 private:
  // Until all bytes are there.
  Status fill() {
    Backoff backoff(target_.settings, stop_);
    uint64_t mark = partial_.size();
    while (!request_.size || partial_.size() < *request_.size) {
      const HttpReply reply = attempt();
      if (!broken_) return broken_;
      const bool whole = reply.error.empty() && reply.status / 100 == 2;
      if (whole && (!request_.size || partial_.size() == *request_.size)) return {};
      if (partial_.size() >= mark + kProgressBytes) {
        backoff.progressed();
        mark = partial_.size();
      }
      HttpReply why = reply;
      if (whole)
        why.error =
            fmt::format("the answer ended after {} of {} bytes", partial_.size(), *request_.size);
      if (reply.status == 416) {  // what is here is no beginning of what is there
        LK_RETURN_IF_ERROR(partial_.clear());
        mark = 0;
        why.error = "the server cannot resume (416)";
      }
      if (!backoff.wait(why)) return tl::unexpected<Error>(refusal(target_, request_.file, why));
    }
    return {};
  }

  HttpReply attempt() {
    HttpRequest request;
    request.url = request_.url;
    request.from_byte = partial_.size();
    request.begin = [this](const HttpReply& reply) {
      if (partial_.size() > 0 && reply.status != 206) broken_ = partial_.clear();
      if (reply.status == 206 && range_begin(reply.header("content-range")) != partial_.size()) {
        broken_ = invalid("{} answers a request for {} from byte {} with other bytes",
                          target_.settings.endpoint, request_.file, partial_.size());
        partial_.discard();
      }
      return broken_.has_value();
    };
    request.sink = [this](std::string_view bytes) {
      if (request_.size && bytes.size() > *request_.size - partial_.size()) {
        broken_ = invalid("{} of {} is longer than the {} bytes that {} gives as its size",
                          request_.file, target_.id, *request_.size, target_.settings.endpoint);
        partial_.discard();
      } else {
        broken_ = partial_.append(bytes);
      }
      done_ = partial_.size();
      return broken_.has_value();
    };
    return client_.send(request);
  }

  Status check() {
    if (request_.hash.empty()) return {};
    LK_ASSIGN_OR_RETURN(const std::string found,
                        hash_file(partial_.path(), request_.hash_kind, stop_));
    if (found == request_.hash) return {};
    return invalid("{} of {} came with the hash {}, expected {}: it was deleted", request_.file,
                   target_.id, found, request_.hash);
  }

  HttpClient& client_;
  const HubTarget& target_;
  const BlobRequest& request_;
  const std::function<bool()>& stop_;
  std::atomic<uint64_t>& done_;
  Partial partial_;
  Status broken_;
};

}  // namespace

Status fetch_blob(HttpClient& client, const HubTarget& target, const BlobRequest& request,
                  const std::function<bool()>& stop, std::atomic<uint64_t>& done) {
  return Fetch(client, target, request, stop, done).run();
}

}  // namespace lk

#include "hub/content_hash.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace lk {
namespace {

class Digest {
 public:
  explicit Digest(const EVP_MD* method) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    LK_CHECK(context_ && EVP_DigestInit_ex(context_.get(), method, nullptr) == 1);
  }
  void add(std::string_view bytes) {
    LK_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::string finish() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    LK_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

struct File {
  int descriptor;
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
};

}  // namespace

Result<std::string> hash_file(const std::string& path, HashKind kind,
                              const std::function<bool()>& stop) {
  const auto failed = [&] {
    return fail(ErrorKind::kResource, "{} cannot be read: {}", path, std::strerror(errno));
  };
  const File file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat status = {};
  if (file.descriptor < 0 || fstat(file.descriptor, &status) != 0) return failed();
  Digest digest(kind == HashKind::kSha256 ? EVP_sha256() : EVP_sha1());
  if (kind == HashKind::kGitBlob) {
    const std::string head = fmt::format("blob {}", status.st_size);
    digest.add(std::string_view(head.c_str(), head.size() + 1));
  }
  std::vector<char> buffer(1 << 20);
  for (;;) {
    if (stop && stop()) return fail(ErrorKind::kResource, "stopped");
    const ssize_t count = read(file.descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed();
    if (count == 0) return digest.finish();
    digest.add(std::string_view(buffer.data(), static_cast<size_t>(count)));
  }
}

}  // namespace lk

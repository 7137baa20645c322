// A model hub on the loopback with one repository, and a file store on another port to which it
// redirects for files in LFS, as the real one does. Its answers can be bent by the test.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/settings.h"
#include "tests/hub/test_server.h"

namespace lk {

inline constexpr const char* kTestCommit = "0123456789abcdef0123456789abcdef01234567";

// A folder of the test's own, gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class TestHub {
 public:
  struct File {
    std::string content;
    bool lfs = false;
    std::string etag;  // SHA-256, or git's SHA-1
  };
  // Called for every request after the answer is made; may change it. From several threads, one
  // after the other.
  using Bend = std::function<void(const ServedRequest&, ServedReply&)>;

  TestHub();
  void add(const std::string& name, const std::string& content, bool lfs = false);
  // config.json, tokenizer.json, generation_config.json and weights in two shards.
  void add_model();
  void bend(Bend bend);
  // Access without this is refused with 401.
  void require_token(const std::string& token) { token_ = token; }

  HubSettings settings(const std::string& cache) const;
  const File& file(const std::string& name) const { return files_.at(name); }
  std::string id = "org/name", commit = kTestCommit;
  bool blobs_in_listing = true;

  // Requests to either port whose target has `part` in it.
  size_t count(const std::string& method, const std::string& part) const;
  TestServer& hub() { return *hub_; }
  TestServer& store() { return *store_; }

 private:
  ServedReply answer_hub(const ServedRequest& request);
  ServedReply answer_store(const ServedRequest& request);
  ServedReply listing() const;
  ServedReply bent(const ServedRequest& request, ServedReply reply);

  std::map<std::string, File> files_;
  std::string token_;
  std::mutex mutex_;
  Bend bend_;
  std::unique_ptr<TestServer> store_, hub_;
};

std::string read_all(const std::string& path);
void write_all(const std::string& path, const std::string& text);
// Bytes that do not repeat soon.
std::string noise(size_t size, unsigned seed);

}  // namespace lk

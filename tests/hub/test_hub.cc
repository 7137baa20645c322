#include "tests/hub/test_hub.h"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/json.h"
#include "hub/content_hash.h"

namespace lk {
namespace {

void apply_range(const ServedRequest& request, ServedReply& reply) {
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) return;
  const size_t size = reply.body.size();
  const size_t begin = std::stoul(range->second.substr(6));
  if (begin >= size) {
    reply.status = 416;
    reply.body.clear();
    return;
  }
  reply.status = 206;
  reply.headers.push_back({"Content-Range", fmt::format("bytes {}-{}/{}", begin, size - 1, size)});
  reply.body = reply.body.substr(begin);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "lk_hub_XXXXXX").string();
  path_ = mkdtemp(name.data());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_all(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string noise(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

TestHub::TestHub() {
  store_ = std::make_unique<TestServer>(
      [this](const ServedRequest& request) { return bent(request, answer_store(request)); });
  hub_ = std::make_unique<TestServer>(
      [this](const ServedRequest& request) { return bent(request, answer_hub(request)); });
}

void TestHub::add(const std::string& name, const std::string& content, bool lfs) {
  TemporaryFolder folder;
  write_all(folder.path() + "/x", content);
  files_[name] = {
      content, lfs,
      hash_file(folder.path() + "/x", lfs ? HashKind::kSha256 : HashKind::kGitBlob, nullptr)
          .value()};
}

void TestHub::add_model() {
  add("config.json", R"({"model_type": "test"})");
  add("generation_config.json", "{}");
  add("tokenizer.json", R"({"tokens": []})", true);
  add("model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                         "b": "model-00002-of-00002.safetensors"}})");
  add("model-00001-of-00002.safetensors", noise(300000, 1), true);
  add("model-00002-of-00002.safetensors", noise(200000, 2), true);
  add("pytorch_model.bin", "a pickle", true);
  add("original/model.safetensors", "the same again", true);
  add("README.md", "read me");
}

void TestHub::bend(Bend bend) {
  const std::lock_guard lock(mutex_);
  bend_ = std::move(bend);
}

HubSettings TestHub::settings(const std::string& cache) const {
  HubSettings settings;
  settings.cache = cache;
  settings.endpoint = hub_->url();
  settings.token = token_;
  settings.read_timeout_s = 2;
  settings.backoff_s = 0.01;
  settings.max_backoff_s = 0.05;
  return settings;
}

size_t TestHub::count(const std::string& method, const std::string& part) const {
  size_t count = 0;
  for (const TestServer* server : {hub_.get(), store_.get()}) {
    for (const ServedRequest& request : server->requests())
      count += request.method == method && request.target.find(part) != std::string::npos;
  }
  return count;
}

ServedReply TestHub::bent(const ServedRequest& request, ServedReply reply) {
  const std::lock_guard lock(mutex_);
  if (bend_) bend_(request, reply);
  return reply;
}

ServedReply TestHub::listing() const {
  Json files = Json::array();
  for (const auto& [name, file] : files_) {
    Json entry = {{"rfilename", name}};
    if (blobs_in_listing) {
      entry["size"] = file.content.size();
      entry["blobId"] = std::string(40, 'b');
      if (file.lfs)
        entry["lfs"] = {{"sha256", file.etag}, {"size", file.content.size()}, {"pointerSize", 130}};
      else
        entry["blobId"] = file.etag;
    }
    files.push_back(entry);
  }
  ServedReply reply;
  reply.body = Json{{"id", id}, {"sha", commit}, {"siblings", files}}.dump();
  return reply;
}

ServedReply TestHub::answer_hub(const ServedRequest& request) {
  ServedReply reply;
  const auto authorization = request.headers.find("authorization");
  if (!token_.empty() &&
      (authorization == request.headers.end() || authorization->second != "Bearer " + token_)) {
    reply.status = 401;
    return reply;
  }
  const std::string api = fmt::format("/api/models/{}/revision/", id);
  if (request.target.starts_with(api)) {
    const std::string revision =
        request.target.substr(api.size(), request.target.find('?') - api.size());
    if (revision == "main" || revision == "refs%2Fpr%2F1" || commit.starts_with(revision))
      return listing();
    reply.status = 404;
    reply.headers = {{"X-Error-Code", "RevisionNotFound"}};
    return reply;
  }
  const std::string resolve = fmt::format("/{}/resolve/{}/", id, commit);
  const auto at = request.target.starts_with(resolve)
                      ? files_.find(request.target.substr(resolve.size()))
                      : files_.end();
  if (at == files_.end()) {
    reply.status = 404;
    return reply;
  }
  const File& file = at->second;
  reply.headers = {{"X-Repo-Commit", commit}};
  if (file.lfs) {
    reply.status = 302;
    reply.headers.push_back({"X-Linked-Etag", '"' + file.etag + '"'});
    reply.headers.push_back({"X-Linked-Size", std::to_string(file.content.size())});
    reply.headers.push_back({"Location", store_->url() + "/store/" + at->first + "?signature=1"});
  } else {
    reply.headers.push_back({"ETag", "W/\"" + file.etag + '"'});
    reply.body = file.content;
    apply_range(request, reply);
  }
  return reply;
}

ServedReply TestHub::answer_store(const ServedRequest& request) {
  ServedReply reply;
  const std::string path = request.target.substr(0, request.target.find('?'));
  const auto at = files_.find(path.substr(std::string("/store/").size()));
  if (at == files_.end()) {
    reply.status = 404;
    return reply;
  }
  reply.headers = {{"ETag", "\"the-stores-own\""}};
  reply.body = at->second.content;
  apply_range(request, reply);
  return reply;
}

}  // namespace lk

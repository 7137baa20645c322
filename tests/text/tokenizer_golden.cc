#include "tests/text/tokenizer_golden.h"

#include <cstdio>
#include <map>

#include "base/check.h"
#include "base/mmap_file.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

struct Cursor {
  const std::string& data;
  size_t pos = 0;

  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      LK_CHECK(pos < data.size());
      const auto byte = static_cast<uint8_t>(data[pos++]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string string() {
    const size_t n = number();
    LK_CHECK(n <= data.size() - pos);
    pos += n;
    return data.substr(pos - n, n);
  }
  std::vector<int32_t> ids() {
    std::vector<int32_t> ids(number());
    for (auto& id : ids) id = static_cast<int32_t>(number());
    return ids;
  }
};

std::vector<GoldenSuite> read_suites() {
  const std::string data = read_data("tests/data/tokenizers/golden.bin.xz");
  Cursor in{data};
  std::vector<GoldenSuite> suites(in.number());
  for (size_t s = 0; s < suites.size(); ++s) {
    GoldenSuite& suite = suites[s];
    suite.name = in.string();
    suite.path = in.string();
    suite.patch = in.string();
    const size_t texts = in.number();
    if (in.number())
      suite.texts = suites.at(s - 1).texts;
    else
      for (size_t i = 0; i < texts; ++i) suite.texts.push_back(in.string());
    for (const std::string& text : suite.texts) {
      GoldenText& result = suite.results.emplace_back();
      result.ids = in.ids();
      result.plain = in.number() ? in.ids() : result.ids;
      if (in.number())
        result.whole = in.string();
      else
        append_repaired(result.whole, text);
      result.skipped = in.number() ? in.string() : result.whole;
    }
    const size_t lists = in.number();
    for (size_t i = 0; i < lists; ++i) {
      GoldenIds& list = suite.lists.emplace_back();
      list.ids = in.ids();
      list.skipped = in.string();
      list.whole = in.string();
    }
  }
  LK_CHECK(in.pos == data.size());
  return suites;
}

}  // namespace

const std::vector<GoldenSuite>& golden_suites() {
  static const std::vector<GoldenSuite> suites = read_suites();
  return suites;
}

std::string read_data(const std::string& path) {
  const std::string full = std::string(LK_SOURCE_DIR) + "/" + path;
  if (!full.ends_with(".xz")) {
    auto text = read_file(full);
    LK_CHECK(text.has_value());
    return *text;
  }
  FILE* pipe = ::popen(("xz -dc '" + full + "'").c_str(), "r");
  LK_CHECK(pipe != nullptr);
  std::string text;
  std::vector<char> buffer(1 << 20);
  while (const size_t n = ::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  LK_CHECK(::pclose(pipe) == 0);
  return text;
}

std::shared_ptr<const Tokenizer> shared_tokenizer(const std::string& path) {
  static std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  auto& tokenizer = tokenizers[path];
  if (!tokenizer) {
    auto parsed = Tokenizer::parse(read_data(path), path);
    if (!parsed) std::fprintf(stderr, "%s\n", parsed.error().message.c_str());
    LK_CHECK(parsed.has_value());
    tokenizer = *parsed;
  }
  return tokenizer;
}

}  // namespace lk

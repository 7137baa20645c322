// Reader of tests/data/tokenizers/golden.bin.xz (format: tools/make_tokenizer_golden.py), and the
// tokenizers it is about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lk {

struct GoldenText {
  std::vector<int32_t> ids;    // parse_special
  std::vector<int32_t> plain;  // not parse_special
  std::string whole, skipped;  // decoded, with and without special tokens
};
struct GoldenIds {
  std::vector<int32_t> ids;
  std::string skipped, whole;
};
struct GoldenSuite {
  std::string name, path, patch;
  std::vector<std::string> texts;   // bytes, not always UTF-8
  std::vector<GoldenText> results;  // one for each text
  std::vector<GoldenIds> lists;
};

// Read once; aborts the test program if the file is broken.
const std::vector<GoldenSuite>& golden_suites();

// A file of the repository; ".xz" is uncompressed with the xz program.
std::string read_data(const std::string& path);

// tests/data/tokenizers/<name>/tokenizer.json.xz, or the small model's; parsed once.
std::shared_ptr<const Tokenizer> shared_tokenizer(const std::string& path);

}  // namespace lk

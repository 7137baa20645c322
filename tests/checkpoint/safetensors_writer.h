// Model folders and safetensors headers made by tests, from the format's description alone. Not
// thread-safe.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace lk::test {

struct WrittenTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;  // empty: zeros

  int64_t size() const {
    int64_t size = dtype == "U8" || dtype[1] == '8' ? 1 : 2;
    if (dtype.ends_with("32")) size = 4;
    if (dtype.ends_with("64")) size = 8;
    for (int64_t extent : shape) size *= extent;
    return size;
  }
};

inline std::string header_of(const std::vector<WrittenTensor>& tensors) {
  std::string text = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t offset = 0;
  for (const WrittenTensor& tensor : tensors) {
    text +=
        fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                    tensor.dtype, fmt::join(tensor.shape, ","), offset, offset + tensor.size());
    offset += tensor.size();
  }
  return text + "}";
}

// A file of `header` and `data`, whatever they hold.
inline std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

inline std::string file_of(const std::vector<WrittenTensor>& tensors) {
  std::string data;
  for (const WrittenTensor& tensor : tensors) {
    data +=
        tensor.bytes.empty() ? std::string(static_cast<size_t>(tensor.size()), '\0') : tensor.bytes;
  }
  return file_of(header_of(tensors), data);
}

inline std::string bytes_of(const std::vector<uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

// A folder that is removed with its owner.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lk_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }
  void remove(const std::string& name) const { std::filesystem::remove(path_ + "/" + name); }

 private:
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace lk::test

// `result` must be an error whose sentence holds `part`.
#define EXPECT_ERROR(result, part)                                            \
  do {                                                                        \
    auto&& error_result_ = (result);                                          \
    EXPECT_FALSE(error_result_) << "no error, expected one with: " << (part); \
    if (!error_result_) {                                                     \
      EXPECT_NE(error_result_.error().message.find(part), std::string::npos)  \
          << error_result_.error().message << "\n  lacks: " << (part);        \
      EXPECT_EQ(error_result_.error().message.find('\n'), std::string::npos); \
    }                                                                         \
  } while (false)

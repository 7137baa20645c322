// A safetensors header and the data behind it: every view that is handed out must lie inside the
// data, and no header may bring the detection down.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/arch/gpt_oss.h"
#include "quant/detect.h"

namespace {

using lk::GptOssConfig;

const lk::LinearTable& small_table() {
  static const lk::LinearTable table = [] {
    GptOssConfig config;
    config.layers = 1;
    config.hidden = 32;
    config.intermediate = 32;
    config.experts = 2;
    config.experts_per_token = 1;
    config.heads = 1;
    config.kv_heads = 1;
    config.head_dim = 2;
    config.vocab = 4;
    config.sliding = {true};
    return lk::gpt_oss_linear_table(config);
  }();
  return table;
}

uint8_t touch(const lk::SafetensorsHeader& header) {
  uint8_t sum = 0;
  for (const auto& [name, view] : header.tensors) {
    for (size_t i = 0; i < view.bytes(); ++i) sum ^= static_cast<uint8_t>(view.data[i]);
  }
  return sum;
}

}  // namespace

// Input: the header, and after the first zero byte (which JSON cannot hold) the data.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  const auto* text = reinterpret_cast<const char*>(input);
  const auto* zero = static_cast<const char*>(std::memchr(text, 0, size));
  const size_t length = zero ? static_cast<size_t>(zero - text) : size;
  const std::string header(text, length);
  std::vector<std::byte> data(zero ? size - length - 1 : 0);
  if (!data.empty()) std::memcpy(data.data(), zero + 1, data.size());

  volatile uint8_t sink = 0;
  if (auto file = lk::parse_safetensors_header(header, data.data(), data.size(), "input")) {
    sink = touch(*file);
  }
  lk::HfConfig config;
  config.config = std::make_shared<const lk::Json>(lk::Json::object());
  if (auto checkpoint = lk::Checkpoint::from_headers({header}, config)) {
    if (auto model = lk::match_checkpoint(*checkpoint, small_table())) {
      for (const lk::StoredLinear& linear : model->linears) {
        if (!lk::check_finite(linear)) std::abort();
      }
    } else if (model.error().message.empty()) {
      std::abort();
    }
  }
  (void)sink;
  return 0;
}

#include "quant/encode/targets.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace lk {

std::span<const Target* const> all_targets() {
  static constexpr const Target* kTargets[] = {
      &kMxfp4GptOss,
      &kMxfp4Transformers,
      &kMxfp4ModelOpt,
      &kMxfp4CompressedTensors,
      &kNvfp4ModelOpt,
      &kNvfp4CompressedTensors,
      &kFp8BlockTransformers,
      &kFp8BlockCompressedTensors,
      &kFp8ChannelCompressedTensors,
      &kFp8TensorCompressedTensors,
      &kFp8TensorModelOpt,
      &kMxfp8ModelOpt,
      &kMxfp8CompressedTensors,
  };
  return kTargets;
}

Result<const Target*> find_target(std::string_view format, std::string_view recipe) {
  std::vector<std::string_view> formats, recipes;
  for (const Target* target : all_targets()) {
    if (target->format != format) {
      if (formats.empty() || formats.back() != target->format) formats.push_back(target->format);
      continue;
    }
    if (recipe.empty() || target->recipe == recipe) return target;
    recipes.push_back(target->recipe);
  }
  if (recipes.empty()) {
    return invalid("there is no format '{}' to quantize to; known are {}", format.substr(0, 60),
                   fmt::join(formats, ", "));
  }
  return invalid("{} is not written in the layout of '{}'; --recipe may be {}", format,
                 recipe.substr(0, 60), fmt::join(recipes, ", "));
}

}  // namespace lk

// The rows of the table of targets, each beside its encoder, and the tools' JSON. Static,
// immutable.
#pragma once

#include "quant/encode.h"

namespace lk {

extern const ToolConfig kTransformersMxfp4, kTransformersFp8, kCompressedTensors, kModelOpt;

extern const Target kMxfp4GptOss, kMxfp4Transformers, kMxfp4ModelOpt, kMxfp4CompressedTensors;
extern const Target kMxfp8ModelOpt, kMxfp8CompressedTensors;
extern const Target kNvfp4ModelOpt, kNvfp4CompressedTensors;
extern const Target kFp8BlockTransformers, kFp8BlockCompressedTensors;
extern const Target kFp8ChannelCompressedTensors;
extern const Target kFp8TensorCompressedTensors, kFp8TensorModelOpt;

}  // namespace lk

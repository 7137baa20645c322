#include "model/load.h"

#include <new>

#include "base/mmap_file.h"
#include "base/read_ahead.h"
#include "kernels/devices.h"
#include "model/archs.h"
#include "model/content_hash.h"
#include "model/decoder.h"
#include "model/moe_plan.h"
#include "quant/detect.h"
#include "quant/stored_linear.h"

namespace lk {
namespace {

size_t stored_bytes(const StoredLinear& linear) {
  size_t total = linear.bias.data ? linear.bias.bytes() : 0;
  for (const std::vector<StoredMatrix>& parts : linear.experts) {
    for (const StoredMatrix& matrix : parts) {
      total += matrix.rows * code_bytes(linear.format->element, matrix.cols);
    }
  }
  return total;
}

// As the kernels read it: a convolution's [channels, 1, kernel] becomes [kernel, channels].
std::vector<float> to_f32(const TensorView& tensor) {
  std::vector<float> values(tensor.elements());
  const size_t kernel = tensor.shape.size() == 3 ? tensor.shape[2] : 1;
  const size_t channels = values.size() / kernel;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i % kernel * channels + i / kernel] = load_f32(tensor, static_cast<int64_t>(i));
  }
  return values;
}

// A plain tensor's name as the file spells it.
std::string stored_name(const Checkpoint& checkpoint, const LinearTable& table,
                        const PlainTensorSpec& spec) {
  for (const std::string& prefix : table.prefixes) {
    std::string name = table.full_name(spec.name, prefix);
    if (checkpoint.find(name)) return name;
  }
  return spec.name;
}

size_t mapped_bytes(const StoredLinear& linear) {
  size_t total = 0;
  for (const StoredTensor& tensor : linear.tensors) {
    if (tensor.mapped) total += tensor.view.bytes();
  }
  return total;
}

std::vector<std::span<const std::byte>> mapped_ranges(const StoredModel& stored) {
  std::vector<std::span<const std::byte>> ranges;
  for (const StoredLinear& linear : stored.linears) {
    for (const StoredTensor& tensor : linear.tensors) {
      if (tensor.mapped) ranges.emplace_back(tensor.view.data, tensor.view.bytes());
    }
  }
  return ranges;
}

// Fills `parts.weights`, `parts.plain` and the content hash. Each tensor is hashed just before it
// is packed, so that the disk is read once.
Status pack_weights(const Checkpoint& checkpoint, const StoredModel& stored,
                    const std::vector<MoeGroup>& moe, const ModelOptions& options,
                    DecoderParts& parts) {
  ContentHasher hasher(parts.kernels->threads());
  size_t done = 0, total = 0;
  for (const StoredLinear& linear : stored.linears) total += stored_bytes(linear);
  ReadAhead ahead(mapped_ranges(stored));
  for (const StoredLinear& linear : stored.linears) {
    const ProductForm form = product_form(moe, *linear.spec);
    const bool drop = !parts.kernels->keeps_views(form);
    parts.keeps_views = parts.keeps_views || !drop;
    for (const StoredTensor& tensor : linear.tensors)
      hasher.add(tensor.name, tensor.view, drop && tensor.mapped);
    LK_RETURN_IF_ERROR(check_finite(linear));
    parts.weights.push_back(parts.kernels->pack(linear, form, drop));
    for (const StoredTensor& tensor : linear.tensors) {
      if (drop && tensor.mapped) drop_mapped_pages(tensor.view.data, tensor.view.bytes());
    }
    ahead.done(mapped_bytes(linear));
    parts.info.weight_bytes += parts.weights.back()->bytes();
    done += stored_bytes(linear);
    if (options.progress) options.progress(done, total);
  }
  for (size_t i = 0; i < stored.plain.size(); ++i) {
    const PlainTensorSpec& spec = parts.table->plain[i];
    const std::string name = stored_name(checkpoint, *parts.table, spec);
    hasher.add(name, stored.plain[i], /*drop=*/false);
    LK_RETURN_IF_ERROR(check_finite(stored.plain[i], name, /*mapped=*/true));
    std::vector<float> values = to_f32(stored.plain[i]);
    for (float& value : values) value += spec.offset;
    const size_t bytes = values.size() * sizeof(float);
    Device& device = parts.kernels->device();
    DeviceBuffer& placed = parts.plain[spec.name];
    placed = DeviceBuffer(device, bytes, MemoryUse::kWeights);
    device.upload(placed.data(), values.data(), bytes);
    parts.info.weight_bytes += bytes;
  }
  parts.info.content_hash = hasher.finish(checkpoint.config());
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> load_decoder(Checkpoint checkpoint, LinearTable table,
                                            DecoderSpec spec, std::unique_ptr<Kernels> kernels,
                                            const ModelOptions& options, std::string device_reason,
                                            bool device_among) {
  DecoderParts parts;
  parts.table = std::make_unique<const LinearTable>(std::move(table));
  parts.kernels = std::move(kernels);
  parts.info.architecture = parts.table->architecture;
  parts.info.device = parts.kernels->device().name();
  parts.info.device_reason = std::move(device_reason);
  parts.info.device_among = device_among;
  parts.info.layers = static_cast<int>(spec.layers.size());
  parts.info.hidden = spec.hidden;
  parts.info.vocab = spec.vocab;
  parts.info.max_positions = spec.max_positions;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    parts.info.experts = layer.moe->experts;
    parts.info.top_k = layer.moe->top_k;
  }
  parts.spec = std::move(spec);
  LK_ASSIGN_OR_RETURN(parts.info.eos_token_ids, checkpoint.config().eos_token_ids());
  LK_ASSIGN_OR_RETURN(const StoredModel stored, match_checkpoint(checkpoint, *parts.table));
  parts.info.warnings = stored.warnings;
  LK_ASSIGN_OR_RETURN(
      const std::vector<MoeGroup> moe,
      plan_moe(stored, *parts.table, parts.spec, parts.kernels->name(), options.moe));
  for (const MoeGroup& group : moe) parts.info.moe_plan.push_back(describe(group));
  try {
    LK_RETURN_IF_ERROR(pack_weights(checkpoint, stored, moe, options, parts));
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kResource,
                "{}: memory ran out after {} bytes of packed weights; the checkpoint has {} bytes",
                checkpoint.folder(), parts.info.weight_bytes, checkpoint.total_bytes());
  }
  if (parts.keeps_views) parts.checkpoint = std::move(checkpoint);
  return std::make_unique<Decoder>(std::move(parts), options.kv_type, options.adapter_slots);
}

Result<std::unique_ptr<Model>> Model::load(const std::string& folder, const ModelOptions& options) {
  LK_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  LK_ASSIGN_OR_RETURN(const ArchRow* row, find_arch(checkpoint.config().model_type()));
  LK_ASSIGN_OR_RETURN(LinearTable table, row->table(checkpoint.config()));
  LK_ASSIGN_OR_RETURN(DecoderSpec spec, row->decoder(checkpoint.config()));
  LK_ASSIGN_OR_RETURN(DeviceChoice choice, choose_device({.device = options.device,
                                                          .kernels = options.kernels,
                                                          .threads = options.threads,
                                                          .bytes = checkpoint.total_bytes()}));
  return load_decoder(std::move(checkpoint), std::move(table), std::move(spec),
                      std::move(choice.kernels), options, std::move(choice.why), choice.among);
}

}  // namespace lk

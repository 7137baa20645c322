#include "model/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/mmap_file.h"

namespace lk {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;

// Fields that name, describe or train a model: the same model may come with and without them.
constexpr const char* kCosmetic[] = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

uint64_t hash_text(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

void ContentHasher::add(std::string_view name, const TensorView& tensor, bool drop) {
  if (tensors_.find(name) != tensors_.end()) return;
  const auto bytes = tensor.data ? static_cast<int64_t>(tensor.bytes()) : 0;
  std::vector<uint64_t> pieces((bytes + kPiece - 1) / kPiece);
  pool_.run(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
    const std::byte* data = tensor.data + i * kPiece;
    const size_t size = std::min(kPiece, bytes - i * kPiece);
    pieces[i] = XXH3_64bits(data, size);
    if (drop) drop_mapped_pages(data, size);
  });
  const std::string head =
      fmt::format("{} {} ", dtype_name(tensor.dtype), shape_string(tensor.shape));
  pieces.push_back(hash_text(head));
  tensors_.emplace(name, XXH3_64bits(pieces.data(), pieces.size() * sizeof(uint64_t)));
}

uint64_t ContentHasher::finish(const HfConfig& config) const {
  std::vector<uint64_t> words;
  for (const auto& [name, hash] : tensors_) {
    words.push_back(hash_text(name));
    words.push_back(hash);
  }
  const auto dump = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  Json fields = *config.config;
  for (const char* key : kCosmetic) fields.erase(key);
  words.push_back(hash_text(dump(fields)));
  if (config.generation_config && config.generation_config->contains("eos_token_id"))
    words.push_back(hash_text(dump(config.generation_config->at("eos_token_id"))));
  const uint64_t hash = XXH3_64bits(words.data(), words.size() * sizeof(uint64_t));
  return hash != 0 ? hash : 1;
}

}  // namespace lk

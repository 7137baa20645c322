#include "checkpoint/linear_table.h"

#include <algorithm>

namespace lk {

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::kEmbedding:
      return "embedding";
    case Stage::kQuery:
      return "query";
    case Stage::kKey:
      return "key";
    case Stage::kValue:
      return "value";
    case Stage::kAttentionOut:
      return "attention_out";
    case Stage::kRouter:
      return "router";
    case Stage::kExpertUp:
      return "expert_up";
    case Stage::kExpertDown:
      return "expert_down";
    case Stage::kSharedUp:
      return "shared_up";
    case Stage::kSharedDown:
      return "shared_down";
    case Stage::kSharedGate:
      return "shared_gate";
    case Stage::kLatentIn:
      return "latent_in";
    case Stage::kLatentOut:
      return "latent_out";
    case Stage::kRecurrentIn:
      return "recurrent_in";
    case Stage::kRecurrentGate:
      return "recurrent_gate";
    case Stage::kRecurrentDecay:
      return "recurrent_decay";
    case Stage::kRecurrentBeta:
      return "recurrent_beta";
    case Stage::kRecurrentOut:
      return "recurrent_out";
    case Stage::kHead:
      return "head";
  }
  return "unknown";
}

bool quantizers_take(Stage stage) {
  switch (stage) {
    case Stage::kEmbedding:
    case Stage::kRouter:
    case Stage::kSharedGate:
    case Stage::kRecurrentDecay:
    case Stage::kRecurrentBeta:
    case Stage::kHead:
      return false;
    default:
      return true;
  }
}

const LinearSpec* LinearTable::find(Stage stage, int layer) const {
  for (const LinearSpec& spec : linears) {
    if (spec.stage == stage && spec.layer == layer) return &spec;
  }
  return nullptr;
}

std::string LinearTable::full_name(std::string_view path, std::string_view prefix) const {
  const bool bare = std::any_of(rootless.begin(), rootless.end(), [&](const std::string& root) {
    return path == root || (path.substr(0, root.size()) == root && path[root.size()] == '.');
  });
  return bare ? std::string(path) : std::string(prefix) + std::string(path);
}

}  // namespace lk

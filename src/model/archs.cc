#include "model/archs.h"

namespace lk {

extern const ArchRow kArchGptOss;
extern const ArchRow kArchQwen3Moe;
extern const ArchRow kArchOlmoe;
extern const ArchRow kArchMixtral;
extern const ArchRow kArchQwen35Moe;
extern const ArchRow kArchQwen35MoeText;
extern const ArchRow kArchNemotronH;

namespace {

constexpr const ArchRow* kArchs[] = {
    &kArchGptOss,    &kArchQwen3Moe,      &kArchOlmoe,     &kArchMixtral,
    &kArchQwen35Moe, &kArchQwen35MoeText, &kArchNemotronH,
};

}  // namespace

std::span<const ArchRow* const> archs_table() { return kArchs; }

Result<const ArchRow*> find_arch(const std::string& model_type) {
  std::string known;
  for (const ArchRow* row : kArchs) {
    if (row->model_type == model_type) return row;
    if (!known.empty()) known += ", ";
    known += row->model_type;
  }
  return unsupported("config.json: model_type is '{}'; this build knows: {}", model_type, known);
}

}  // namespace lk

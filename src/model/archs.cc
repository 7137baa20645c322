#include "model/archs.h"

#include "model/arch/gpt_oss_decoder.h"
#include "model/arch/mixtral.h"
#include "model/arch/nemotron_h.h"
#include "model/arch/olmoe.h"
#include "model/arch/qwen3_5_moe.h"
#include "model/arch/qwen3_moe.h"

namespace lk {
namespace {

constexpr ArchRow kArchs[] = {
    {"gpt_oss", gpt_oss_table, gpt_oss_decoder},
    {"qwen3_moe", qwen3_moe_table, qwen3_moe_decoder},
    {"olmoe", olmoe_table, olmoe_decoder},
    {"mixtral", mixtral_table, mixtral_decoder},
    {"qwen3_5_moe", qwen3_5_moe_table, qwen3_5_moe_decoder},
    {"qwen3_5_moe_text", qwen3_5_moe_table, qwen3_5_moe_decoder},
    {"nemotron_h", nemotron_h_table, nemotron_h_decoder},
};

}  // namespace

std::span<const ArchRow> archs_table() { return kArchs; }

Result<const ArchRow*> find_arch(const std::string& model_type) {
  std::string known;
  for (const ArchRow& row : kArchs) {
    if (row.model_type == model_type) return &row;
    if (!known.empty()) known += ", ";
    known += row.model_type;
  }
  return unsupported("config.json: model_type is '{}'; this build knows: {}", model_type, known);
}

}  // namespace lk

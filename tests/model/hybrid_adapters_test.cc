// Adapters of Qwen3.5-MoE and Nemotron-H: the deltas of loaded ones against those that PEFT
// computed (tools/make_adapter_golden.py), and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "adapters/adapter.h"
#include "base/numeric.h"
#include "checkpoint/safetensors.h"
#include "model/archs.h"
#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

LinearTable table_of(const char* config) {
  HfConfig files;
  files.config = std::make_shared<const Json>(*parse_json(config, "config.json"));
  auto table = (*find_arch(files.model_type()))->table(files);
  EXPECT_TRUE(table) << table.error().message;
  return *std::move(table);
}

// The sizes of tools/make_adapter_golden.py.
LinearTable qwen() {
  return table_of(R"({"model_type": "qwen3_5_moe_text", "num_hidden_layers": 2, "hidden_size": 16,
    "layer_types": ["linear_attention", "full_attention"], "vocab_size": 40,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4,
    "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4, "num_experts": 3,
    "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10,
    "max_position_embeddings": 64, "rope_theta": 10000})");
}

LinearTable nemotron(const char* latent) {
  return table_of(fmt::format(R"({{"model_type": "nemotron_h", "hybrid_override_pattern": "ME*",
    "hidden_size": 16, "vocab_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "layer_norm_epsilon": 1e-5, "mamba_num_heads": 4, "mamba_head_dim": 6,
    "n_groups": 2, "ssm_state_size": 4, "conv_kernel": 4, "n_routed_experts": 3,
    "num_experts_per_tok": 2, "moe_intermediate_size": 12, "moe_latent_size": {},
    "moe_shared_expert_intermediate_size": 20, "max_position_embeddings": 64}})",
                              latent)
                      .c_str());
}

// The golden tensor of a linear, under whichever of its names the generator used.
const TensorView* golden_of(const SafetensorsFile& file, const LinearSpec& spec) {
  for (const LinearName& name : spec.names) {
    const auto found = file.tensors().find(name.path);
    if (found != file.tensors().end()) return &found->second;
  }
  return nullptr;
}

float delta(const LoraPair& pair, const LinearSpec& spec, int64_t row, int64_t col) {
  double sum = 0;
  for (int k = 0; k < pair.rank; ++k)
    sum +=
        double{bf16_to_f32(pair.b[row * pair.rank + k])} * bf16_to_f32(pair.a[k * spec.in + col]);
  return static_cast<float>(pair.scale * sum);
}

// `whole` false: some linears of the table are not adapted. Gate and up of different scales share
// one, the ratio rounded to bfloat16.
void check(const std::string& folder, const LinearTable& table, bool whole,
           float tolerance = 2e-6f) {
  SCOPED_TRACE(folder);
  const std::string path = LK_SOURCE_DIR "/tests/data/adapters/" + folder;
  const auto adapter = load_peft_adapter(path, "golden", table, {});
  ASSERT_TRUE(adapter) << adapter.error().message;
  EXPECT_TRUE((*adapter)->warnings.empty()) << (*adapter)->warnings.front();
  EXPECT_TRUE((*adapter)->not_adapted.empty()) << (*adapter)->not_adapted.front();
  const auto golden = SafetensorsFile::open(path + "/delta.safetensors");
  ASSERT_TRUE(golden) << golden.error().message;
  EXPECT_EQ((*adapter)->modules.size(), golden->tensors().size());
  for (const AdapterModule& module : (*adapter)->modules) {
    const LinearSpec& spec = *module.spec;
    const TensorView* expected = golden_of(*golden, spec);
    ASSERT_TRUE(expected) << spec.path();
    const int64_t size = spec.out * spec.in;
    ASSERT_EQ(expected->elements(), size * static_cast<int64_t>(module.experts.size()));
    for (size_t e = 0; e < module.experts.size(); ++e) {
      for (int64_t i = 0; i < size; ++i) {
        const float want = load_f32(*expected, static_cast<int64_t>(e) * size + i);
        ASSERT_NEAR(delta(module.experts[e], spec, i / spec.in, i % spec.in), want,
                    tolerance * (1 + std::fabs(want)))
            << spec.path() << " expert " << e << " element " << i;
      }
    }
  }
  const size_t adaptable = table.linears.size() - 2;  // without embedding and head
  EXPECT_EQ((*adapter)->modules.size() == adaptable, whole);
}

TEST(HybridAdapters, B08_DeltaIsPefts) {
  check("qwen3_5-everything", qwen(), /*whole=*/true, 2e-3f);
  check("qwen3_5-all-linear", qwen(), /*whole=*/false);
  check("nemotron_h-everything", nemotron("8"), /*whole=*/false);  // PEFT refuses out_proj
  check("nemotron_h-per-expert", nemotron("null"), /*whole=*/true);
}

// Writes a file with one pair and gives the sentence of its refusal.
std::string refusal(const LinearTable& table, const std::string& module, std::vector<int64_t> a,
                    std::vector<int64_t> b) {
  const test::TempFolder folder;
  folder.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
  const std::string name = "base_model.model." + module;
  folder.write("adapter_model.safetensors",
               test::file_of({{name + ".lora_A.weight", "F32", std::move(a), ""},
                              {name + ".lora_B.weight", "F32", std::move(b), ""}}));
  const auto adapter = load_peft_adapter(folder.path(), "made", table, {});
  return adapter ? std::string() : adapter.error().message;
}

TEST(HybridAdapters, WhatIsNoLinearIsRefusedByName) {
  const LinearTable q = qwen(), n = nemotron("null");
  EXPECT_EQ(refusal(q, "model.layers.0.linear_attn.in_proj_a", {2, 16}, {4, 2}), "");
  struct Row {
    const LinearTable& table;
    std::string module;
    std::vector<int64_t> a, b;
  };
  for (const Row& row : {
           Row{q, "model.layers.0.linear_attn.conv1d", {2, 1, 4}, {32, 2, 1}},
           Row{q, "model.layers.0.linear_attn.conv1d", {2, 4}, {32, 2}},
           Row{q, "model.layers.0.linear_attn.norm", {2, 4}, {4, 2}},
           Row{q, "model.visual.blocks.0.attn.qkv", {2, 8}, {24, 2}},
           Row{n, "backbone.layers.0.mixer.conv1d", {2, 1, 4}, {40, 2, 1}},
           Row{n, "model.layers.0.mixer.A_log", {2, 4}, {4, 2}},
           Row{n, "model.layers.2.mixer.in_proj", {2, 16}, {68, 2}},
       }) {
    const std::string sentence = refusal(row.table, row.module, row.a, row.b);
    EXPECT_NE(sentence.find(row.module), std::string::npos) << row.module << ": " << sentence;
  }
}

}  // namespace
}  // namespace lk

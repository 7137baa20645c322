// Names, nesting and orientation of adapter tensors, in every dialect, on files written here.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/numeric.h"
#include "tests/adapters/adapter_fixture.h"

namespace lk {
namespace {

constexpr int64_t kE = 3, kHidden = 16, kInter = 12, kUp = 2 * kInter;
const LinearTable kGptOss = gpt_oss_test_table();
const std::string kLayer = "base_model.model.model.layers.0.";
const std::string kExperts = kLayer + "mlp.experts";
const std::string kQ = kLayer + "self_attn.q_proj";

// A table in which every expert matrix is square, as in the smallest Nemotron: gate_up [16, 16],
// down [16, 8] would not be, so only the two matrices of one expert without a gate.
LinearTable square_table(NameForm form) {
  LinearTable table = gpt_oss_test_table({.intermediate = 16});
  for (LinearSpec& spec : table.linears) {
    if (spec.stage != Stage::kExpertUp && spec.stage != Stage::kExpertDown) continue;
    spec.names.resize(1);
    spec.names[0].form = form;
    if (spec.stage == Stage::kExpertUp) {
      spec.out = 16;
      spec.row_order = RowOrder::kPlain;
    }
  }
  return table;
}

std::string config_with(const std::string& fields) {
  return R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, )" + fields + "}";
}

const std::string kBoth =
    R"("target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])";

std::shared_ptr<const Adapter> loaded(const AdapterFiles& files, const LinearTable& table,
                                      const AdapterLoadOptions& options = {}) {
  auto adapter = files.load(table, options);
  EXPECT_TRUE(adapter) << adapter.error().message;
  return adapter ? *adapter : nullptr;
}

// A file with the experts of layer 0 in the orientation given.
AdapterFiles expert_files(bool swapped, int64_t r, int64_t up = kUp, int64_t inter = kInter) {
  AdapterFiles files;
  files.config = config_with(kBoth);
  if (swapped) {
    files.add_pair(kExperts + ".base_layer", kE * r, up, kHidden);
    files.add_pair(kExperts, kE * r, kHidden, inter);
  } else {
    files.add_pair(kExperts + ".base_layer", kE * r, kHidden, up);
    files.add_pair(kExperts, kE * r, inter, kHidden);
  }
  return files;
}

TEST(Layout, B01_RowsOfAAreExpertMajorAndColumnsOfBRankMajor) {
  const LinearTable& table = kGptOss;
  const int64_t r = 2;
  AdapterFiles files;
  files.config = config_with(R"("target_parameters": ["mlp.experts.down_proj"])");
  std::vector<float> a(static_cast<size_t>(kE * r * kInter)),
      b(static_cast<size_t>(kHidden * r * kE));
  for (int64_t row = 0; row < kE * r; ++row) {
    for (int64_t i = 0; i < kInter; ++i)
      a[static_cast<size_t>(row * kInter + i)] = static_cast<float>(row);
  }
  for (int64_t o = 0; o < kHidden; ++o) {
    for (int64_t c = 0; c < r * kE; ++c)
      b[static_cast<size_t>(o * r * kE + c)] = static_cast<float>(c);
  }
  files.add(kExperts + ".lora_A.weight", {kE * r, kInter}, a);
  files.add(kExperts + ".lora_B.weight", {kHidden, r * kE}, b);
  const auto adapter = loaded(files, table);
  ASSERT_TRUE(adapter);
  const AdapterModule* down = adapter->find(Stage::kExpertDown, 0);
  ASSERT_TRUE(down);
  for (int64_t e = 0; e < kE; ++e) {
    const LoraPair& pair = down->experts[static_cast<size_t>(e)];
    for (int64_t k = 0; k < r; ++k) {
      EXPECT_EQ(bf16_to_f32(pair.a[static_cast<size_t>(k * kInter + 5)]),
                static_cast<float>(e * r + k));
      EXPECT_EQ(bf16_to_f32(pair.b[static_cast<size_t>(7 * r + k)]),
                static_cast<float>(k * kE + e));
    }
  }
}

// The same delta written in both orientations: A' = B^T, B' = A^T.
TEST(Layout, B03_SwappedFilesGiveTheSameDelta) {
  const LinearTable& table = kGptOss;
  const int64_t r = 5;
  std::vector<float> in_side(static_cast<size_t>(kE * r * kHidden)),
      out_side(static_cast<size_t>(kE * r * kUp));
  for (size_t i = 0; i < in_side.size(); ++i) in_side[i] = static_cast<float>(i % 97) - 40;
  for (size_t i = 0; i < out_side.size(); ++i) out_side[i] = static_cast<float>(i % 89) - 30;
  const auto value = [&](const std::vector<float>& side, int64_t n, int64_t e, int64_t k,
                         int64_t i) { return side[static_cast<size_t>((e * r + k) * n + i)]; };
  const auto a_rows = [&](const std::vector<float>& side) { return side; };
  const auto b_columns = [&](const std::vector<float>& side, int64_t n) {
    std::vector<float> b(side.size());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < r; ++k) {
        for (int64_t e = 0; e < kE; ++e)
          b[static_cast<size_t>(i * r * kE + k * kE + e)] = value(side, n, e, k, i);
      }
    }
    return b;
  };
  AdapterFiles standard, swapped;
  standard.config = swapped.config =
      config_with(R"("target_parameters": ["mlp.experts.gate_up_proj"])");
  standard.add(kExperts + ".lora_A.weight", {kE * r, kHidden}, a_rows(in_side));
  standard.add(kExperts + ".lora_B.weight", {kUp, r * kE}, b_columns(out_side, kUp));
  swapped.add(kExperts + ".lora_A.weight", {kE * r, kUp}, a_rows(out_side));
  swapped.add(kExperts + ".lora_B.weight", {kHidden, r * kE}, b_columns(in_side, kHidden));
  const auto one = loaded(standard, table), two = loaded(swapped, table);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->identity, two->identity);
  EXPECT_EQ(dense_delta(one->modules[0], 2), dense_delta(two->modules[0], 2));
  EXPECT_EQ(bf16_to_f32(one->modules[0].experts[1].b[3]), value(out_side, kUp, 1, 3, 0));
}

TEST(Layout, SquareMatricesFollowTheirSibling) {
  // hidden = intermediate: down is square, gate_up is not, as in gpt-oss.
  const LinearTable table = gpt_oss_test_table({.intermediate = 16});
  for (const bool swapped : {false, true}) {
    AdapterFiles files = expert_files(swapped, 2, 32, 16);
    for (const char* version :
         {"", R"(, "peft_version": "0.19.0")", R"(, "peft_version": "0.21.0")"}) {
      files.config = config_with(kBoth + version);
      const auto adapter = loaded(files, table);
      ASSERT_TRUE(adapter);
      EXPECT_TRUE(adapter->warnings.empty());
      // The same tensors of down alone, with the orientation said outright.
      AdapterFiles alone = files;
      alone.erase(kExperts + ".base_layer.lora_A.weight");
      alone.erase(kExperts + ".base_layer.lora_B.weight");
      alone.config = config_with(R"("target_parameters": ["mlp.experts.down_proj"])");
      const auto said = loaded(
          alone, table,
          {.orientation = swapped ? ExpertOrientation::kSwapped : ExpertOrientation::kStandard});
      ASSERT_TRUE(said);
      const AdapterModule* down = adapter->find(Stage::kExpertDown, 0);
      for (size_t e = 0; e < kE; ++e) {
        EXPECT_EQ(down->experts[e].a, said->modules[0].experts[e].a);
        EXPECT_EQ(down->experts[e].b, said->modules[0].experts[e].b);
      }
    }
  }
}

TEST(Layout, B03_SquareMatricesFollowTheVersion) {
  struct Row {
    NameForm form;
    const char* version;
    char expected;  // s(tandard), x (swapped), ? (refused)
  };
  for (const Row& row : {
           Row{NameForm::kParameterInOut, "0.17.1", 's'},
           Row{NameForm::kParameterInOut, "0.18.0", 's'},
           Row{NameForm::kParameterInOut, "0.18.1", 's'},
           Row{NameForm::kParameterInOut, "0.18.1.dev0@abc", '?'},
           Row{NameForm::kParameterInOut, "0.19.0", 'x'},
           Row{NameForm::kParameterInOut, "0.19.1", 's'},
           Row{NameForm::kParameterInOut, "0.20.1.dev0@abc", 's'},
           Row{NameForm::kParameterInOut, "", '?'},
           Row{NameForm::kParameterOutIn, "0.18.0", 'x'},
           Row{NameForm::kParameterOutIn, "0.18.1.dev0@abc", 'x'},
           Row{NameForm::kParameterOutIn, "0.19.0", 'x'},
           Row{NameForm::kParameterOutIn, "0.19.1", 's'},
           Row{NameForm::kParameterOutIn, "0.21.0", 's'},
           Row{NameForm::kParameterOutIn, "", '?'},
       }) {
    const LinearTable table = square_table(row.form);
    AdapterFiles files = expert_files(false, 2, 16, 16);
    files.config = config_with(kBoth + fmt::format(R"(, "peft_version": "{}")", row.version));
    if (!*row.version) files.config = config_with(kBoth);
    const auto adapter = files.load(table);
    if (row.expected == '?') {
      ASSERT_FALSE(adapter) << row.version;
      EXPECT_NE(refusal(adapter).find("--lora-expert-orientation"), std::string::npos)
          << refusal(adapter);
      for (const auto option : {ExpertOrientation::kStandard, ExpertOrientation::kSwapped}) {
        const auto told = files.load(table, {.orientation = option});
        ASSERT_TRUE(told) << told.error().message;
        EXPECT_EQ((*told)->warnings.size(), 1u);
      }
      EXPECT_NE(loaded(files, table, {.orientation = ExpertOrientation::kStandard})->identity,
                loaded(files, table, {.orientation = ExpertOrientation::kSwapped})->identity);
      continue;
    }
    ASSERT_TRUE(adapter) << adapter.error().message;
    ASSERT_EQ((*adapter)->warnings.size(), 1u) << "the choice is told";
    const char* word = row.expected == 's' ? "standard" : "swapped";
    EXPECT_NE((*adapter)->warnings[0].find(word), std::string::npos)
        << row.version << ": " << (*adapter)->warnings[0];
    // The option does not overrule the version, but agrees with what the same tensors mean when
    // told.
    AdapterFiles untold = expert_files(false, 2, 16, 16);
    const auto option =
        row.expected == 's' ? ExpertOrientation::kStandard : ExpertOrientation::kSwapped;
    EXPECT_EQ((*adapter)->identity, loaded(untold, table, {.orientation = option})->identity);
  }
}

// Prefixes and infixes that other trainers and savers leave.
TEST(Layout, NamesInEveryDialectMeanTheSame) {
  const LinearTable& table = kGptOss;
  const auto with = [&](const std::string& from, const std::string& to) {
    AdapterFiles files = expert_files(false, 2);
    files.add_pair(kQ, 2, kHidden, 32);
    for (const std::string& name : files.names()) {
      const size_t at = name.find(from);
      if (at == std::string::npos) continue;
      std::string renamed = name;
      files.rename(name, renamed.replace(at, from.size(), to));
    }
    return files;
  };
  const auto reference = loaded(with("", ""), table);
  ASSERT_TRUE(reference);
  struct Row {
    const char* from;
    const char* to;
  };
  for (const Row& row : {
           Row{"base_model.model.", ""},
           Row{"base_model.model.model.", ""},
           Row{"base_model.model.model.", "base_model.model.model.model."},
           Row{"base_model.model.", "base_model.model.base_model.model."},
           Row{"base_model.model.model.", "base_model.model.model.language_model."},
           Row{"base_model.model.model.", "base_model.model.language_model.model."},
           Row{"base_model.", "module.base_model."},
           Row{"base_model.", "_orig_mod.base_model."},
           Row{"layers.0.", "layers.0._checkpoint_wrapped_module."},
           Row{".weight", ".default.weight"},
           Row{".weight", ".lora.weight"},
           Row{".weight", ".sql-2.weight"},
       }) {
    const auto adapter = with(row.from, row.to).load(table);
    ASSERT_TRUE(adapter) << row.to << ": " << adapter.error().message;
    EXPECT_EQ((*adapter)->identity, reference->identity) << row.to;
  }
}

TEST(Layout, OneParameterHasNoBaseLayerWhicheverItIs) {
  const LinearTable& table = kGptOss;
  for (const bool told : {true, false}) {
    AdapterFiles up, down;
    up.add_pair(kExperts, kE * 2, kHidden, kUp);
    down.add_pair(kExperts, kE * 2, kInter, kHidden);
    if (told) {
      up.config = config_with(R"("target_parameters": ["experts.gate_up_proj"])");
      down.config = config_with(R"("target_parameters": ["model.layers.0.mlp.experts.down_proj"])");
    }
    EXPECT_TRUE(loaded(up, table)->find(Stage::kExpertUp, 0));
    EXPECT_TRUE(loaded(down, table)->find(Stage::kExpertDown, 0));
  }
}

TEST(Layout, NestedTheOtherWayRoundIsSeenByShape) {
  AdapterFiles files;
  files.config = config_with(kBoth);
  files.add_pair(kExperts + ".base_layer", kE * 2, kInter, kHidden);
  files.add_pair(kExperts, kE * 2, kHidden, kUp);
  const auto adapter = loaded(files, kGptOss);
  ASSERT_TRUE(adapter);
  EXPECT_TRUE(adapter->find(Stage::kExpertUp, 0) && adapter->find(Stage::kExpertDown, 0));
  EXPECT_EQ(adapter->warnings.size(), 1u);
}

TEST(Layout, AmbiguousParameterIsRefused) {
  const LinearTable table = square_table(NameForm::kParameterInOut);
  AdapterFiles files;
  files.add_pair(kExperts, kE * 2, 16, 16);
  EXPECT_NE(refusal(files.load(table, {.orientation = ExpertOrientation::kStandard}))
                .find("may belong to"),
            std::string::npos);
}

TEST(Layout, RouterAsModuleAndAsParameter) {
  const LinearTable& table = kGptOss;
  AdapterFiles module, parameter;
  for (AdapterFiles* files : {&module, &parameter})
    files->add_pair(kLayer + "mlp.router", 2, kHidden, kE);
  module.config =
      config_with(R"("target_modules": ["router"], "alpha_pattern": {"mlp.router": 8})");
  parameter.config = config_with(
      R"("target_parameters": ["mlp.router.weight"], "alpha_pattern": {"mlp.router.weight": 8})");
  const auto one = loaded(module, table), two = loaded(parameter, table);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(one->identity, two->identity);
  EXPECT_EQ(one->find(Stage::kRouter, 0)->experts[0].scale, 4.0f);
}

TEST(Layout, EmbeddingAndHead) {
  AdapterFiles files;
  files.add_random("base_model.model.model.embed_tokens.lora_embedding_A", {2, 40});
  files.add_random("base_model.model.model.embed_tokens.lora_embedding_B", {16, 2});
  files.add_pair("base_model.model.lm_head", 2, 16, 40);
  files.add_random("base_model.model.lm_head.base_layer.weight", {40, 16});
  const auto adapter = loaded(files, kGptOss);
  ASSERT_TRUE(adapter);
  const LoraPair& embedding = adapter->find(Stage::kEmbedding, -1)->experts[0];
  EXPECT_EQ(embedding.a.size(), 2u * 16);
  EXPECT_EQ(embedding.b.size(), 40u * 2);
  EXPECT_TRUE(adapter->find(Stage::kHead, -1));
  ASSERT_EQ(adapter->warnings.size(), 1u);
  EXPECT_NE(adapter->warnings[0].find("lm_head.base_layer.weight"), std::string::npos);
}

TEST(Layout, HalvesOfAnExpertBecomeOnePair) {
  for (const bool interleaved : {true, false}) {
    const LinearTable table = interleaved ? kGptOss : qwen_test_table();
    AdapterFiles files;
    files.config =
        config_with(R"("rank_pattern": {"up_proj": 3}, "alpha_pattern": {"up_proj": 6})");
    files.add_pair(kExperts + ".0.gate_proj", 2, kHidden, kInter);
    files.add_pair(kExperts + ".0.up_proj", 3, kHidden, kInter);
    files.add_pair(kExperts + ".2.up_proj", 3, kHidden, kInter);
    const auto adapter = loaded(files, table);
    ASSERT_TRUE(adapter);
    const AdapterModule* up = adapter->find(Stage::kExpertUp, 0);
    ASSERT_TRUE(up);
    EXPECT_EQ(up->experts[0].rank, 5);
    EXPECT_EQ(up->experts[1].rank, 0);
    EXPECT_EQ(up->experts[2].rank, 3);
    EXPECT_EQ(up->experts[0].scale, 2.0f);
    for (int64_t row = 0; row < kUp; ++row) {
      const bool is_up = interleaved ? row % 2 == 1 : row >= kInter;
      for (int64_t k = 0; k < 5; ++k) {
        const uint16_t value = up->experts[0].b[static_cast<size_t>(row * 5 + k)];
        if (is_up != (k >= 2)) {
          EXPECT_EQ(value, 0);
        }
      }
      const auto* begin = up->experts[2].b.data() + row * 3;
      EXPECT_EQ(std::any_of(begin, begin + 3, [](uint16_t v) { return v != 0; }), is_up) << row;
    }
    const OrderedJson told = adapter->describe();
    EXPECT_EQ(told["modules"][0]["experts_adapted"], 2);
    EXPECT_EQ(told["modules"][0]["experts"], 3);
    EXPECT_EQ(told["modules"][0]["stage"], "expert_up");
  }
}

TEST(Layout, DifferentScalesOfGateAndUpAreFolded) {
  const LinearTable table = qwen_test_table();
  AdapterFiles files;
  files.config = config_with(R"("alpha_pattern": {"up_proj": 1})");
  files.add_pair(kExperts + ".0.gate_proj", 2, kHidden, kInter);
  files.add_pair(kExperts + ".0.up_proj", 2, kHidden, kInter);
  const auto folded = loaded(files, table);
  files.config = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})";
  const auto even = loaded(files, table);
  ASSERT_TRUE(folded && even);
  const std::vector<float> want = dense_delta(even->modules[0], 0),
                           got = dense_delta(folded->modules[0], 0);
  for (size_t i = 0; i < want.size(); ++i) {
    // alpha 4 for gate and 1 for up: a quarter, exactly.
    EXPECT_EQ(got[i], i < want.size() / 2 ? want[i] : want[i] / 4) << i;
  }
  EXPECT_EQ(folded->modules[0].experts[0].scale, 2.0f);
}

TEST(Layout, B10_SomeExpertsOnlyStayWhereTheyAre) {
  const LinearTable& table = kGptOss;
  AdapterFiles files;
  files.add_pair(kExperts + ".gate_up_projs.2", 2, kHidden, kUp);
  files.add_pair(kExperts + ".down_projs.0", 2, kInter, kHidden);
  const auto adapter = loaded(files, table);
  ASSERT_TRUE(adapter);
  const AdapterModule* up = adapter->find(Stage::kExpertUp, 0);
  const AdapterModule* down = adapter->find(Stage::kExpertDown, 0);
  EXPECT_EQ(up->experts[0].rank + up->experts[1].rank, 0);
  EXPECT_EQ(up->experts[2].rank, 2);
  EXPECT_EQ(down->experts[0].rank, 2);
  EXPECT_EQ(down->experts[2].rank, 0);
}

TEST(Layout, WhatWasAskedForAndIsNotThereIsListed) {
  const LinearTable& table = kGptOss;
  AdapterFiles files;
  files.add_pair(kQ, 2, kHidden, 32);
  const auto missing = [&](const std::string& fields) {
    files.config = config_with(fields);
    const auto adapter = loaded(files, table);
    return adapter ? adapter->not_adapted : std::vector<std::string>{};
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(missing(R"("target_modules": ["q_proj"])"), Names{"layers.1.self_attn.q_proj"});
  EXPECT_EQ(missing(R"("target_modules": ["q_proj"], "layers_to_transform": [0])"), Names{});
  EXPECT_EQ(
      missing(R"("target_modules": ["q_proj"], "exclude_modules": ["layers.1.self_attn.q_proj"])"),
      Names{});
  EXPECT_EQ(missing(R"("target_modules": ["q_proj"], "exclude_modules": ".*\\.1\\..*")"), Names{});
  EXPECT_EQ(missing(R"("target_modules": "model\\.layers\\.0\\.self_attn\\.[qv]_proj")"),
            Names{"layers.0.self_attn.v_proj"});
  EXPECT_EQ(missing(R"("target_modules": "all-linear")").size(), 7u);
  EXPECT_EQ(missing(R"("target_modules": null)"), Names{});
  EXPECT_EQ(missing(R"("target_modules": ["lm_head", "q_proj"], "layers_to_transform": 0)"),
            Names{});
  AdapterFiles gates;
  gates.config =
      config_with(R"("target_modules": ["gate_proj", "up_proj"], "layers_to_transform": [0])");
  gates.add_pair(kExperts + ".1.gate_proj", 2, kHidden, kInter);
  EXPECT_EQ(loaded(gates, table)->not_adapted, Names{"layers.0.mlp.experts.{expert}.up_proj"});
  AdapterFiles experts = expert_files(false, 2);
  experts.config = config_with(kBoth);
  EXPECT_EQ(loaded(experts, table)->not_adapted,
            (Names{"layers.1.mlp.experts.gate_up_proj", "layers.1.mlp.experts.down_proj"}));
}

TEST(Layout, ContradictionsOfConfigurationAndTensorsAreTold) {
  AdapterFiles files;
  files.add_pair(kQ, 2, kHidden, 32);
  const auto told = [&](const std::string& fields) {
    files.config = config_with(fields);
    const auto adapter = loaded(files, kGptOss);
    if (!adapter || adapter->warnings.empty()) return std::string();
    EXPECT_EQ(adapter->warnings.size(), 1u) << fields;
    return adapter->warnings[0];
  };
  EXPECT_EQ(told(R"("target_modules": ["q_proj", "layers.1.mlp.experts.2.down_proj"])"), "");
  EXPECT_EQ(told(R"("target_modules": "all-linear")"), "");
  EXPECT_EQ(told(R"("target_modules": null)"), "");
  EXPECT_EQ(told(R"("target_modules": ["q_proj"], "layers_to_transform": [0, 1])"), "");
  EXPECT_EQ(told(R"("target_modules": ["q_proj", "qkv_proj", "mlp.experts.3.down_proj"])"),
            "target_modules names what no linear of a gpt_oss model is called: 'qkv_proj', "
            "'mlp.experts.3.down_proj'");
  EXPECT_EQ(told(R"("target_modules": ["q_proj"], "layers_to_transform": [0, 2, -1])"),
            "layers_to_transform names layers that the model does not have: 2, -1");
  for (const char* leaves_out :
       {R"("target_modules": ["v_proj"])", R"("target_modules": ".*v_proj")",
        R"("target_modules": ["q_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"])",
        R"("target_modules": ["q_proj"], "layers_to_transform": 1)"}) {
    EXPECT_NE(told(leaves_out)
                  .find("leaves out 1 linears that the file has tensors for, which are "
                        "applied: layers.0.self_attn.q_proj"),
              std::string::npos)
        << told(leaves_out);
  }
  files.config = config_with(R"("target_modules": ".*qkv")");
  const auto nothing = loaded(files, kGptOss);
  ASSERT_EQ(nothing->warnings.size(), 2u);
  EXPECT_EQ(nothing->warnings[0], "target_modules matches no linear of a gpt_oss model");
}

TEST(Layout, TensorsDecideTheRankAndTheConfigurationTheScale) {
  AdapterFiles files;
  files.add_pair(kQ, 5, kHidden, 32);
  const auto adapter = loaded(files, kGptOss);
  ASSERT_TRUE(adapter);
  EXPECT_EQ(adapter->modules[0].experts[0].rank, 5);
  EXPECT_EQ(adapter->modules[0].experts[0].scale, 2.0f);
  ASSERT_EQ(adapter->warnings.size(), 1u);
  EXPECT_NE(adapter->warnings[0].find("5 in the tensors, 2 in"), std::string::npos)
      << adapter->warnings[0];
}

TEST(Layout, IdentityIsTheContent) {
  const LinearTable& table = kGptOss;
  AdapterFiles files = expert_files(false, 2);
  const auto load_as = [&](const std::string& name) {
    return *load_peft_adapter(files.write(), name, table, {});
  };
  const auto one = load_as("one"), two = load_as("two");
  EXPECT_NE(one->path, two->path);
  EXPECT_EQ(one->identity, two->identity);
  files.config = R"({"peft_type": "LORA", "r": 2, "lora_alpha": 5, )" + kBoth + "}";
  EXPECT_NE(load_as("one")->identity, one->identity);
  files.config =
      config_with(kBoth + R"(, "task_type": "CAUSAL_LM", "base_model_name_or_path": "gone/away")");
  EXPECT_EQ(load_as("one")->identity, one->identity);
  files.add_random(kExperts + ".lora_B.weight", {kHidden, kE * 2});
  EXPECT_NE(load_as("one")->identity, one->identity);
}

TEST(Layout, ZeroAdapterSaysSo) {
  AdapterFiles files;
  files.add_random(kQ + ".lora_A.weight", {2, kHidden});
  files.add(kQ + ".lora_B.weight", {32, 2}, std::vector<float>(64, 0.0f));
  const auto adapter = loaded(files, kGptOss);
  ASSERT_EQ(adapter->warnings.size(), 1u);
  EXPECT_NE(adapter->warnings[0].find("does nothing"), std::string::npos);
}

}  // namespace
}  // namespace lk

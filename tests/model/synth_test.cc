// Adapters that are made up: PEFT's layout for every target, and that they load, whole.
#include "model/synth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_reader.h"
#include "model/archs.h"
#include "model/synth_presets.h"
#include "model/synth_writer.h"
#include "quant/detect.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/harness.h"
#include "tests/model/passing_kernels.h"

namespace lk::test {
namespace {

LinearTable tiny_table() {
  const HfConfig config = *HfConfig::read(model_folder());
  return *(*find_arch(config.model_type()))->table(config);
}

struct Made {
  explicit Made(std::vector<std::string> targets, int rank = 3, uint64_t seed = 1)
      : table(tiny_table()) {
    SynthAdapterOptions options;
    options.rank = rank;
    options.alpha = 2 * rank;
    options.targets = std::move(targets);
    options.seed = seed;
    status = synthesize_adapter(folder.path(), table, options);
  }
  Result<std::shared_ptr<const Adapter>> load() const {
    return load_peft_adapter(folder.path(), "made", table, {});
  }
  std::map<std::string, TensorView> tensors() const {
    return SafetensorsReader::open(folder.path() + "/adapter_model.safetensors")->tensors();
  }
  Json config() const { return *read_json_file(folder.path() + "/adapter_config.json"); }

  LinearTable table;
  TempFolder folder;
  Result<bool> status = false;
};

// Every preset in its published layout, whole and cut off: the loader accounts for each tensor.
TEST(SynthModel, PresetsHaveThePublishedLayout) {
  // Every weight but embedding, head, norms and routers in one byte; a scale of two for each block.
  constexpr size_t kQwen3Plain =
      2 * size_t{311'164'928} + 2048 + 48 * (2 * size_t{2048} + 2 * 128 + 128 * 2048);
  constexpr size_t kQwen3Codes = 30'532'122'624 - kQwen3Plain;
  constexpr size_t kQwen3Fp8Bytes = 2 * kQwen3Plain + kQwen3Codes + 2 * (kQwen3Codes / (128 * 128));
  struct Row {
    const char* preset;
    size_t bytes;
  };
  // Of Qwen3.6 the text part.
  for (const Row& row :
       {Row{"gpt-oss-20b", 13'761'264'768}, Row{"gpt-oss-120b", 65'248'815'744},
        Row{"Qwen3.6-35B-A3B-FP8", 35'707'978'496},
        Row{"nemotron-3-nano-30b-a3b-nvfp4", 19'339'781'632},
        Row{"qwen3-30b-a3b", 2 * size_t{30'532'122'624}}, Row{"qwen3-30b-a3b-fp8", kQwen3Fp8Bytes},
        Row{"olmoe-1b-7b", 2 * size_t{6'919'161'856}},
        Row{"mixtral-8x7b", 2 * size_t{46'702'792'704}}}) {
    for (const int layers : {0, 6}) {
      SCOPED_TRACE(fmt::format("{} {}", row.preset, layers));
      const auto model = synth_model(row.preset, layers);
      ASSERT_TRUE(model) << model.error().message;
      const auto tensors = synth_tensors(*model, 0);
      ASSERT_TRUE(tensors) << tensors.error().message;
      std::vector<WrittenTensor> written;
      for (const SynthTensor& t : *tensors)
        written.push_back({t.name, std::string(dtype_name(t.dtype)), t.shape, ""});
      const auto checkpoint = Checkpoint::from_headers({header_of(written)}, model->files);
      ASSERT_TRUE(checkpoint) << checkpoint.error().message;
      if (layers == 0) {
        EXPECT_EQ(checkpoint->total_bytes(), row.bytes);
      }
      const auto stored = match_checkpoint(*checkpoint, model->table);
      ASSERT_TRUE(stored) << stored.error().message;
      EXPECT_TRUE(stored->warnings.empty()) << stored->warnings.front();
      EXPECT_TRUE(byte_tokenizer(*model)) << byte_tokenizer(*model).error().message;
    }
  }
  EXPECT_ERROR(synth_model("gpt-oss-20b", 25), "gpt-oss-20b has 24 layers, not 25");
  EXPECT_ERROR(
      synth_model("nemotron-3-nano-30b-a3b-nvfp4", 1),
      "the first 1 layers of nemotron-3-nano-30b-a3b-nvfp4 have no experts; keep 2 or more");
  EXPECT_TRUE(synth_model("nemotron-3-nano-30b-a3b-nvfp4", 2));
  EXPECT_ERROR(synth_model("gpt-oss", 0), "there is no preset 'gpt-oss'");
  // What a folder's own files say.
  const auto like = synth_model(hybrid_model("tiny-nemotron-nvfp4").folder, 6);
  ASSERT_TRUE(like) << like.error().message;
  EXPECT_TRUE(synth_tensors(*like, 0));
  EXPECT_ERROR(synth_model(hybrid_model("tiny-nemotron-nvfp4").folder, 99), "layers, not 99");
  EXPECT_ERROR(synth_tensors(*synth_model("qwen3.6-35b-a3b-fp8", 4), 1.0), "no bias");
}

// What a folder's own files ask for, with or without a generation config, loads and runs.
TEST(SynthModel, ConfigsOfFoldersGiveModelsThatRun) {
  for (const std::string& like :
       {model_folder(), hybrid_model("tiny-qwen3.6-fp8").folder,
        hybrid_model("tiny-nemotron-nvfp4").folder, small_model("olmoe").folder,
        small_model("mixtral").folder, small_model("qwen3_moe-fp8").folder}) {
    SCOPED_TRACE(like);
    const TempFolder folder;
    const std::string out = folder.path() + "/made";
    const Result<bool> made =
        synthesize_checkpoint(out, {.preset = like, .layers = 2, .progress = {}});
    ASSERT_TRUE(made) << made.error().message;
    const auto model = load_model({.kernels = every_row().front()}, {out, {}});
    const auto runs = run(*model, {{{5, 6, 7}, -1}});
    for (const float logit : runs[0].logits) ASSERT_TRUE(std::isfinite(logit));
  }
}

// Keeps the root mean square of every residual that an expert stage leaves.
class Watched : public PassingKernels {
 public:
  Watched(std::unique_ptr<Kernels> inner, int hidden, std::vector<double>& seen)
      : PassingKernels(std::move(inner)), hidden_(hidden), seen_(seen) {}
  void experts(const Batch& batch, const ExpertArgs& args) override {
    inner_->experts(batch, args);
    double sum = 0;
    const int64_t count = int64_t{batch.tokens} * hidden_;
    for (int64_t i = 0; i < count; ++i) sum += double{args.residual[i]} * args.residual[i];
    seen_.push_back(std::sqrt(sum / static_cast<double>(count)));
  }

 private:
  int hidden_;
  std::vector<double>& seen_;
};

// Of each expert of each layer the share of the tokens that chose it, times experts / k: 1 where
// all are chosen alike.
std::vector<std::vector<double>> popularity(const std::vector<SequenceRun>& runs,
                                            const ModelInfo& info, size_t layers) {
  std::vector<std::vector<double>> counts(layers, std::vector<double>(info.experts, 0.0));
  double tokens = 0;
  for (const SequenceRun& run : runs) {
    const size_t each = run.logits.size() / info.vocab * info.top_k;  // of one layer
    for (size_t i = 0; i < each * layers; ++i) ++counts[i / each][run.experts[i]];
    tokens += static_cast<double>(each / info.top_k);
  }
  for (std::vector<double>& layer : counts) {
    for (double& count : layer) count *= info.experts / (tokens * info.top_k);
  }
  return counts;
}

// Weights of which a measurement can be made: nothing grows or dies through the layers, and which
// experts are chosen follows the token.
TEST(SynthModel, ActivationsKeepTheirOrderAndRoutingFollowsTheToken) {
  std::mt19937 random(7);
  std::vector<Sequence> sequences(16);
  for (Sequence& sequence : sequences) {
    for (int i = 0; i < 24; ++i) sequence.tokens.push_back(static_cast<int32_t>(random() % 200));
  }
  for (const std::string& like :
       {model_folder(), hybrid_model("tiny-qwen3.6-fp8").folder,
        hybrid_model("tiny-nemotron-nvfp4").folder, small_model("olmoe").folder,
        small_model("mixtral").folder, small_model("qwen3_moe-fp8").folder}) {
    double most[2] = {};
    for (const bool skewed : {false, true}) {
      if (skewed && like != model_folder()) continue;  // by the router's bias
      SCOPED_TRACE(like);
      const TempFolder folder;
      const std::string out = folder.path() + "/made";
      const Result<bool> made = synthesize_checkpoint(
          out, {.preset = like, .router_skew = skewed ? 1.5 : 0.0, .progress = {}});
      ASSERT_TRUE(made) << made.error().message;
      std::vector<double> seen;
      int hidden = 0;
      const auto model =
          load_model({.kernels = every_row().front(),
                      .edit = [&](DecoderSpec& spec) { hidden = spec.hidden; },
                      .wrap =
                          [&](std::unique_ptr<Kernels> inner) {
                            return std::make_unique<Watched>(std::move(inner), hidden, seen);
                          }},
                     {out, {}});
      const auto runs = run(*model, sequences);
      ASSERT_GE(seen.size(), 2u);
      for (const double rms : seen) {
        EXPECT_GT(rms, 0.2);
        EXPECT_LT(rms, 20.0);
      }
      for (const std::vector<double>& layer : popularity(runs, model->info(), seen.size())) {
        most[skewed] = std::max(most[skewed], *std::max_element(layer.begin(), layer.end()));
        if (skewed) continue;
        EXPECT_LT(*std::max_element(layer.begin(), layer.end()), 4.0);
        EXPECT_GE(std::count_if(layer.begin(), layer.end(), [](double share) { return share > 0; }),
                  static_cast<int64_t>(layer.size()) * 3 / 4);
      }
      fmt::print("{}{}: residuals {:.2f} to {:.2f}, the expert most chosen {:.2f} of its share\n",
                 like.substr(like.rfind('/') + 1), skewed ? ", skewed" : "",
                 *std::min_element(seen.begin(), seen.end()),
                 *std::max_element(seen.begin(), seen.end()), most[skewed]);
    }
    if (like == model_folder()) EXPECT_GT(most[1], most[0] * 1.2);
  }
}

// Adapters for the small hybrid models, on everything that they have.
TEST(SynthAdapter, HybridModelsLoadEveryTarget) {
  for (const char* name : {"tiny-qwen3.6-fp8", "tiny-nemotron-nvfp4"}) {
    const HfConfig config = *HfConfig::read(hybrid_model(name).folder);
    const LinearTable table = *(*find_arch(config.model_type()))->table(config);
    for (const std::vector<std::string>& targets : std::vector<std::vector<std::string>>{
             {"all"}, {"recurrent"}, {"shared"}, {"attention", "experts"}, {"router"}}) {
      SCOPED_TRACE(fmt::format("{} {}", name, targets[0]));
      const TempFolder folder;
      ASSERT_TRUE(synthesize_adapter(folder.path(), table, {.rank = 2, .targets = targets}));
      const auto adapter = load_peft_adapter(folder.path(), "made", table, {});
      ASSERT_TRUE(adapter) << adapter.error().message;
      EXPECT_TRUE((*adapter)->not_adapted.empty()) << (*adapter)->not_adapted.front();
      for (const std::string& warning : (*adapter)->warnings)
        EXPECT_NE(warning.find("square expert matrices"), std::string::npos) << warning;
      if (targets[0] == "all") {
        EXPECT_EQ((*adapter)->modules.size(), table.linears.size());
      }
    }
  }
}

TEST(SynthAdapter, EveryTargetLoads) {
  for (const std::vector<std::string>& targets : std::vector<std::vector<std::string>>{
           {"attention"},
           {"experts"},
           {"router"},
           {"head"},
           {"embedding"},
           {"all"},
           {"q_proj", "v_proj"},
           {"gate_up_proj"},
           {"down_proj"},
           {"mlp.experts.down_proj"},
           {"layers.3.mlp.experts.down_proj", "layers.1.self_attn.o_proj"},
           {"attention", "experts"}}) {
    const Made made(targets);
    ASSERT_TRUE(made.status) << made.status.error().message;
    const auto adapter = made.load();
    ASSERT_TRUE(adapter) << targets[0] << ": " << adapter.error().message;
    // Of a square matrix alone the version says which side A is on.
    for (const std::string& warning : (*adapter)->warnings) {
      EXPECT_NE(warning.find("square expert matrices"), std::string::npos) << warning;
    }
  }
}

TEST(SynthAdapter, NestsWrappersAsPeftDoes) {
  const auto both = Made({"experts"}).tensors();
  const std::string experts = "base_model.model.model.layers.2.mlp.experts.";
  EXPECT_EQ(both.at(experts + "base_layer.lora_A.weight").shape, (Shape{16 * 3, 192}));
  EXPECT_EQ(both.at(experts + "base_layer.lora_B.weight").shape, (Shape{384, 16 * 3}));
  EXPECT_EQ(both.at(experts + "lora_B.weight").shape, (Shape{192, 16 * 3}));
  const Made up({"gate_up_proj"});
  EXPECT_EQ(up.tensors().at(experts + "lora_B.weight").shape, (Shape{384, 16 * 3}));
  EXPECT_EQ(up.config()["target_parameters"], Json::array({"mlp.experts.gate_up_proj"}));
  EXPECT_TRUE(up.config()["target_modules"].empty());
  const Made one({"layers.1.self_attn.o_proj"});
  EXPECT_EQ(one.config()["target_modules"], Json::array({"layers.1.self_attn.o_proj"}));
  EXPECT_EQ(one.tensors().size(), 2u);
  const Made rest({"router", "embedding"});
  EXPECT_EQ(rest.config()["target_parameters"], Json::array({"mlp.router.weight"}));
  EXPECT_EQ(rest.tensors().at("base_model.model.model.embed_tokens.lora_embedding_A").shape,
            (Shape{3, 4096}));
}

TEST(SynthAdapter, SeedsAndNamesDecideTheValues) {
  const auto bytes = [](const Made& made) {
    return read_whole(made.folder.path() + "/adapter_model.safetensors");
  };
  EXPECT_EQ(bytes(Made({"attention"})), bytes(Made({"attention"})));
  EXPECT_NE(bytes(Made({"attention"})), bytes(Made({"attention"}, 3, 2)));
}

TEST(SynthAdapter, BadOptionsAreRefused) {
  EXPECT_ERROR(Made({"attention", "ffn"}).status,
               "gpt_oss has no linear 'ffn'; targets are all, attention, experts, router, head, "
               "embedding, down_proj");
  EXPECT_ERROR(Made({"attention"}, 0).status, "rank must be at least 1");
  EXPECT_ERROR(Made(std::vector<std::string>{}).status, "no targets");
  const Made made({"attention"});
  EXPECT_ERROR(synthesize_adapter(made.folder.path(), made.table, {}), "holds an adapter already");
}

// The router's bias of `synth --router-skew`.
TEST(SynthWriter, SkewLowersElementsByTheirPlace) {
  const TempFolder folder;
  const SynthTensor tensor{.name = "router.bias", .shape = {128}, .deviation = 0.02f, .skew = 1.5f};
  ASSERT_TRUE(write_random_safetensors(folder.path(), "model", {tensor}, 5, UINT64_MAX, {}));
  const SafetensorsFile file = *SafetensorsFile::open(folder.path() + "/model.safetensors");
  const TensorView& bias = file.tensors().at("router.bias");
  std::vector<float> values;
  for (int64_t i = 0; i < bias.elements(); ++i) values.push_back(load_f32(bias, i));
  EXPECT_FALSE(std::is_sorted(values.rbegin(), values.rend()));  // the order is random
  std::sort(values.rbegin(), values.rend());
  for (size_t k = 0; k < values.size(); ++k) {
    EXPECT_NEAR(values[k], -1.5 * std::log1p(static_cast<double>(k)), 0.12) << k;
  }
}

}  // namespace
}  // namespace lk::test

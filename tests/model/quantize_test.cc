// Quantizing a checkpoint: what lands in the folder, what is refused, and that codes which need no
// new rounding get none.
#include "model/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model/archs.h"
#include "quant/detect.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/harness.h"

namespace lk::test {
namespace {

namespace fs = std::filesystem;

const Target* target(std::string_view format, std::string_view recipe = "") {
  return *find_target(format, recipe);
}

// A checkpoint with its linears found.
struct Opened {
  explicit Opened(const std::string& folder) : checkpoint(*Checkpoint::open(folder)) {
    table = *(*find_arch(checkpoint.config().model_type()))->table(checkpoint.config());
    auto matched = match_checkpoint(checkpoint, table);
    EXPECT_TRUE(matched) << matched.error().message;
    if (matched) model = std::move(*matched);
  }
  Checkpoint checkpoint;
  LinearTable table;
  StoredModel model;
};

std::vector<float> values_of(const StoredLinear& linear, int expert, int64_t row) {
  const StoredRow stored = stored_row(linear, expert, row);
  std::vector<float> values(static_cast<size_t>(stored.matrix->cols));
  decode_row(*linear.format, *stored.matrix, stored.row, values.data());
  return values;
}

// Every tensor of one is in the other, bit for bit.
void expect_same_tensors(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, view] : a.tensors()) {
    const TensorView* other = b.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(view.dtype, other->dtype) << name;
    ASSERT_EQ(view.shape, other->shape) << name;
    EXPECT_EQ(std::memcmp(view.data, other->data, view.bytes()), 0) << name;
  }
}

class Quantize : public testing::Test {
 protected:
  std::string out(const std::string& name = "out") const { return folder_.path() + "/" + name; }

  Result<QuantizeReport> run(const std::string& in, const std::string& to, const Target* to_target,
                             std::vector<std::string> keep = {},
                             uint64_t shard_bytes = uint64_t{5} << 30) {
    QuantizeOptions options;
    options.target = to_target;
    options.keep = std::move(keep);
    options.shard_bytes = shard_bytes;
    options.threads = 2;
    return quantize_checkpoint(in, to, options);
  }

  // The small model with one tensor's bytes changed.
  std::string spoilt(const std::string& tensor, size_t at, const std::string& bytes) {
    const std::string copy = folder_.path() + "/spoilt";
    fs::create_directories(copy);
    fs::copy(model_folder() + "/config.json", copy + "/config.json");
    std::string file = read_whole(model_folder() + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    const Json header = Json::parse(file.substr(sizeof(length), length));
    file.replace(sizeof(length) + length + header[tensor]["data_offsets"][0].get<size_t>() + at,
                 bytes.size(), bytes);
    folder_.write("spoilt/model.safetensors", file);
    return copy;
  }

  const TempFolder folder_;
};

TEST_F(Quantize, MxfpFourToItselfKeepsEveryBit) {
  ASSERT_TRUE(run(model_folder(), out(), target("mxfp4")));
  expect_same_tensors(*Checkpoint::open(model_folder()), *Checkpoint::open(out()));
}

// To modules of gate and up apart and back to one parameter: no rounding anywhere, biases too.
TEST_F(Quantize, LayoutsOfOneFormatAreTranscribed) {
  for (const char* recipe : {"compressed-tensors", "modelopt"}) {
    const std::string apart = out(std::string("apart ") + recipe);
    const std::string back = out(std::string("back ") + recipe);
    const auto there = run(model_folder(), apart, target("mxfp4", recipe), {"self_attn"});
    ASSERT_TRUE(there) << there.error().message;
    EXPECT_TRUE(Checkpoint::open(apart)->find("model.layers.2.mlp.experts.7.up_proj.bias"));
    const auto again = run(apart, back, target("mxfp4", "gpt-oss"));
    ASSERT_TRUE(again) << again.error().message;
    expect_same_tensors(*Checkpoint::open(model_folder()), *Checkpoint::open(back));
  }
}

// Attention becomes bf16 again, and the experts' values stay what the eight-bit codes say.
TEST_F(Quantize, QuantizedSourcesAreDecodedFirst) {
  ASSERT_TRUE(run(model_folder(), out("fp8"), target("fp8-channel")));
  const auto report = run(out("fp8"), out(), target("mxfp4"));
  ASSERT_TRUE(report) << report.error().message;
  const Opened fp8(out("fp8")), mxfp4(out());
  for (size_t i = 0; i < fp8.model.linears.size(); ++i) {
    const StoredLinear& from = fp8.model.linears[i];
    const StoredLinear& to = mxfp4.model.linears[i];
    const bool expert = to.spec->experts > 0;
    EXPECT_EQ(to.format->name, expert ? "mxfp4" : "bf16");
    if (from.spec->stage != Stage::kQuery) continue;
    const std::vector<float> was = values_of(from, 0, 5), is = values_of(to, 0, 5);
    for (size_t c = 0; c < was.size(); ++c) {
      EXPECT_NEAR(is[c], was[c], std::fabs(was[c]) * 0x1p-8f);
    }
  }
}

// Mixers and shared experts are quantized; what gives one number for each head or token is not.
TEST_F(Quantize, HybridModels) {
  for (const char* name : {"tiny-qwen3.6-fp8", "tiny-nemotron-nvfp4"}) {
    const std::string in = hybrid_model(name).folder;
    for (const Target* to : {target("nvfp4"), target("fp8-block"), target("fp8-channel")}) {
      const std::string folder = out(fmt::format("{} {}", name, to->format));
      SCOPED_TRACE(folder);
      const auto report = run(in, folder, to);
      ASSERT_TRUE(report) << report.error().message;
      const Opened was(in), is(folder);
      EXPECT_TRUE(is.model.warnings.empty()) << is.model.warnings.front();
      for (size_t i = 0; i < is.model.linears.size(); ++i) {
        const StoredLinear& linear = is.model.linears[i];
        EXPECT_EQ(linear.format == to->stored, quantizers_take(linear.spec->stage))
            << linear.spec->path();
        const std::vector<float> before = values_of(was.model.linears[i], 0, 0);
        const std::vector<float> after = values_of(linear, 0, 0);
        double error = 0, size = 0;
        for (size_t c = 0; c < before.size(); ++c) {
          error += std::pow(after[c] - before[c], 2);
          size += std::pow(before[c], 2);
        }
        EXPECT_LE(error, 0.03 * size) << linear.spec->path();
      }
      for (size_t i = 0; i < is.model.plain.size(); ++i) {
        const TensorView &a = was.model.plain[i], &b = is.model.plain[i];
        ASSERT_EQ(a.bytes(), b.bytes());
        EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << is.table.plain[i].name;
      }
    }
  }
}

TEST_F(Quantize, KeepsWhatItIsToldTo) {
  const auto report = run(model_folder(), out(), target("nvfp4"),
                          {"layers.0", "*.mlp.experts.down_proj", "nobody"});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_EQ(report->warnings[0], "--keep nobody names no linear of the model");
  const Opened opened(out());
  EXPECT_TRUE(opened.model.warnings.empty()) << opened.model.warnings.front();
  for (const StoredLinear& linear : opened.model.linears) {
    const LinearSpec& spec = *linear.spec;
    const bool kept =
        spec.layer <= 0 || spec.stage == Stage::kExpertDown || spec.stage == Stage::kRouter;
    EXPECT_EQ(linear.format->name, kept ? "bf16" : "nvfp4") << spec.path();
  }
  // Experts that were MXFP4 are decoded without loss: bf16 holds every one of their values.
  const Opened before(model_folder());
  for (size_t i = 0; i < opened.model.linears.size(); ++i) {
    if (before.model.linears[i].spec->stage != Stage::kExpertDown) continue;
    EXPECT_EQ(values_of(before.model.linears[i], 3, 17), values_of(opened.model.linears[i], 3, 17));
  }
  const Json config = *read_json_file(out() + "/config.json");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "modelopt");
  const Json hf = *read_json_file(out() + "/hf_quant_config.json");
  EXPECT_EQ(hf["quantization"]["quant_algo"], "W4A16_NVFP4");
  EXPECT_EQ(hf["quantization"]["group_size"], 16);
  const Json& excluded = hf["quantization"]["exclude_modules"];
  const auto names = [&](const char* name) {
    return std::find(excluded.begin(), excluded.end(), name) != excluded.end();
  };
  EXPECT_TRUE(names("lm_head"));
  EXPECT_TRUE(names("model.layers.3.mlp.router"));
  EXPECT_TRUE(names("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(names("model.layers.5.mlp.experts.15.down_proj"));
  EXPECT_FALSE(names("model.embed_tokens"));
}

// One linear has one format: some of its experts cannot be kept, all of them can.
TEST_F(Quantize, KeepsAllExpertsOrNone) {
  const std::string layer = "model.layers.2.mlp.experts.";
  for (const std::string one : {layer + "3", layer + "3.gate_proj", layer + "*5.up_proj",
                                std::string("layers\\.2\\.mlp\\.experts\\.[3-5]\\.")}) {
    const std::string pattern = one.front() == 'l' ? ".*" + one : one;
    EXPECT_ERROR(run(model_folder(), out(), target("fp8-channel"), {pattern}),
                 "of the 16 experts of model.layers.2.mlp.experts.gate_up_proj (expert ");
    EXPECT_ERROR(run(model_folder(), out(), target("fp8-channel"), {pattern}),
                 "but experts are quantized or kept together; --keep ");
    EXPECT_FALSE(fs::exists(out()));
  }
  std::vector<std::string> all;
  for (int e = 0; e < 16; ++e) all.push_back(layer + std::to_string(e) + ".down_proj");
  const auto report = run(model_folder(), out(), target("fp8-channel"), all);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->warnings.empty()) << report->warnings.front();
  const Opened opened(out());
  for (const StoredLinear& linear : opened.model.linears) {
    if (linear.spec->experts == 0) continue;
    const bool kept = linear.spec->layer == 2 && linear.spec->stage == Stage::kExpertDown;
    EXPECT_EQ(linear.format->name, kept ? "bf16" : "fp8-channel") << linear.spec->path();
  }
}

// Parts that a server fuses share a scale, or it would have to choose one of them.
TEST_F(Quantize, PartsThatAreFusedShareTheirTensorScale) {
  ASSERT_TRUE(run(model_folder(), out(), target("nvfp4", "compressed-tensors")));
  const Checkpoint checkpoint = *Checkpoint::open(out());
  const auto scale = [&](const std::string& module) {
    return load_f32(*checkpoint.find("model.layers.1." + module + ".weight_global_scale"), 0);
  };
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.k_proj"));
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.v_proj"));
  EXPECT_NE(scale("self_attn.q_proj"), scale("self_attn.o_proj"));
  EXPECT_EQ(scale("mlp.experts.4.gate_proj"), scale("mlp.experts.4.up_proj"));
}

TEST_F(Quantize, WritesShardsWithAnIndexAndTheConfigLast) {
  QuantizeOptions options;
  options.target = target("fp8-block");
  options.shard_bytes = 1 << 20;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    EXPECT_FALSE(fs::exists(out() + "/config.json"));
    return true;
  };
  const auto report = quantize_checkpoint(model_folder(), out(), options);
  ASSERT_TRUE(report) << report.error().message;
  const Json index = *read_json_file(out() + "/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], report->bytes);
  int shards = 0;
  for (const auto& entry : fs::directory_iterator(out())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    // One tensor may be larger than a shard, two may not.
    EXPECT_LE(entry.file_size(), (size_t{2} << 20) + 100000) << entry.path();
  }
  EXPECT_GT(shards, 8);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja"}) {
    EXPECT_EQ(read_whole(out() + "/" + name), read_whole(model_folder() + "/" + name)) << name;
  }
  EXPECT_FALSE(fs::exists(out() + "/reference.json"));
  EXPECT_TRUE(Model::load(out(), {}));
  const Opened opened(out());
  EXPECT_TRUE(opened.model.warnings.empty());
}

TEST_F(Quantize, StoppedLeavesNothing) {
  for (const bool there : {false, true}) {
    if (there) fs::create_directories(out());
    QuantizeOptions options;
    options.target = target("mxfp8");
    options.progress = [](uint64_t done, uint64_t total) { return done < total / 2; };
    const auto report = quantize_checkpoint(model_folder(), out(), options);
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->stopped);
    EXPECT_EQ(fs::exists(out()), there);
    EXPECT_TRUE(!there || fs::is_empty(out()));
  }
}

TEST_F(Quantize, RefusesFoldersThatHoldSomething) {
  EXPECT_ERROR(run(model_folder(), model_folder(), target("mxfp8")), "is the folder that is read");
  EXPECT_ERROR(run(model_folder(), model_folder() + "/../tiny-gpt-oss-mxfp4/", target("mxfp8")),
               "is the folder that is read");
  fs::create_directories(out());
  folder_.write("out/notes.txt", "mine");
  EXPECT_ERROR(run(model_folder(), out(), target("mxfp8")), "is not empty");
  EXPECT_EQ(read_whole(out() + "/notes.txt"), "mine");
  EXPECT_ERROR(run(model_folder(), out() + "/notes.txt", target("mxfp8")),
               "cannot make the folder");
  EXPECT_ERROR(run(folder_.path() + "/none", out("b"), target("mxfp8")), "none");
  EXPECT_FALSE(fs::exists(out("b")));
}

TEST_F(Quantize, RefusesWhatIsNoNumber) {
  const std::string nan("\xc0\x7f", 2);
  for (const std::string name :
       {"model.layers.3.self_attn.k_proj.weight", "model.layers.1.input_layernorm.weight",
        "lm_head.weight", "model.layers.5.mlp.experts.down_proj_bias"}) {
    const std::string in = spoilt(name, 10, nan);
    EXPECT_ERROR(run(in, out(), target("nvfp4")),
                 "tensor " + name + " holds NaN or infinity at index 5");
    EXPECT_FALSE(fs::exists(out()));
    fs::remove_all(in);
  }
  const std::string in = spoilt("model.layers.2.mlp.experts.gate_up_proj_scales", 7, "\xff");
  EXPECT_ERROR(run(in, out(), target("nvfp4")), "the scale 255, which is NaN, at index 7");
}

TEST_F(Quantize, OutliersAndZerosSurviveEveryTarget) {
  // Row 1 of a matrix of 192 channels: an outlier, and a row of zeros behind it.
  std::string bytes(2 * 192 * 2, '\0');
  bytes.replace(0, 2, std::string("\x00\x5f", 2));  // 2^63
  const std::string in = spoilt("model.layers.0.self_attn.q_proj.weight", 2 * 192, bytes);
  for (const Target* to : all_targets()) {
    if (to->scope == Scope::kExperts) continue;
    const std::string where = out(std::string(to->format) + " " + std::string(to->recipe));
    const auto report = run(in, where, to);
    ASSERT_TRUE(report) << report.error().message;
    const Opened opened(where);
    const StoredLinear& query = opened.model.linears[1];
    EXPECT_TRUE(check_finite(query));
    const std::vector<float> outlier = values_of(query, 0, 1), zeros = values_of(query, 0, 2);
    EXPECT_NEAR(outlier[0], 0x1p63f, 0x1p58f) << where;
    for (const float value : zeros) EXPECT_EQ(value, 0) << where;
  }
}

// What a refusal advises can be typed as it stands.
TEST(QuantizeAdvice, KeepsWhatIsTooNarrow) {
  const std::string model = small_model("olmoe").folder;
  const test::TempFolder folder;
  QuantizeOptions options;
  options.target = *find_target("mxfp4", "modelopt");
  for (int layer = 0; layer < 2; ++layer) {
    const auto refused = quantize_checkpoint(model, folder.path() + "/out", options);
    ASSERT_FALSE(refused);
    const std::string& text = refused.error().message;
    const size_t at = text.find("--keep ");
    ASSERT_NE(at, text.npos) << text;
    options.keep.push_back(text.substr(at + 7, text.find(" leaves it") - at - 7));
  }
  const auto report = quantize_checkpoint(model, folder.path() + "/out", options);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->warnings.empty()) << report->warnings.front();
}

}  // namespace
}  // namespace lk::test

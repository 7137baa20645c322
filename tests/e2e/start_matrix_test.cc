// The start matrix: the small model in every format that `quantize` writes, on every backend, with
// LoRA off, enabled, used by one adapter and by two beside the base. Each pair of format and
// backend answers, with the base's bits and the kernels' choice untouched by adapters, or is
// refused in a sentence; `inspect` tells beforehand which.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/inspect.h"
#include "cli/session.h"
#include "model/quantize.h"
#include "model/synth.h"
#include "tests/checkpoint/safetensors_writer.h"
#include "tests/model/harness.h"
#include "tests/model/made_models.h"

namespace lk::test {
namespace {

Result<std::unique_ptr<Model>> load(const std::string& folder, const std::string& backend,
                                    bool lora) {
  ModelOptions options;
  options.moe.backend = backend;
  options.moe.lora = lora;
  options.moe.max_rank = 64;
  options.adapter_slots = 4;
  return Model::load(folder, options);
}

// A short case of the base and of each adapter, in that order.
std::vector<ReferenceCase> short_cases() {
  std::vector<ReferenceCase> all = reference_cases(), chosen;
  for (const char* adapter : {"base", "sql", "json"}) {
    const ReferenceCase* shortest = nullptr;
    for (const ReferenceCase& c : all) {
      if (c.adapter != adapter) continue;
      if (!shortest || c.tokens().size() < shortest->tokens().size()) shortest = &c;
    }
    chosen.push_back(*shortest);
  }
  return chosen;
}

std::vector<std::string> every_backend() {
  std::vector<std::string> names = {"auto"};
  for (const MoeBackend& backend : moe_backends()) names.emplace_back(backend.name);
  return names;
}

OrderedJson inspected(const std::string& folder, const std::string& backend = "",
                      std::optional<ActivationPrecision> activations = {}) {
  InspectOptions options;
  options.model.model = folder;
  options.model.moe_backend = backend;
  options.model.activations = activations;
  const auto report = inspect_report(options);
  EXPECT_TRUE(report) << report.error().message;
  return report ? *report : OrderedJson();
}

class StartMatrix : public testing::TestWithParam<MadeFormat> {};

TEST_P(StartMatrix, D02_L04_AnswersOrIsRefusedInASentence) {
  const MadeFormat& format = GetParam();
  const std::string& folder = small_model_in(format);
  const std::vector<ReferenceCase> cases = short_cases();
  const Sequence base = sequences_of(cases)[0], sql = sequences_of(cases)[1],
                 json = sequences_of(cases)[2];
  std::map<std::string, double> means;  // by backend that answers
  for (const std::string& backend : every_backend()) {
    const auto off = load(folder, backend, false), on = load(folder, backend, true);
    ASSERT_EQ(off.has_value(), on.has_value()) << backend;
    if (!on) {
      EXPECT_EQ(off.error().message, on.error().message);
      const std::string reason =
          backend.starts_with("cuda-") ? " runs on the cuda kernels alone" : " does not take";
      EXPECT_EQ(on.error().message.find("layers 0-5 (" + format.name + " experts): --moe-backend " +
                                        backend + reason),
                0u)
          << on.error().message;
      EXPECT_EQ(on.error().message.find('\n'), std::string::npos);
      continue;
    }
    EXPECT_EQ((*off)->info().moe_plan, (*on)->info().moe_plan);
    const auto alone = run(**off, {base});
    EXPECT_TRUE(same_bits(run(**on, {base})[0].logits, alone[0].logits)) << backend;
    bind_all(**on);
    EXPECT_TRUE(same_bits(run(**on, {base})[0].logits, alone[0].logits)) << backend;
    const auto one = run(**on, {sql}),
               mixed = run(**on, {json, base, sql}, {.seed = 2, .steps = 3});
    EXPECT_TRUE(same_bits(mixed[1].logits, alone[0].logits)) << backend;
    EXPECT_TRUE(same_bits(mixed[2].logits, one[0].logits)) << backend;
    // The canary: what another implementation says of the model as it was published.
    Deviation d;
    d.add(cases[0], mixed[1], (*on)->info().vocab);
    d.add(cases[1], mixed[2], (*on)->info().vocab);
    d.add(cases[2], mixed[0], (*on)->info().vocab);
    fmt::print("{} on {}: {}\n", format.name, backend, d.text());
    means[backend] = d.mean();
  }
  ASSERT_GE(means.size(), 3u);  // auto, cpu-w16, reference
  // What the format loses is plain loops' too; a backend may add what rounding activations does.
  const bool four_bits =
      format.quantizes_attention && format.target->stored->element == Element::kE2M1;
  EXPECT_LE(means["reference"], four_bits ? 0.45 : 0.25);
  for (const auto& [backend, mean] : means)
    EXPECT_LE(mean, means["reference"] * 1.25 + 0.09) << backend;
}

TEST_P(StartMatrix, InspectShowsTheTable) {
  const MadeFormat& format = GetParam();
  const OrderedJson report = inspected(small_model_in(format));
  EXPECT_TRUE(report["warnings"].empty()) << report["warnings"].dump();
  ASSERT_EQ(report["moe"].size(), 1u);
  const OrderedJson& group = report["moe"][0];
  EXPECT_EQ(group["up_format"], format.name);
  EXPECT_EQ(group["down_format"], format.name);
  ASSERT_EQ(group["backends"].size(), moe_backends().size());
  const std::string text = inspect_text(report);
  EXPECT_NE(text.find("experts of layers 0-5 (" + format.name + ")\n"), std::string::npos) << text;
  int chosen = 0;
  for (const OrderedJson& row : group["backends"]) {
    const std::string name = row["name"], reason = row["reason"];
    EXPECT_FALSE(reason.empty()) << name;
    const bool taken = row["chosen"];
    chosen += taken;
    if (taken) {
      EXPECT_EQ(group["backend"], name);
    }
    EXPECT_NE(text.find(fmt::format("{} {:<14} {}\n", taken ? "*" : " ", name, reason)),
              std::string::npos)
        << text;
    // The reason for what cannot run is that of the refusal.
    if (const auto refused = load(small_model_in(format), name, true); !refused) {
      EXPECT_NE(refused.error().message.find("--moe-backend " + name + " " + reason),
                std::string::npos)
          << refused.error().message;
    }
  }
  EXPECT_EQ(chosen, 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, StartMatrix, testing::ValuesIn(made_formats()),
                         [](const auto& info) { return case_name(info.param.name); });

// The experts of three layers kept in bf16 by `quantize --keep`.
TEST(MixedPrecision, LayerGroupsChooseForThemselves) {
  const TempFolder folder;
  QuantizeOptions options;
  options.target = *find_target("nvfp4", "");
  options.keep = {"layers.0.mlp.experts", "layers.1.mlp.experts", "layers.2.mlp.experts"};
  const std::string out = folder.path() + "/mixed";
  const auto made = quantize_checkpoint(model_folder(), out, options);
  ASSERT_TRUE(made) << made.error().message;

  const OrderedJson report = inspected(out, "", ActivationPrecision::k8Bit);
  EXPECT_TRUE(report["warnings"].empty()) << report["warnings"].dump();
  ASSERT_EQ(report["moe"].size(), 2u);
  struct Group {
    int first, last;
    const char *format, *backend;
  };
  for (const Group& want : {Group{0, 2, "bf16", "cpu-w16"}, Group{3, 5, "nvfp4", "cpu-w4a8"}}) {
    const OrderedJson& group = report["moe"][want.first == 0 ? 0 : 1];
    EXPECT_EQ(group["first_layer"], want.first);
    EXPECT_EQ(group["last_layer"], want.last);
    EXPECT_EQ(group["up_format"], want.format);
    EXPECT_EQ(group["backend"], want.backend);
    const std::string title =
        fmt::format("experts of layers {}-{} ({})\n", want.first, want.last, want.format);
    EXPECT_NE(inspect_text(report).find(title), std::string::npos) << inspect_text(report);
  }
  const auto refused = load(out, "cpu-w4a8", true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "layers 0-2 (bf16 experts): --moe-backend cpu-w4a8 does not take bf16 weights");

  // Plain loops over the same weights decoded.
  write_decoded(out, folder.path() + "/decoded");
  ModelOptions plain;
  plain.kernels = "reference";
  plain.kv_type = KvType::kF32;
  const auto reference = Model::load(folder.path() + "/decoded", plain);
  ASSERT_TRUE(reference) << reference.error().message;
  bind_all(**reference);
  const std::vector<Sequence> sequences = sequences_of(short_cases());
  const auto expected = run(**reference, sequences);
  for (const bool eight_bit : {false, true}) {
    ModelOptions mixed;
    mixed.kv_type = KvType::kF32;
    if (eight_bit) mixed.moe.activations = ActivationPrecision::k8Bit;
    const auto model = Model::load(out, mixed);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ((*model)->info().moe_plan.size(), 2u);
    bind_all(**model);
    const auto runs = run(**model, sequences, {.forced = &expected});
    const int vocab = (*model)->info().vocab;
    for (size_t i = 0; i < runs.size(); ++i) {
      double sum = 0;
      const size_t tokens = runs[i].logits.size() / vocab;
      for (size_t t = 0; t < tokens; ++t) {
        const auto want = log_softmax(&expected[i].logits[t * vocab], vocab);
        const auto got = log_softmax(&runs[i].logits[t * vocab], vocab);
        for (int v = 0; v < vocab; ++v) sum += std::abs(want[v] - got[v]);
      }
      const double mean = sum / static_cast<double>(tokens * vocab);
      fmt::print("mixed precision, {} activations: |dlogprob| mean {:.6f}\n",
                 eight_bit ? "8-bit" : "unquantized", mean);
      EXPECT_LE(mean, eight_bit ? 0.05 : 1e-4) << i;
    }
  }
}

// As many adapters given at the start as anybody has: each answers as it does among fewer.
TEST(ManyAdapters, M09_ThirtyTwoAtTheStart) {
  constexpr int kMost = 32;
  const TempFolder folder;
  lk::RunOptions options;
  options.model.model = model_folder();
  options.max_num_seqs = kMost;
  options.max_model_len = 256;
  {
    const auto model = Model::load(model_folder(), {});
    ASSERT_TRUE(model);
    for (int i = 0; i < kMost; ++i) {
      SynthAdapterOptions synth;
      synth.rank = 1 + i % 3;
      synth.alpha = 40;
      synth.seed = static_cast<uint64_t>(i);
      const std::string path = fmt::format("{}/a{}", folder.path(), i);
      ASSERT_TRUE(synthesize_adapter(path, (*model)->linears(), synth));
    }
  }
  std::vector<std::vector<float>> alone;
  for (const int count : {kMost, 1, 2, 8}) {
    options.model.lora.clear();
    for (int i = 0; i < count; ++i)
      options.model.lora.push_back(fmt::format("a{}={}/a{}", i, folder.path(), i));
    const auto session = Session::load(options);
    ASSERT_TRUE(session) << count << ": " << session.error().message;
    Engine& engine = (*session)->engine();
    std::map<RequestId, size_t> order;
    std::vector<std::vector<float>> answers(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      Request request;
      request.adapter = *(*session)->adapter(fmt::format("a{}", i));
      for (int t = 0; t < 12; ++t) request.prompt.push_back(100 + 7 * t);
      request.max_tokens = 3;
      request.ignore_eos = true;
      request.logprobs = 0;
      const auto id = engine.submit(std::move(request));
      ASSERT_TRUE(id) << id.error().message;
      order[*id] = static_cast<size_t>(i);
    }
    std::vector<TokenEvent> events;
    while (!engine.idle()) {
      events.clear();
      engine.step(events);
      for (const TokenEvent& event : events) {
        if (event.token < 0) continue;
        auto& answer = answers[order.at(event.request)];
        answer.push_back(static_cast<float>(event.token));
        answer.push_back(event.logprob);
      }
    }
    if (alone.empty()) {
      alone = answers;
      auto sorted = answers;
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end()) << "two answer alike";
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].size(), 6u);
      EXPECT_EQ(answers[i], alone[i]) << count << " adapters, number " << i;
    }
  }
}

}  // namespace
}  // namespace lk::test

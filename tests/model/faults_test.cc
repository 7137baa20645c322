// Planted faults: each must break a tolerance of reference_test.cc, or those tests prove nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/model/harness.h"
#include "tests/model/passing_kernels.h"

namespace lk::test {
namespace {

std::vector<ReferenceCase> some_cases(const std::string& adapter, size_t first, size_t count) {
  std::vector<ReferenceCase> all = reference_cases(), some;
  std::erase_if(all, [&](const ReferenceCase& c) { return c.adapter != adapter; });
  std::copy_n(all.begin() + first, count, std::back_inserter(some));
  return some;
}

Deviation deviation_of(Model& model, const std::vector<ReferenceCase>& cases) {
  const auto runs = run(model, sequences_of(cases), {.seed = 5, .steps = 2});
  return deviation(cases, runs, model.info().vocab);
}

// What FastRow.AgreesWithTheReference allows; Reference.MixedBatchOfAllCases allows far less.
bool within_tolerance(const Deviation& d) { return d.mean() <= 0.01 && d.quantile(0.99) <= 0.1; }

void expect_caught(const std::string& fault, const Deviation& d) {
  fmt::print("{}: {}\n", fault, d.text());
  EXPECT_FALSE(within_tolerance(d)) << fault;
}

// Runs cases of `name` with a spoilt copy of its adapter.
template <typename Spoil>
void expect_adapter_fault_caught(const std::string& fault, const std::string& name, Spoil&& spoil) {
  static const std::unique_ptr<Model> model =
      load_model({.kernels = every_row().front(), .kv_type = KvType::kBF16});
  const auto cases = some_cases(name, 0, 3);
  Adapter adapter = load_adapter(*model, name);
  bind(*model, slot_of(name), adapter);
  const Deviation whole = deviation_of(*model, cases);
  ASSERT_TRUE(within_tolerance(whole)) << "without a fault: " << whole.text();
  spoil(adapter);
  bind(*model, slot_of(name), adapter);
  expect_caught(fault, deviation_of(*model, cases));
}

void for_stage(Adapter& adapter, Stage stage, auto&& body) {
  int found = 0;
  for (AdapterModule& module : adapter.modules) {
    if (module.spec->stage == stage) {
      body(module);
      ++found;
    }
  }
  ASSERT_GT(found, 0);
}

TEST(Faults, AdapterOffAtOneSeam) {
  for (const std::string name : {"sql", "math"}) {
    for (Stage stage : {Stage::kQuery, Stage::kKey, Stage::kValue, Stage::kAttentionOut,
                        Stage::kExpertUp, Stage::kExpertDown}) {
      const std::string fault = fmt::format("{} off at {}", name, stage_name(stage));
      expect_adapter_fault_caught(fault, name, [&](Adapter& adapter) {
        std::erase_if(adapter.modules,
                      [&](const AdapterModule& m) { return m.spec->stage == stage; });
      });
    }
  }
}

TEST(Faults, ScaleTooSmall) {
  expect_adapter_fault_caught("scale x 0.9", "json", [](Adapter& adapter) {
    for (AdapterModule& module : adapter.modules) {
      for (LoraPair& pair : module.experts) pair.scale *= 0.9f;
    }
  });
}

TEST(Faults, ExpertOrderOfAOrB) {
  for (Stage stage : {Stage::kExpertUp, Stage::kExpertDown}) {
    for (auto matrix : {&LoraPair::a, &LoraPair::b}) {
      const std::string fault = fmt::format("experts of {} in wrong order at {}",
                                            matrix == &LoraPair::a ? "A" : "B", stage_name(stage));
      expect_adapter_fault_caught(fault, "math", [&](Adapter& adapter) {
        for_stage(adapter, stage, [&](AdapterModule& module) {
          for (size_t e = 0; e + 1 < module.experts.size(); ++e) {
            std::swap(module.experts[e].*matrix, module.experts[e + 1].*matrix);
          }
        });
      });
    }
  }
}

TEST(Faults, GateAndUpSwappedInB) {
  expect_adapter_fault_caught("gate and up swapped in B", "sql", [](Adapter& adapter) {
    for_stage(adapter, Stage::kExpertUp, [](AdapterModule& module) {
      for (LoraPair& pair : module.experts) {
        for (int64_t row = 0; row < module.spec->out; row += 2) {
          auto gate = pair.b.begin() + row * pair.rank;
          std::swap_ranges(gate, gate + pair.rank, gate + pair.rank);
        }
      }
    });
  });
}

// Too small for the fast kernels' tolerance, where Batches.TheWindowIsExact finds it.
TEST(Faults, WindowOneTooLong) {
  const auto model = load_model({.edit = [](DecoderSpec& spec) {
    for (LayerSpec& layer : spec.layers) {
      if (layer.attention->window > 0) ++layer.attention->window;
    }
  }});
  const Deviation d = deviation_of(*model, some_cases("base", 7, 1));
  fmt::print("window one too long: {}\n", d.text());
  EXPECT_GT(d.largest(), 1e-3);
}

TEST(Faults, SinksOff) {
  const auto model = load_model({.edit = [](DecoderSpec& spec) {
    for (LayerSpec& layer : spec.layers) layer.attention->sinks.clear();
  }});
  expect_caught("sinks off", deviation_of(*model, some_cases("base", 0, 2)));
}

// route() keeps the softmax over all experts instead of that over the chosen ones.
class NotRenormalised : public PassingKernels {
 public:
  using PassingKernels::PassingKernels;
  void route(const Batch& b, const RouteArgs& args) override {
    std::vector<int32_t> expert(size_t{1} * b.tokens * args.experts);
    std::vector<float> weight(expert.size());
    RouteArgs all = args;
    all.top_k = args.experts;
    all.expert = expert.data();
    all.weight = weight.data();
    inner_->route(b, all);
    for (int t = 0; t < b.tokens; ++t) {
      std::copy_n(&expert[size_t{1} * t * args.experts], args.top_k, args.expert + t * args.top_k);
      std::copy_n(&weight[size_t{1} * t * args.experts], args.top_k, args.weight + t * args.top_k);
    }
  }
};

TEST(Faults, TopKNotRenormalised) {
  const auto model = load_model({.wrap = [](std::unique_ptr<Kernels> inner) {
    return std::make_unique<NotRenormalised>(std::move(inner));
  }});
  expect_caught("top-k not renormalised", deviation_of(*model, some_cases("base", 0, 2)));
}

}  // namespace
}  // namespace lk::test

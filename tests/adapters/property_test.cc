// Random adapters written in every dialect load to the same normalised form.
#include <gtest/gtest.h>

#include <random>

#include "base/numeric.h"
#include "tests/adapters/adapter_fixture.h"

namespace lk {
namespace {

struct Pair {
  int64_t rank, in, out;
  std::vector<float> a, b;  // [rank, in], [out, rank]
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  Pair pair(int64_t rank, int64_t in, int64_t out) {
    Pair p{rank, in, out, {}, {}};
    // Exact in float16 and bfloat16.
    const auto value = [&] { return static_cast<float>(between(-255, 255)) / 64.0f; };
    for (int64_t i = 0; i < rank * in; ++i) p.a.push_back(value());
    for (int64_t i = 0; i < rank * out; ++i) p.b.push_back(value());
    return p;
  }

 private:
  std::mt19937 engine_;
};

// The halves' pair as one: A = [A_gate; A_up], B block-diagonal.
Pair fused(const Pair& gate, const Pair& up, bool interleaved) {
  Pair p{gate.rank + up.rank, gate.in, gate.out * 2, gate.a, {}};
  p.a.insert(p.a.end(), up.a.begin(), up.a.end());
  p.b.resize(static_cast<size_t>(p.out * p.rank));
  for (int64_t i = 0; i < gate.out; ++i) {
    const int64_t gate_row = interleaved ? 2 * i : i,
                  up_row = interleaved ? 2 * i + 1 : gate.out + i;
    for (int64_t k = 0; k < gate.rank; ++k) {
      p.b[static_cast<size_t>(gate_row * p.rank + k)] =
          gate.b[static_cast<size_t>(i * gate.rank + k)];
    }
    for (int64_t k = 0; k < up.rank; ++k) {
      p.b[static_cast<size_t>(up_row * p.rank + gate.rank + k)] =
          up.b[static_cast<size_t>(i * up.rank + k)];
    }
  }
  return p;
}

// lora_A [E r, n] and lora_B [m, r E] of pairs of one shape; swapped: A on the output side.
void add_stacked(AdapterFiles& files, const std::string& module, const std::vector<Pair>& pairs,
                 bool swapped, DType dtype) {
  const auto e_count = static_cast<int64_t>(pairs.size());
  const int64_t r = pairs[0].rank, n = swapped ? pairs[0].out : pairs[0].in,
                m = swapped ? pairs[0].in : pairs[0].out;
  std::vector<float> a(static_cast<size_t>(e_count * r * n)),
      b(static_cast<size_t>(m * r * e_count));
  for (int64_t e = 0; e < e_count; ++e) {
    const Pair& p = pairs[static_cast<size_t>(e)];
    for (int64_t k = 0; k < r; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        a[static_cast<size_t>((e * r + k) * n + i)] =
            swapped ? p.b[static_cast<size_t>(i * r + k)] : p.a[static_cast<size_t>(k * n + i)];
      }
      for (int64_t o = 0; o < m; ++o) {
        b[static_cast<size_t>(o * r * e_count + k * e_count + e)] =
            swapped ? p.a[static_cast<size_t>(k * m + o)] : p.b[static_cast<size_t>(o * r + k)];
      }
    }
  }
  files.add(module + ".lora_A.weight", {e_count * r, n}, a, dtype);
  files.add(module + ".lora_B.weight", {m, r * e_count}, b, dtype);
}

void add_single(AdapterFiles& files, const std::string& module, const Pair& p, DType dtype) {
  files.add(module + ".lora_A.weight", {p.rank, p.in}, p.a, dtype);
  files.add(module + ".lora_B.weight", {p.out, p.rank}, p.b, dtype);
}

void expect_pair(const LoraPair& got, const Pair& want, float scale, const std::string& where) {
  ASSERT_EQ(got.rank, want.rank) << where;
  EXPECT_EQ(got.scale, scale) << where;
  ASSERT_EQ(got.a.size(), want.a.size()) << where;
  ASSERT_EQ(got.b.size(), want.b.size()) << where;
  for (size_t i = 0; i < got.a.size(); ++i)
    ASSERT_EQ(bf16_to_f32(got.a[i]), want.a[i]) << where << " a " << i;
  for (size_t i = 0; i < got.b.size(); ++i)
    ASSERT_EQ(bf16_to_f32(got.b[i]), want.b[i]) << where << " b " << i;
}

class Dialects : public testing::TestWithParam<unsigned> {};

TEST_P(Dialects, LoadToTheSameForm) {
  Random random(GetParam());
  const bool interleaved = random.between(0, 1) == 1;
  TableSizes sizes;
  sizes.layers = 1;
  sizes.experts = static_cast<int>(random.between(2, 9));
  sizes.hidden = random.between(5, 70);
  sizes.intermediate = random.between(5, 70);
  // Shapes alone must tell orientation and parameter, or the dialects differ by right.
  if (sizes.hidden == sizes.intermediate || sizes.hidden == 2 * sizes.intermediate) ++sizes.hidden;
  const LinearTable table = interleaved ? gpt_oss_test_table(sizes) : qwen_test_table(sizes);
  const int64_t r = random.between(1, 12), alpha = random.between(1, 40);
  const float scale = static_cast<float>(static_cast<double>(alpha) / static_cast<double>(r));

  std::vector<Pair> gate, up, both, down;
  for (int e = 0; e < sizes.experts; ++e) {
    gate.push_back(random.pair(r, sizes.hidden, sizes.intermediate));
    up.push_back(random.pair(r, sizes.hidden, sizes.intermediate));
    both.push_back(fused(gate.back(), up.back(), interleaved));
    down.push_back(random.pair(r, sizes.intermediate, sizes.hidden));
  }
  const Pair query = random.pair(r, sizes.hidden, sizes.query);

  const std::string layer = "base_model.model.model.layers.0.";
  const std::string experts = layer + "mlp.experts";
  // The stacked dialects hold gate and up at rank 2r with 2 alpha, as Transformers 5 converts old
  // adapters.
  const std::string stacked_config = fmt::format(
      R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}, "rank_pattern": {{".*\\.gate_up_proj": {}}},
                      "alpha_pattern": {{".*\\.gate_up_proj": {}}}, "target_modules": ["q_proj"],
                      "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}})",
      r, alpha, 2 * r, 2 * alpha);
  const std::string single_config =
      fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}}})", r, alpha);

  uint64_t identity = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    for (const char* dialect : {"standard", "swapped", "gate_proj", "w1", "unsloth"}) {
      const std::string kind = dialect;
      AdapterFiles files;
      files.config = kind == "standard" || kind == "swapped" ? stacked_config : single_config;
      add_single(files, layer + "self_attn.q_proj", query, dtype);
      if (kind == "standard" || kind == "swapped") {
        add_stacked(files, experts + ".base_layer", both, kind == "swapped", dtype);
        add_stacked(files, experts, down, kind == "swapped", dtype);
      } else if (kind == "unsloth") {
        files.config = fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {},
                                        "rank_pattern": {{"gate_up_projs.\\d+": {}}},
                                        "alpha_pattern": {{"gate_up_projs.\\d+": {}}}}})",
                                   r, alpha, 2 * r, 2 * alpha);
        for (size_t e = 0; e < down.size(); ++e) {
          add_single(files, fmt::format("{}.gate_up_projs.{}", experts, e), both[e], dtype);
          add_single(files, fmt::format("{}.down_projs.{}", experts, e), down[e], dtype);
        }
      } else {
        const bool w = kind == "w1";
        for (size_t e = 0; e < down.size(); ++e) {
          add_single(files, fmt::format("{}.{}.{}", experts, e, w ? "w1" : "gate_proj"), gate[e],
                     dtype);
          add_single(files, fmt::format("{}.{}.{}", experts, e, w ? "w3" : "up_proj"), up[e],
                     dtype);
          add_single(files, fmt::format("{}.{}.{}", experts, e, w ? "w2" : "down_proj"), down[e],
                     dtype);
        }
      }
      const auto adapter = files.load(table);
      ASSERT_TRUE(adapter) << dialect << ": " << adapter.error().message;
      EXPECT_TRUE((*adapter)->warnings.empty()) << dialect << ": " << (*adapter)->warnings.front();
      ASSERT_EQ((*adapter)->modules.size(), 3u) << dialect;
      expect_pair((*adapter)->find(Stage::kQuery, 0)->experts[0], query, scale, dialect);
      for (size_t e = 0; e < down.size(); ++e) {
        const std::string where = fmt::format("{} {} expert {}", dialect, dtype_name(dtype), e);
        expect_pair((*adapter)->find(Stage::kExpertUp, 0)->experts[e], both[e], scale, where);
        expect_pair((*adapter)->find(Stage::kExpertDown, 0)->experts[e], down[e], scale, where);
      }
      if (identity == 0) identity = (*adapter)->identity;
      EXPECT_EQ((*adapter)->identity, identity) << dialect;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Dialects, testing::Range(1u, 25u));

}  // namespace
}  // namespace lk

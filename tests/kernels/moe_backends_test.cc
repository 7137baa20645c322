// The oracle: what it chooses for every format and kernels row, what it says of the others, and
// that nothing but the layer's needs enters.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "kernels/moe_backends.h"
#include "kernels/select.h"
#include "quant/formats.h"

namespace lk::test {
namespace {

MoeNeeds needs_of(const Format& format, std::string_view kernels) {
  return {.kernels = kernels,
          .up = &format,
          .down = &format,
          .activation = Activation::kClampedSwiGlu,
          .gated = true,
          .bias = true,
          .hidden = 2880,
          .intermediate = 2880,
          .lora = true,
          .max_rank = 64,
          .activations = {}};
}

std::string chosen(const MoeNeeds& needs, std::string_view name = "",
                   std::span<const MoeBackend> table = moe_backends()) {
  const auto choice = choose_moe_backend(needs, name, table);
  return choice ? std::string(choice->backend->name) : choice.error().message;
}

// Format x kernels x --activations; a choice that changes shows in the diff of the golden file.
TEST(MoeBackends, GoldenTable) {
  std::string table;
  for (const Format* format : all_formats()) {
    std::vector<std::string_view> kernels = {"cuda"};
    for (const KernelsRow& row : kernels_table()) kernels.push_back(row.name);
    for (std::string_view name : kernels) {
      MoeNeeds needs = needs_of(*format, name);
      std::string line(format->name);
      line += " " + std::string(name) + (name == "cuda" ? " gpu:" : " cpu:");
      for (auto precision : {ActivationPrecision::kBF16, ActivationPrecision::k8Bit}) {
        needs.activations = precision;
        line += precision == ActivationPrecision::kBF16 ? " bf16 " : ", 8bit ";
        line += chosen(needs);
      }
      table += line + "\n";
    }
  }
  const std::string path = std::string(LK_SOURCE_DIR) + "/tests/data/moe_backends.txt";
  std::ifstream file(path);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(table, golden.str()) << "if the change is meant, write this to " << path;
}

// Whatever takes gated experts takes those of Nemotron as well.
TEST(MoeBackends, UngatedExpertsGetTheSameRows) {
  for (const Format* format : all_formats()) {
    for (const KernelsRow& row : kernels_table()) {
      const MoeNeeds gated = needs_of(*format, row.name);
      MoeNeeds ungated = gated;
      ungated.gated = false;
      ungated.activation = Activation::kRelu2;
      EXPECT_EQ(chosen(ungated), chosen(gated));
      for (const MoeBackend& backend : moe_backends())
        EXPECT_EQ(chosen(ungated, backend.name), chosen(gated, backend.name));
    }
  }
}

TEST(MoeBackends, ChoiceDoesNotDependOnLora) {
  for (const Format* format : all_formats()) {
    for (const KernelsRow& row : kernels_table()) {
      MoeNeeds with = needs_of(*format, row.name), without = with;
      without.lora = false;
      EXPECT_EQ(chosen(with), chosen(without));
      with.max_rank = 256;
      EXPECT_EQ(chosen(with), chosen(without));
    }
  }
}

TEST(MoeBackends, NameIsHonouredOrRefusedInWords) {
  MoeNeeds needs = needs_of(kFormatMxfp4, "avx2");
  EXPECT_EQ(chosen(needs, "cpu-w4a8"), "cpu-w4a8");
  EXPECT_EQ(chosen(needs, "cpu-w16"), "cpu-w16");
  EXPECT_EQ(chosen(needs, "auto"), "cpu-w16");
  EXPECT_EQ(chosen(needs, "cpu-w8a8"), "--moe-backend cpu-w8a8 does not take mxfp4 weights");
  EXPECT_EQ(chosen(needs, "marlin"),
            "there is no --moe-backend 'marlin'; known are auto, cpu-w4a8, cpu-w8a8, "
            "cpu-w8a8-int8, cpu-w16, cuda-w8a8, cuda-w16, reference");
  needs.kernels = "reference";
  EXPECT_EQ(chosen(needs, "cpu-w16"),
            "--moe-backend cpu-w16 does not run on the reference kernels");
  EXPECT_EQ(chosen(needs, "cuda-w16"), "--moe-backend cuda-w16 runs on the cuda kernels alone");
  needs.kernels = "cuda";
  EXPECT_EQ(chosen(needs, "cpu-w16"), "--moe-backend cpu-w16 computes on the CPU");
  EXPECT_EQ(chosen(needs, "cuda-w8a8"), "--moe-backend cuda-w8a8 does not take mxfp4 weights");
  needs.kernels = "avx2";
  needs.activations = ActivationPrecision::kBF16;
  EXPECT_EQ(chosen(needs, "cpu-w4a8"),
            "--moe-backend cpu-w4a8 rounds activations to int8, and --activations bf16 forbids it");
  needs.activations = ActivationPrecision::k8Bit;
  EXPECT_EQ(chosen(needs, "cpu-w16"),
            "--moe-backend cpu-w16 leaves activations unquantized, and --activations 8bit asks for "
            "8-bit ones");
}

// On a GPU as on the CPU: 8-bit activations where they are asked for, or by name.
TEST(MoeBackends, GpuRoundsActivationsWhenAsked) {
  MoeNeeds needs = needs_of(kFormatFp8Block, "cuda");
  EXPECT_EQ(chosen(needs), "cuda-w16");
  EXPECT_EQ(chosen(needs, "cuda-w8a8"), "cuda-w8a8");
  const auto choice = choose_moe_backend(needs, "");
  for (const MoeVerdict& verdict : choice->verdicts) {
    if (verdict.backend->name != "cuda-w8a8") continue;
    EXPECT_EQ(verdict.reason, "rounds activations to E4M3: by --activations 8bit or by name only");
  }
  needs.activations = ActivationPrecision::kBF16;
  EXPECT_EQ(chosen(needs), "cuda-w16");
  EXPECT_EQ(
      chosen(needs, "cuda-w8a8"),
      "--moe-backend cuda-w8a8 rounds activations to E4M3, and --activations bf16 forbids it");
  needs.activations = ActivationPrecision::k8Bit;
  EXPECT_EQ(chosen(needs), "cuda-w8a8");
  needs.gated = false;
  needs.activation = Activation::kRelu2;
  EXPECT_EQ(chosen(needs), "cuda-w8a8");
  needs.down = &kFormatBF16;
  EXPECT_EQ(chosen(needs), "cuda-w16");
}

// Layers whose two linears differ: a row must take both.
TEST(MoeBackends, MixedFormats) {
  MoeNeeds needs = needs_of(kFormatMxfp4, "avx512");
  needs.down = &kFormatBF16;
  needs.activations = ActivationPrecision::k8Bit;
  EXPECT_EQ(chosen(needs), "cpu-w16");
  EXPECT_EQ(chosen(needs, "cpu-w4a8"), "--moe-backend cpu-w4a8 does not take bf16 weights");
}

TEST(MoeBackends, EveryOtherRowHasItsReason) {
  for (const Format* format : all_formats()) {
    const auto choice = choose_moe_backend(needs_of(*format, "avx512"), "");
    ASSERT_TRUE(choice.has_value());
    ASSERT_EQ(choice->verdicts.size(), moe_backends().size());
    for (const MoeVerdict& verdict : choice->verdicts) EXPECT_FALSE(verdict.reason.empty());
  }
  const auto choice = choose_moe_backend(needs_of(kFormatFp8Block, "avx512"), "");
  const auto reason = [&](std::string_view name) {
    for (const MoeVerdict& verdict : choice->verdicts) {
      if (verdict.backend->name == name) return verdict.reason;
    }
    return std::string();
  };
  EXPECT_EQ(reason("cpu-w4a8"), "does not take fp8-block weights");
  EXPECT_EQ(reason("cpu-w8a8"),
            "rounds activations to E4M3: by --activations 8bit or by name only");
  EXPECT_EQ(reason("cpu-w8a8-int8"), "requantizes the weights: by name only");
  EXPECT_EQ(reason("cpu-w16"), "the cheapest that the layer's needs allow");
  EXPECT_EQ(reason("reference"), "costs 100 times as much as cpu-w16");
}

// Rows that requantize weights, or that take no adapters, are never what is chosen unasked.
TEST(MoeBackends, SomeRowsAreTakenByNameOnly) {
  std::vector<MoeBackend> table(moe_backends().begin(), moe_backends().end());
  MoeBackend fast = table[3];
  ASSERT_EQ(fast.name, "cpu-w16");
  fast.name = "without-lora";
  fast.supports_lora = false;
  fast.cost = 0.01;
  table.insert(table.begin(), fast);
  MoeNeeds needs = needs_of(kFormatFp8Block, "avx512");
  EXPECT_EQ(chosen(needs, "", table), "cpu-w16");
  EXPECT_EQ(chosen(needs, "without-lora", table),
            "--moe-backend without-lora takes no adapters, and LoRA is enabled");
  needs.lora = false;
  EXPECT_EQ(chosen(needs, "", table), "cpu-w16");
  EXPECT_EQ(chosen(needs, "without-lora", table), "without-lora");
  needs.activations = ActivationPrecision::k8Bit;
  EXPECT_EQ(chosen(needs, "", table), "cpu-w8a8");
  EXPECT_EQ(chosen(needs, "cpu-w8a8-int8", table), "cpu-w8a8-int8");
}

TEST(MoeBackends, CapabilitiesThatFailAreNamed) {
  MoeBackend row = moe_backends()[3];
  const auto why = [&](const MoeNeeds& needs) {
    return chosen(needs, row.name, std::span<const MoeBackend>(&row, 1));
  };
  const MoeNeeds needs = needs_of(kFormatMxfp4, "avx2");
  EXPECT_EQ(why(needs), "cpu-w16");
  row.bias = false;
  EXPECT_EQ(why(needs), "--moe-backend cpu-w16 adds no bias");
  row.bias = true;
  row.max_rank = 32;
  EXPECT_EQ(why(needs),
            "--moe-backend cpu-w16 takes adapters up to rank 32, and rank 64 is allowed");
  row.max_rank = 64;
  row.channels_multiple = 256;
  EXPECT_EQ(why(needs),
            "--moe-backend cpu-w16 needs multiples of 256 channels, and these are 2880 and 2880");
  row.channels_multiple = 64;
  row.gated = false;
  EXPECT_EQ(why(needs), "--moe-backend cpu-w16 takes no gated experts");
  row.gated = true;
  MoeNeeds ungated = needs;
  ungated.gated = false;
  EXPECT_EQ(why(ungated), "cpu-w16");
  row.ungated = false;
  EXPECT_EQ(why(ungated), "--moe-backend cpu-w16 takes gated experts only");
  row.activations = {};
  EXPECT_EQ(why(needs), "--moe-backend cpu-w16 lacks the layer's activation function");
}

// Whoever chooses kernels by a format's name goes around the table.
TEST(MoeBackends, NobodyElseNamesAFormat) {
  const std::regex names(
      R"(kFormat(F32|F16|BF16|Fp8|Mxfp|Nvfp)|"(mxfp4|mxfp8|nvfp4|fp8)[a-z0-9-]*")");
  const std::filesystem::path src = std::filesystem::path(LK_SOURCE_DIR) / "src";
  int files = 0;
  for (const char* room :
       {"kernels", "backend", "model", "adapters", "cache", "engine", "server"}) {
    if (!std::filesystem::exists(src / room)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(src / room)) {
      if (!entry.is_regular_file()) continue;
      // Writers of checkpoints name the format that they write.
      const std::string name = entry.path().filename();
      if (name.starts_with("synth") || name.starts_with("quantize")) continue;
      ++files;
      std::ifstream file(entry.path());
      std::string line;
      while (std::getline(file, line)) {
        line = line.substr(0, line.find("//"));
        EXPECT_FALSE(std::regex_search(line, names)) << entry.path() << ": " << line;
      }
    }
  }
  EXPECT_GT(files, 100);
}

}  // namespace
}  // namespace lk::test

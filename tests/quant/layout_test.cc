// Every quantized layout: the values that the libraries which publish it decode (golden file),
// fused and per-expert spellings, and refusals.
#include "quant/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

#include "quant/formats.h"
#include "tests/quant/toy_model.h"

namespace lk {
namespace {

using namespace test;  // NOLINT: the toy model's parts

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string unpacked(const std::string& path) {
  const std::string command = "xz -dc '" + path + "'";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[1 << 14];
  for (size_t n; pipe && (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, n);
  }
  if (pipe) ::pclose(pipe);
  return text;
}

LinearTable one_linear(int64_t out, int64_t in, int experts = 0) {
  LinearTable table;
  table.architecture = "toy";
  table.prefixes = {""};
  LinearSpec spec{.stage = Stage::kQuery, .layer = 0, .out = out, .in = in, .names = {{"m"}}};
  if (experts > 0) {
    spec.stage = Stage::kExpertUp;
    spec.experts = experts;
    spec.row_order = RowOrder::kStackedGateUp;
    spec.names = {{"m", NameForm::kParameterOutIn},
                  {"m.{expert}.gate", NameForm::kExpertModule, RowPart::kGate},
                  {"m.{expert}.up", NameForm::kExpertModule, RowPart::kUp}};
  }
  table.linears = {spec};
  return table;
}

TEST(Layout, GoldenValues) {
  const auto cases = nlohmann::json::parse(
      unpacked(std::string(LK_SOURCE_DIR) + "/tests/data/formats-golden.json.xz"));
  std::set<std::string> formats;
  for (const auto& c : cases) {
    const std::string name = c["name"];
    Tensors tensors;
    for (const auto& t : c["tensors"]) {
      tensors.push_back(
          {"m." + t["part"].get<std::string>(), t["dtype"], t["shape"], unhex(t["bytes"])});
    }
    const int64_t cols = c["cols"];
    const Loaded loaded(tensors, one_linear(c["rows"], cols));
    ASSERT_TRUE(loaded.model) << name << ": " << loaded.model.error().message;
    const StoredLinear& linear = loaded.model->linears[0];
    EXPECT_EQ(linear.format->name, c["format"].get<std::string>()) << name;
    formats.insert(std::string(linear.format->name));
    const std::string values = unhex(c["values"]);
    float largest = 0;
    size_t at = 0;
    for (const int64_t row : c["checked"]) {
      const std::vector<float> got = decoded(linear, 0, row);
      for (int64_t i = 0; i < cols; ++i, at += sizeof(float)) {
        float expected;
        std::memcpy(&expected, values.data() + at, sizeof(expected));
        // The sign of zero is no part of the promise: an oracle may lose it.
        ASSERT_EQ(got[static_cast<size_t>(i)], expected)
            << name << " row " << row << " column " << i;
        largest = std::max(largest, std::fabs(expected));
      }
    }
    // What is decoded rightly is loaded, unless no norm could follow it.
    const Status status = check_finite(linear);
    EXPECT_TRUE(status || largest >= 0x1p64f) << name << ": " << status.error().message;
    EXPECT_EQ(at, values.size()) << name;
  }
  for (const Format* format : all_formats()) {
    EXPECT_EQ(formats.count(std::string(format->name)), is_quantized(*format) ? 1u : 0u)
        << format->name;
  }
}

WrittenTensor floats(std::string name, const std::string& dtype, std::vector<int64_t> shape,
                     std::vector<float> values) {
  WrittenTensor t{std::move(name), dtype, std::move(shape), ""};
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype == "BF16") bits >>= 16;
    t.bytes.append(reinterpret_cast<const char*>(&bits), dtype == "BF16" ? 2 : 4);
  }
  return t;
}

// Tensors of one form of one matrix `path`; `fused` > 0: a parameter of so many experts, whose
// parts are joined by '_'. All codes and scales are 1; tensor scales are `scale` + expert.
struct Form {
  std::string name;
  Tensors (*make)(const std::string& path, int64_t rows, int64_t cols, int fused, float scale);
  const Format* format;
  bool tensor_scale;
};

WrittenTensor ones(const std::string& path, const std::string& part, const std::string& dtype,
                   std::vector<int64_t> shape, int fused, uint8_t byte) {
  const std::string name = fused == 0         ? path + "." + part
                           : part == "weight" ? path
                                              : path + "_" + part;
  if (fused > 0) shape.insert(shape.begin(), fused);
  WrittenTensor t{name, dtype, std::move(shape), ""};
  t.bytes = std::string(static_cast<size_t>(t.size()), static_cast<char>(byte));
  return t;
}

WrittenTensor numbers(const std::string& path, const std::string& part, std::vector<int64_t> shape,
                      int fused, float first, float step) {
  int64_t each = 1;
  for (int64_t extent : shape) each *= extent;
  if (fused > 0) shape.insert(shape.begin(), fused);
  std::vector<float> values;
  for (int e = 0; e < std::max(fused, 1); ++e) {
    values.insert(values.end(), static_cast<size_t>(each), first + step * static_cast<float>(e));
  }
  return floats(path + (fused == 0 ? "." : "_") + part, "F32", std::move(shape), values);
}

const Form kForms[] = {
    {"fp8-tensor",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float scale) {
       return Tensors{ones(path, "weight", "F8_E4M3", {rows, cols}, fused, 0x38),
                      numbers(path, "weight_scale", {}, fused, scale, 1),
                      numbers(path, "input_scale", {}, fused, 0.5f, 1)};
     },
     &kFormatFp8Tensor, true},
    {"fp8-channel",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float scale) {
       return Tensors{ones(path, "weight", "F8_E4M3", {rows, cols}, fused, 0x38),
                      numbers(path, "weight_scale", {rows, 1}, fused, scale, 1)};
     },
     &kFormatFp8Channel, true},
    {"fp8-block",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float scale) {
       return Tensors{
           ones(path, "weight", "F8_E4M3", {rows, cols}, fused, 0x38),
           numbers(path, fused ? "scale_inv" : "weight_scale_inv", {1, 2}, fused, scale, 1)};
     },
     &kFormatFp8Block, true},
    {"mxfp8",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float) {
       return Tensors{ones(path, "weight", "F8_E4M3", {rows, cols}, fused, 0x38),
                      ones(path, "weight_scale", "U8", {rows, cols / 32}, fused, 127)};
     },
     &kFormatMxfp8, false},
    {"mxfp4",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float) {
       return Tensors{ones(path, "weight", "U8", {rows, cols / 2}, fused, 0x22),
                      ones(path, "weight_scale", "U8", {rows, cols / 32}, fused, 127)};
     },
     &kFormatMxfp4, false},
    {"nvfp4",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float scale) {
       return Tensors{ones(path, "weight", "U8", {rows, cols / 2}, fused, 0x22),
                      ones(path, "weight_scale", "F8_E4M3", {rows, cols / 16}, fused, 0x38),
                      numbers(path, "weight_scale_2", {}, fused, scale, 1),
                      numbers(path, "input_scale", {}, fused, 0.5f, 1)};
     },
     &kFormatNvfp4, true},
    {"nvfp4-divide",
     [](const std::string& path, int64_t rows, int64_t cols, int fused, float scale) {
       return Tensors{ones(path, "weight_packed", "U8", {rows, cols / 2}, fused, 0x22),
                      ones(path, "weight_scale", "F8_E4M3", {rows, cols / 16}, fused, 0x38),
                      numbers(path, "weight_global_scale", {1}, fused, scale, 1),
                      numbers(path, "input_global_scale", {1}, fused, 0.5f, 1)};
     },
     &kFormatNvfp4Divide, true},
};

float scaled(const Form& form, float scale) {
  if (!form.tensor_scale) return 1.0f;
  return form.format->tensor_scale == TensorScale::kDivide ? 1.0f / scale : scale;
}

TEST(Layout, FusedExperts) {
  for (const Form& form : kForms) {
    const Loaded loaded(form.make("m", 8, 160, 3, 2.0f), one_linear(8, 160, 3));
    ASSERT_TRUE(loaded.model) << form.name << ": " << loaded.model.error().message;
    const StoredLinear& linear = loaded.model->linears[0];
    EXPECT_EQ(linear.format, form.format);
    for (int e = 0; e < 3; ++e) {
      const auto row = decoded(linear, e, 5);
      EXPECT_EQ(row[0], scaled(form, 2.0f + static_cast<float>(e))) << form.name;
      EXPECT_EQ(row[159], row[0]) << form.name;
    }
  }
}

TEST(Layout, OneScaleForAllFusedExperts) {
  Tensors tensors = kForms[0].make("m", 8, 160, 3, 2.0f);
  tensors[1] = floats("m_weight_scale", "F32", {}, {0.75f});
  tensors[2] = floats("m_input_scale", "F32", {3, 1}, {1, 2, 3});
  const Loaded loaded(tensors, one_linear(8, 160, 3));
  ASSERT_TRUE(loaded.model) << loaded.model.error().message;
  EXPECT_EQ(decoded(loaded.model->linears[0], 2, 0)[0], 0.75f);
  EXPECT_EQ(loaded.model->linears[0].experts[2][0].input_scale, 3.0f);
}

TEST(Layout, GateAndUpKeepTheirOwnScales) {
  for (const Form& form : kForms) {
    Tensors tensors;
    for (int e = 0; e < 2; ++e) {
      const auto scale = static_cast<float>(1 << e);
      tensors = tensors + form.make(fmt::format("m.{}.gate", e), 4, 160, 0, scale) +
                form.make(fmt::format("m.{}.up", e), 4, 160, 0, 16 * scale);
    }
    const Loaded loaded(tensors, one_linear(8, 160, 2));
    ASSERT_TRUE(loaded.model) << form.name << ": " << loaded.model.error().message;
    const StoredLinear& linear = loaded.model->linears[0];
    EXPECT_EQ(linear.format, form.format);
    EXPECT_EQ(decoded(linear, 0, 3)[7], scaled(form, 1)) << form.name;
    EXPECT_EQ(decoded(linear, 1, 0)[7], scaled(form, 2)) << form.name;
    EXPECT_EQ(decoded(linear, 0, 4)[7], scaled(form, 16)) << form.name;
    EXPECT_EQ(decoded(linear, 1, 7)[7], scaled(form, 32)) << form.name;
  }
}

TEST(Layout, InputScalesAreKept) {
  for (const Form& form : kForms) {
    const Loaded loaded(form.make("m", 8, 160, 0, 2.0f), one_linear(8, 160));
    ASSERT_TRUE(loaded.model) << form.name << ": " << loaded.model.error().message;
    const bool any = form.name == "fp8-tensor" || form.format->element == Element::kE2M1;
    const float expected = form.name == "nvfp4-divide" ? 2.0f : 0.5f;
    EXPECT_EQ(loaded.model->linears[0].experts[0][0].input_scale,
              any && form.name != "mxfp4" ? expected : 0.0f)
        << form.name;
  }
}

// Every tensor of every layout: missing, of another shape, of another type.
TEST(Layout, MissingAndMisshapenTensorsAreNamed) {
  for (const Form& form : kForms) {
    const Tensors all = form.make("m", 8, 160, 0, 2.0f);
    for (size_t i = 0; i < all.size(); ++i) {
      Tensors tensors = all;
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      if (all[i].name.find("input_") == std::string::npos) {
        Loaded loaded(tensors, one_linear(8, 160));
        ASSERT_FALSE(loaded.model) << form.name << " without " << all[i].name;
        // Where nothing tells the name that a layout gives them, these two have the common one.
        const bool unknown = i == 0 || form.name == "fp8-block";
        EXPECT_ERROR(loaded.model, unknown ? "tensor m.weight" : all[i].name);
        EXPECT_ERROR(loaded.model, "is missing");
      }
      tensors = all;
      tensors[i].shape.push_back(3);
      tensors[i].bytes.clear();
      EXPECT_ERROR(Loaded(tensors, one_linear(8, 160)).model, all[i].name + " has shape");
    }
  }
  Tensors narrow = kForms[1].make("m", 8, 160, 0, 2.0f);
  narrow[1].shape = {3, 1};
  narrow[1].bytes.clear();
  EXPECT_ERROR(Loaded(narrow, one_linear(8, 160)).model,
               "tensor m.weight_scale has shape [3, 1], expected [] or [1] or [1, 1] or [8, 1] or "
               "[1, 2]");
  EXPECT_ERROR(Loaded(Tensors{narrow[0]}, one_linear(8, 160)).model,
               "tensor m.weight_scale is missing, expected []");
}

Tensors gates_and_ups(const Form& form, int experts, float scale) {
  Tensors tensors;
  for (int e = 0; e < experts; ++e) {
    for (const char* part : {"gate", "up"})
      tensors = tensors + form.make(fmt::format("m.{}.{}", e, part), 4, 160, 0, scale);
  }
  return tensors;
}

// The other experts tell what one of them should have.
TEST(Layout, WhatOneExpertLacksIsNamed) {
  for (const Form& form : kForms) {
    const Tensors all = gates_and_ups(form, 3, 2.0f);
    ASSERT_TRUE(Loaded(all, one_linear(8, 160, 3)).model) << form.name;
    int lost = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].name.starts_with("m.2.up.") || all[i].name.find("input_") != std::string::npos)
        continue;
      Tensors tensors = all;
      tensors.erase(tensors.begin() + static_cast<int64_t>(i));
      EXPECT_ERROR(Loaded(tensors, one_linear(8, 160, 3)).model,
                   "tensor " + all[i].name + " is missing, expected [");
      ++lost;
    }
    EXPECT_GE(lost, 2);
  }
}

// Of linears that stand alone, the others of the model tell it.
TEST(Layout, TheNameOfMissingScalesIsThatOfTheModel) {
  LinearTable table = one_linear(8, 160);
  table.linears.push_back(
      {.stage = Stage::kKey, .layer = 0, .out = 8, .in = 160, .names = {{"k"}}});
  for (const Form& form : kForms) {
    if (form.format->element != Element::kE4M3) continue;
    Tensors tensors = form.make("m", 8, 160, 0, 2.0f);
    const std::string scales = tensors[1].name;
    tensors = {tensors[0]};
    EXPECT_ERROR(Loaded(tensors + form.make("k", 8, 160, 0, 2.0f), table).model,
                 "tensor " + scales + " is missing, expected [");
  }
}

TEST(Layout, WidthMustHoldWholeGroups) {
  for (const Form& form : kForms) {
    if (form.format->group_cols == 0 || form.format->group_cols == 128) continue;
    EXPECT_ERROR(Loaded(form.make("m", 8, 168, 0, 2.0f), one_linear(8, 168)).model,
                 fmt::format("m is 168 channels wide, but {} needs a multiple of {}", form.name,
                             form.format->group_cols));
  }
}

TEST(Layout, TensorScalesMustBePositive) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Form& form : kForms) {
    if (form.format->tensor_scale == TensorScale::kNone) continue;
    for (const float bad : {0.0f, -1.0f, nan, INFINITY}) {
      EXPECT_ERROR(Loaded(form.make("m", 8, 160, 0, bad), one_linear(8, 160)).model,
                   "at index 0, expected a positive number");
    }
  }
  Tensors tensors = kForms[5].make("m", 8, 160, 3, 2.0f);
  tensors[2] = floats("m_weight_scale_2", "F32", {3}, {1, 2, 0});
  EXPECT_ERROR(Loaded(tensors, one_linear(8, 160, 3)).model,
               "tensor m_weight_scale_2 holds the scale 0 at index 2, expected a positive number");
}

// Codes and group scales are looked at when a linear is loaded.
std::string complaint(const Tensors& tensors) {
  const Loaded loaded(tensors, one_linear(8, 160));
  if (!loaded.model) return loaded.model.error().message;
  const Status status = check_finite(loaded.model->linears[0]);
  return status ? "" : status.error().message;
}

TEST(Layout, CodesAndScalesThatAreNoNumbers) {
  for (const Form& form : kForms) {
    Tensors tensors = form.make("m", 8, 160, 0, 2.0f);
    EXPECT_EQ(complaint(tensors), "") << form.name;
    if (form.format->element == Element::kE4M3) {
      for (const char code : {'\x7f', '\xff'}) {
        tensors[0].bytes[161] = code;
        EXPECT_EQ(complaint(tensors), "tensor m.weight holds NaN or infinity at index 161");
      }
      tensors[0].bytes[161] = '\x38';
    }
    if (form.format->scale == ScaleCodec::kNone) continue;
    std::string& scales = tensors[1].bytes;
    const std::string good = scales;
    auto put = [&](float value) { std::memcpy(scales.data(), &value, sizeof(value)); };
    const auto said = [&](const char* part) {
      EXPECT_NE(complaint(tensors).find(part), std::string::npos)
          << form.name << ": " << complaint(tensors);
    };
    switch (form.format->scale) {
      case ScaleCodec::kE8M0:
        scales[0] = '\xff';
        said("holds the scale 255, which is NaN, at index 0");
        scales[0] = '\0';
        break;
      case ScaleCodec::kE4M3:
        scales[0] = '\x7f';
        said("holds NaN or infinity at index 0");
        scales[0] = '\xb8';
        said("holds the scale -1 at index 0, which is negative");
        scales[0] = '\x80';
        break;
      default:
        put(std::numeric_limits<float>::quiet_NaN());
        said("holds NaN or infinity at index 0");
        put(-1);
        said("holds the scale -1 at index 0, which is negative");
        put(0);
    }
    EXPECT_EQ(complaint(tensors), "") << form.name << ": a scale of zero, or the smallest";
    scales = good;
  }
}

// Sets the number, or the scales of every group, by which a matrix's magnitude is given; false if
// the form's scales are too small to make a weight too large.
bool magnify(const Form& form, WrittenTensor& tensor, float scale) {
  if (tensor.dtype == "F32") {
    for (size_t i = 0; i < tensor.bytes.size(); i += sizeof(scale))
      std::memcpy(tensor.bytes.data() + i, &scale, sizeof(scale));
    return form.format->tensor_scale == TensorScale::kNone ||
           tensor.name.find("weight_") != std::string::npos;
  }
  if (form.format->scale != ScaleCodec::kE8M0) return false;
  tensor.bytes.assign(tensor.bytes.size(), static_cast<char>(127 + std::ilogb(scale)));
  return true;
}

// Weights that no norm can follow are refused by the name of the tensor that makes them so, that of
// the one expert.
TEST(Layout, ScalesThatMakeWeightsTooLargeAreNamed) {
  for (const Form& form : kForms) {
    const bool divides = form.format->tensor_scale == TensorScale::kDivide;
    const bool by_tensor = form.format->tensor_scale != TensorScale::kNone;
    Tensors tensors = gates_and_ups(form, 3, 2.0f);
    for (WrittenTensor& t : tensors) {
      if (!t.name.starts_with("m.2.up.weight_") || t.name.ends_with("packed")) continue;
      if (by_tensor && t.dtype != "F32") continue;
      const auto complaint_at = [&](float scale) {
        EXPECT_TRUE(magnify(form, t, divides ? 1 / scale : scale)) << form.name;
        const Loaded loaded(tensors, one_linear(8, 160, 3));
        EXPECT_TRUE(loaded.model) << loaded.model.error().message;
        const Status status = check_finite(loaded.model->linears[0]);
        return status ? "" : status.error().message;
      };
      for (const float scale : {0x1p65f, 0x1p113f, 0x1p126f}) {
        EXPECT_NE(complaint_at(scale).find("tensor " + t.name + " makes a weight "),
                  std::string::npos)
            << form.name << ": " << complaint_at(scale);
        EXPECT_NE(complaint_at(scale).find("beyond float32 (expert 2, row 0, column 0)"),
                  std::string::npos)
            << form.name;
      }
      EXPECT_EQ(complaint_at(0x1p63f), "") << form.name;
    }
  }
}

}  // namespace
}  // namespace lk

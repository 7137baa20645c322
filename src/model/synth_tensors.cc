#include <cmath>
#include <optional>

#include "model/synth_presets.h"
#include "quant/formats.h"
#include "quant/recipe.h"

namespace lk {
namespace {

// Root mean squares of codes drawn evenly.
constexpr float kE2m1Deviation = 2.9f, kE4m3Deviation = 110.0f;
constexpr int kE4m3One = 0x38;
constexpr float kScaleMean = 1.19f;  // of the four E4M3 codes from one on

class TensorList {
 public:
  TensorList(const SynthModel& model, const Recipe& recipe, double router_skew)
      : table_(model.table), recipe_(recipe), router_skew_(router_skew) {}

  Status add(const LinearSpec& spec) {
    // A whole linear, or a gate and its up.
    for (const LinearName& name : spec.names) {
      if (&name != &spec.names.front() && name.part != RowPart::kUp) break;
      const bool apart = name.form == NameForm::kExpertModule;
      for (int e = 0; e < (apart ? spec.experts : 1); ++e) {
        constexpr std::string_view kHole = "{expert}";
        std::string path = table_.full_name(name.path, table_.prefixes.front());
        if (const size_t at = path.find(kHole); at != path.npos)
          path.replace(at, kHole.size(), std::to_string(e));
        LK_RETURN_IF_ERROR(add_matrix(spec, name, path));
      }
    }
    return {};
  }

  void add(const PlainTensorSpec& spec) {
    const std::string name = table_.full_name(spec.name, table_.prefixes.front());
    const auto put = [&](DType dtype, float deviation, float mean) {
      tensors.push_back({name, dtype, spec.shape, deviation, mean});
    };
    if (spec.name.ends_with("norm.weight") || spec.name.ends_with("norm_f.weight") ||
        spec.name.find("layernorm") != std::string::npos) {
      put(DType::kBF16, 0.1f, 1.0f - spec.offset);
    } else if (spec.name.ends_with("A_log")) {
      put(DType::kBF16, 0.5f, 1.5f);  // decays of a few units of the time step
    } else if (spec.name.ends_with("dt_bias")) {
      put(DType::kBF16, 1.0f, -4.6f);  // time steps around a hundredth, as models start with
    } else if (spec.name.ends_with("e_score_correction_bias")) {
      put(DType::kF32, 0.02f, 0);
    } else if (spec.name.ends_with("mixer.D")) {
      put(DType::kBF16, 0.1f, 1.0f);
    } else if (spec.name.ends_with("conv1d.weight")) {
      put(DType::kBF16, 1.0f / std::sqrt(static_cast<float>(spec.shape.back())), 0);
    } else {
      put(DType::kBF16, spec.name.ends_with("bias") ? 0.1f : 1.0f, 0);
    }
  }

  std::vector<SynthTensor> tensors;

 private:
  // The format that the published recipe gives a module; null: plain.
  const Format* format_of(const LinearSpec& spec, const std::string& path) const {
    if (!quantizers_take(spec.stage) || recipe_.groups.empty() || recipe_.excluded.covers(path))
      return nullptr;
    return recipe_.groups.front().formats.front();
  }

  Status add_matrix(const LinearSpec& spec, const LinearName& name, const std::string& path) {
    const int64_t out = name.part == RowPart::kAll ? spec.out : spec.out / 2, in = spec.in;
    const float deviation = 1.0f / std::sqrt(static_cast<float>(in));
    const Format* format = format_of(spec, path);
    if (format == &kFormatMxfp4) {
      add_mxfp4(spec, path, deviation);
    } else if (format == &kFormatFp8Block) {
      tensors.push_back(
          {.name = path + ".weight", .dtype = DType::kF8E4M3, .shape = {out, in}, .bytes = true});
      const float scale = deviation / kE4m3Deviation;
      tensors.push_back({path + ".weight_scale_inv", DType::kBF16,
                         Shape{(out + 127) / 128, (in + 127) / 128}, 0.1f * scale, scale});
    } else if (format == &kFormatNvfp4) {
      add_nvfp4(path, out, in, deviation);
    } else if (format) {
      return unsupported("synth writes no {}", format->name);
    } else {
      add_plain(spec, name, path, deviation);
    }
    return {};
  }

  void add_mxfp4(const LinearSpec& spec, const std::string& path, float deviation) {
    // Scales of 2^-8 to 2^-5 around 1/sqrt(in) keep activations near one.
    const int scale =
        127 + static_cast<int>(std::lround(std::log2(deviation / kE2m1Deviation))) - 2;
    const int64_t experts = spec.experts, groups = spec.in / 32;
    tensors.push_back({path + "_blocks", DType::kU8, {experts, spec.out, groups, 16}, 0, 0, true});
    tensors.push_back(
        {path + "_scales", DType::kU8, {experts, spec.out, groups}, 0, 0, false, scale});
    if (spec.bias) tensors.push_back({path + "_bias", DType::kBF16, {experts, spec.out}, 0.02f});
  }

  void add_nvfp4(const std::string& path, int64_t out, int64_t in, float deviation) {
    tensors.push_back({path + ".weight", DType::kU8, {out, in / 2}, 0, 0, true});
    tensors.push_back(
        {path + ".weight_scale", DType::kF8E4M3, {out, in / 16}, 0, 0, false, kE4m3One});
    tensors.push_back({path + ".weight_scale_2", DType::kF32, Shape{}, 0,
                       deviation / (kE2m1Deviation * kScaleMean)});
    tensors.push_back({path + ".input_scale", DType::kF32, Shape{}, 0, 4.0f / (6 * 448)});
  }

  void add_plain(const LinearSpec& spec, const LinearName& name, const std::string& path,
                 float deviation) {
    const bool bare =
        name.form == NameForm::kParameterInOut || name.form == NameForm::kParameterOutIn;
    const int64_t out = name.part == RowPart::kAll ? spec.out : spec.out / 2;
    Shape shape = {out, spec.in};
    if (name.form == NameForm::kParameterInOut) std::swap(shape[0], shape[1]);
    if (bare) shape.insert(shape.begin(), spec.experts);
    // A router that is compared with a float32 bias is kept in that type.
    const bool wide = spec.stage == Stage::kRouter && table_.architecture == "nemotron_h";
    tensors.push_back({bare ? path : path + ".weight", wide ? DType::kF32 : DType::kBF16, shape,
                       spec.stage == Stage::kEmbedding ? 1.0f : deviation});
    if (!spec.bias) return;
    tensors.push_back({path + (bare ? "_bias" : ".bias"), DType::kBF16,
                       bare ? Shape{spec.experts, out} : Shape{out}, 0.02f});
    if (spec.stage == Stage::kRouter) tensors.back().skew = static_cast<float>(router_skew_);
  }

  const LinearTable& table_;
  const Recipe& recipe_;
  double router_skew_;
};

}  // namespace

Result<std::vector<SynthTensor>> synth_tensors(const SynthModel& model, double router_skew) {
  LK_ASSIGN_OR_RETURN(const Recipe recipe, read_recipe(model.files));
  TensorList list(model, recipe, router_skew);
  for (const LinearSpec& spec : model.table.linears) {
    if (spec.stage == Stage::kRouter && !spec.bias && router_skew > 0) {
      return unsupported("the router of {} has no bias by which it could be skewed",
                         model.table.architecture);
    }
    LK_RETURN_IF_ERROR(list.add(spec));
  }
  for (const PlainTensorSpec& plain : model.table.plain) list.add(plain);
  return std::move(list.tensors);
}

}  // namespace lk

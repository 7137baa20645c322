#include "model/quantize_plan.h"

#include <algorithm>
#include <set>

#include "quant/formats.h"

namespace lk {
namespace {

constexpr std::string_view kHole = "{expert}";

bool in_scope(const LinearSpec& spec, Scope scope) {
  if (spec.experts > 0) return true;
  return scope == Scope::kLinears && quantizers_take(spec.stage);
}

bool is_fused(NameForm form) {
  return form == NameForm::kParameterInOut || form == NameForm::kParameterOutIn;
}

// The names that a linear is written under: one, or a gate and an up. Empty if it has none of that
// form.
std::vector<const LinearName*> names_of(const LinearSpec& spec, ExpertForm form) {
  const auto fits = [&](const LinearName& name) {
    if (spec.experts == 0) return name.form == NameForm::kModule;
    if (form == ExpertForm::kFused) return is_fused(name.form);
    // Modules that only number the experts ("projs.0") are one trainer's own spelling.
    return name.form == NameForm::kExpertModule && !name.path.ends_with(kHole);
  };
  const auto first = std::find_if(spec.names.begin(), spec.names.end(), fits);
  if (first == spec.names.end()) return {};
  if (first->part == RowPart::kAll) return {&*first};
  return {&*first, &*(first + 1)};
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const LinearTable& table, const StoredModel& stored,
          const Target& target, const NamePatterns& keep)
      : checkpoint_(checkpoint), table_(table), stored_(stored), target_(target), keep_(keep) {}

  Result<QuantizePlan> plan() {
    for (const StoredLinear& linear : stored_.linears) LK_RETURN_IF_ERROR(plan_linear(linear));
    for (const PlainTensorSpec& spec : table_.plain) {
      copy_tensor(table_.full_name(spec.name, stored_.prefix));
    }
    for (const auto& [name, view] : checkpoint_.tensors()) {
      const bool ignored =
          std::any_of(table_.ignored.begin(), table_.ignored.end(),
                      [&](const std::string& start) { return name.starts_with(start); });
      if (ignored) copy_tensor(name);
    }
    return std::move(plan_);
  }

 private:
  Status plan_linear(const StoredLinear& linear) {
    const LinearSpec& spec = *linear.spec;
    PlannedLinear planned;
    planned.source = &linear;
    planned.name = table_.full_name(spec.path(), stored_.prefix);
    // A tied head's matrix is the embedding's.
    if (linear.tensors.empty() || (spec.stage == Stage::kHead && table_.tied_head)) {
      plan_.linears.push_back(std::move(planned));
      return {};
    }
    LK_ASSIGN_OR_RETURN(const bool kept, is_kept(spec, planned.name));
    if (in_scope(spec, target_.scope) && !kept) {
      LK_RETURN_IF_ERROR(check_width(spec, planned.name));
      LK_RETURN_IF_ERROR(declare_pieces(planned, /*plain=*/false));
      planned.fate = may_transcribe(planned) ? Fate::kTranscribed : Fate::kEncoded;
    } else if (is_quantized(*linear.format)) {
      planned.fate = Fate::kDecoded;
      LK_RETURN_IF_ERROR(declare_pieces(planned, /*plain=*/true));
    } else {
      planned.fate = Fate::kCopied;
      planned.first_tensor = plan_.tensors.size();
      std::set<std::string> modules;
      for (const StoredTensor& tensor : linear.tensors) {
        plan_.tensors.push_back({std::string(tensor.name), tensor.view.dtype, tensor.view.shape});
        if (tensor.role == TensorRole::kCodes) modules.insert(module_of(tensor.name));
      }
      for (const std::string& module : modules) name_plain(spec, module);
    }
    plan_.linears.push_back(std::move(planned));
    return {};
  }

  bool keeps(const LinearSpec& spec, int expert) const {
    const std::vector<std::string> spellings = keep_spellings(table_, stored_.prefix, spec, expert);
    return std::any_of(spellings.begin(), spellings.end(),
                       [&](const std::string& spelling) { return keep_.covers(spelling); });
  }

  // What finds a whole linear on the command line.
  std::string keep_advice(const LinearSpec& spec) const {
    return keep_spellings(table_, stored_.prefix, spec).front();
  }

  // Experts are kept all together: one linear has one format.
  Result<bool> is_kept(const LinearSpec& spec, const std::string& name) const {
    if (keeps(spec, -1)) return true;
    int kept = 0, first_kept = -1;
    for (int e = 0; e < spec.experts; ++e) {
      if (!keeps(spec, e)) continue;
      if (kept++ == 0) first_kept = e;
    }
    if (kept == 0 || kept == spec.experts) return kept > 0;
    return invalid(
        "--keep names {} of the {} experts of {} (expert {} first), but experts are quantized or "
        "kept together; --keep {} leaves all of them as they are",
        kept, spec.experts, name, first_kept, keep_advice(spec));
  }

  Status check_width(const LinearSpec& spec, const std::string& name) const {
    const int group = target_.stored->group_cols;
    // Blocks of rows and columns may end early, runs of channels may not.
    if (group == 0 || target_.stored->group_rows > 1 || spec.in % group == 0) return {};
    return invalid(
        "{} is {} channels wide, but {} needs a multiple of {}; --keep {} leaves it as it is", name,
        spec.in, target_.format, group, keep_advice(spec));
  }

  // Codes and scales can move as they are: the same format, and no scale spans rows that the new
  // layout puts elsewhere.
  bool may_transcribe(const PlannedLinear& planned) const {
    const StoredLinear& source = *planned.source;
    if (source.format != target_.stored) return false;
    const bool whole = source.experts.front().size() == 1;
    if (whole == (planned.pieces.front().part == RowPart::kAll)) return true;
    if (source.format->group_rows > 1) return false;
    return whole || source.format->tensor_scale == TensorScale::kNone;
  }

  Status declare_pieces(PlannedLinear& planned, bool plain) {
    const LinearSpec& spec = *planned.source->spec;
    std::vector<const LinearName*> names = names_of(spec, target_.experts);
    if (names.empty()) {
      return unsupported(
          "the {} layout of {} wants experts {}, which {} has not", target_.recipe, target_.format,
          target_.experts == ExpertForm::kFused ? "in one parameter" : "in modules of their own",
          planned.name);
    }
    for (const LinearName* name : names) {
      const int files = name->form == NameForm::kExpertModule ? spec.experts : 1;
      for (int e = 0; e < files; ++e) declare_piece(planned, *name, e, plain);
    }
    return {};
  }

  void declare_piece(PlannedLinear& planned, const LinearName& name, int expert, bool plain) {
    const LinearSpec& spec = *planned.source->spec;
    const bool fused = is_fused(name.form);
    Piece piece;
    piece.part = name.part;
    piece.first_expert = expert;
    piece.experts = fused ? std::max(spec.experts, 1) : 1;
    piece.rows = name.part == RowPart::kAll ? spec.out : spec.out / 2;
    piece.cols = spec.in;
    std::string path = table_.full_name(name.path, stored_.prefix);
    if (const size_t at = path.find(kHole); at != path.npos) {
      path.replace(at, kHole.size(), std::to_string(expert));
    }
    const auto declare = [&](std::string_view part, DType dtype, Shape shape) {
      if (part.empty()) return kNoTensor;
      if (fused) shape.insert(shape.begin(), piece.experts);
      const std::string full = !fused             ? fmt::format("{}.{}", path, part)
                               : part == "weight" ? path
                                                  : fmt::format("{}_{}", path, part);
      plan_.tensors.push_back({full, dtype, std::move(shape)});
      return plan_.tensors.size() - 1;
    };
    if (plain) {
      piece.transposed = name.form == NameForm::kParameterInOut;
      piece.codes =
          declare("weight", DType::kBF16,
                  piece.transposed ? Shape{piece.cols, piece.rows} : Shape{piece.rows, piece.cols});
      name_plain(spec, path);
    } else {
      const Format& format = *target_.stored;
      const int64_t row_groups = row_scales(format, piece.cols);
      const int64_t width = code_bytes(format.element, piece.cols) /
                            static_cast<int64_t>(dtype_size(target_.codes_dtype));
      piece.codes = declare(target_.codes, target_.codes_dtype,
                            target_.blocks ? Shape{piece.rows, row_groups, width / row_groups}
                                           : Shape{piece.rows, width});
      const int64_t scales = matrix_scales(format, piece.rows, piece.cols);
      Shape scale_shape = {row_groups == 0 ? 0 : scales / row_groups, row_groups};
      if (target_.flat_scales) scale_shape.pop_back();
      piece.scales = declare(target_.scales, target_.scales_dtype, std::move(scale_shape));
      piece.tensor_scale = declare(target_.tensor_scale, DType::kF32, target_.tensor_scale_shape);
    }
    if (spec.bias) piece.bias = declare("bias", bias_dtype(*planned.source), {piece.rows});
    planned.pieces.push_back(piece);
  }

  // Biases that were gathered from pieces are float32 by now; they go back to what they were.
  static DType bias_dtype(const StoredLinear& linear) {
    const bool bf16 =
        std::all_of(linear.tensors.begin(), linear.tensors.end(), [](const StoredTensor& tensor) {
          return tensor.role != TensorRole::kBias || tensor.view.dtype == DType::kBF16;
        });
    return linear.gathered_bias && bf16 ? DType::kBF16 : linear.bias.dtype;
  }

  static std::string module_of(std::string_view tensor) {
    constexpr std::string_view kEnding = ".weight";
    if (tensor.ends_with(kEnding)) tensor.remove_suffix(kEnding.size());
    return std::string(tensor);
  }

  void name_plain(const LinearSpec& spec, const std::string& module) {
    (spec.stage == Stage::kEmbedding ? plan_.names.embedding : plan_.names.plain).push_back(module);
  }

  void copy_tensor(const std::string& name) {
    const TensorView& view = *checkpoint_.find(name);
    plan_.copied.emplace_back(plan_.tensors.size(), name);
    plan_.tensors.push_back({name, view.dtype, view.shape});
  }

  const Checkpoint& checkpoint_;
  const LinearTable& table_;
  const StoredModel& stored_;
  const Target& target_;
  const NamePatterns& keep_;
  QuantizePlan plan_;
};

}  // namespace

std::vector<std::string> keep_spellings(const LinearTable& table, const std::string& prefix,
                                        const LinearSpec& spec, int expert) {
  std::vector<std::string> spellings;
  for (const LinearName& name : spec.names) {
    std::string path = table.full_name(name.path, prefix);
    if (const size_t at = path.find(kHole); at != path.npos) {
      if (expert < 0)
        path.erase(at - 1, kHole.size() + 1);
      else
        path.replace(at, kHole.size(), std::to_string(expert));
    }
    spellings.push_back(std::move(path));
  }
  return spellings;
}

Result<QuantizePlan> plan_quantization(const Checkpoint& checkpoint, const LinearTable& table,
                                       const StoredModel& stored, const Target& target,
                                       const NamePatterns& keep) {
  return Planner(checkpoint, table, stored, target, keep).plan();
}

int64_t whole_row(const LinearSpec& spec, RowPart part, int64_t row) {
  if (part == RowPart::kAll) return row;
  if (spec.row_order == RowOrder::kInterleavedGateUp) {
    return 2 * row + (part == RowPart::kUp ? 1 : 0);
  }
  return part == RowPart::kUp ? spec.out / 2 + row : row;
}

}  // namespace lk

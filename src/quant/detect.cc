#include "quant/detect.h"

#include <algorithm>
#include <set>

#include "quant/config_check.h"
#include "quant/layout.h"

namespace lk {
namespace {

// Names that together hold a whole linear: one, or a gate and an up.
using NameGroup = std::vector<const LinearName*>;

std::vector<NameGroup> name_groups(const LinearSpec& spec) {
  std::vector<NameGroup> groups;
  for (const LinearName& name : spec.names) {
    if (name.part == RowPart::kUp && !groups.empty() &&
        groups.back().front()->part == RowPart::kGate) {
      groups.back().push_back(&name);
    } else {
      groups.push_back({&name});
    }
  }
  return groups;
}

std::string with_expert(std::string path, int expert) {
  constexpr std::string_view kHole = "{expert}";
  if (const size_t at = path.find(kHole); at != path.npos) {
    path.replace(at, kHole.size(), std::to_string(expert));
  }
  return path;
}

class Matcher {
 public:
  Matcher(const Checkpoint& checkpoint, const LinearTable& table)
      : checkpoint_(checkpoint), table_(table), prefix_(choose_prefix()) {}

  Result<StoredModel> match() {
    StoredModel model;
    model.prefix = prefix_;
    for (const LinearSpec& spec : table_.linears) {
      LK_ASSIGN_OR_RETURN(StoredLinear linear, match_linear(spec, model));
      model.linears.push_back(std::move(linear));
    }
    for (const PlainTensorSpec& spec : table_.plain) {
      LK_ASSIGN_OR_RETURN(TensorView view, match_plain(spec));
      model.plain.push_back(std::move(view));
    }
    compare_architectures(checkpoint_.config(), model);
    LK_ASSIGN_OR_RETURN(const Recipe recipe, read_recipe(checkpoint_.config()));
    LK_RETURN_IF_ERROR(refuse_unknown(recipe.kv_cache, model));
    LK_RETURN_IF_ERROR(compare_with_recipe(recipe, checkpoint_, table_, model));
    return model;
  }

 private:
  // The first prefix under which some tensor of the table stands; the canonical one if there is
  // none.
  std::string choose_prefix() const {
    for (const std::string& prefix : table_.prefixes) {
      for (const PlainTensorSpec& spec : table_.plain) {
        if (checkpoint_.find(table_.full_name(spec.name, prefix))) return prefix;
      }
    }
    return table_.prefixes.empty() ? "" : table_.prefixes.front();
  }

  NamedTensors tensors_of(const LinearSpec& spec, const LinearName& name, int expert,
                          std::vector<StoredTensor>& taken) const {
    const bool apart = name.form == NameForm::kExpertModule;
    return NamedTensors(checkpoint_, table_.full_name(with_expert(name.path, expert), prefix_),
                        name.form, apart ? 0 : spec.experts,
                        name.part == RowPart::kAll ? spec.out : spec.out / 2, spec.in, taken);
  }

  // The layout behind one name; null if the checkpoint holds nothing there.
  Result<const Layout*> find_layout(const NamedTensors& tensors) const {
    for (const Layout* layout : all_layouts()) {
      const std::string_view part = layout->claims(tensors);
      if (part.empty()) continue;
      if (layout->format) return layout;
      return unsupported("tensor {} is in the format {}, which is not supported",
                         tensors.name(part), layout->name);
    }
    if (const TensorView* weight = tensors.find("weight")) {
      return unsupported("tensor {} has dtype {}, which is no weight format that is supported",
                         tensors.name("weight"), dtype_name(weight->dtype));
    }
    return nullptr;
  }

  Result<StoredLinear> match_linear(const LinearSpec& spec, StoredModel& model) {
    StoredLinear linear;
    linear.spec = &spec;
    linear.experts.resize(static_cast<size_t>(std::max(spec.experts, 1)));
    for (const NameGroup& group : name_groups(spec)) {
      const NamedTensors first = tensors_of(spec, *group.front(), 0, linear.tensors);
      LK_ASSIGN_OR_RETURN(const Layout* layout, find_layout(first));
      if (!layout) continue;
      for (const LinearName* name : group) {
        LK_RETURN_IF_ERROR(read_name(spec, *name, *layout, linear));
      }
      LK_RETURN_IF_ERROR(read_bias(spec, group, linear));
      if (spec.stage == Stage::kHead && table_.tied_head) {
        model.warnings.push_back(fmt::format(
            "config.json says tie_word_embeddings, but the file holds {}, which is not used: the "
            "head is the embedding's matrix",
            linear.tensors.front().name));
      }
      LK_RETURN_IF_ERROR(adopt_tied_head(spec, model, linear));
      for (const StoredTensor& tensor : linear.tensors) used_.insert(tensor.name);
      return linear;
    }
    if (spec.stage == Stage::kHead && table_.tied_head) {
      LK_RETURN_IF_ERROR(adopt_tied_head(spec, model, linear));
      return linear;
    }
    const NamedTensors canonical = tensors_of(spec, spec.names.front(), 0, linear.tensors);
    Shape shape = {spec.out, spec.in};
    if (spec.names.front().form == NameForm::kParameterInOut) std::swap(shape[0], shape[1]);
    if (canonical.is_parameter() && spec.experts > 0) {
      shape.insert(shape.begin(), spec.experts);
      return invalid("the weights of {} are missing, expected {} and {}, or {} {}",
                     canonical.path(), canonical.name("blocks"), canonical.name("scales"),
                     canonical.name("weight"), shape_string(shape));
    }
    return invalid("tensor {} is missing, expected {}", canonical.name("weight"),
                   shape_string(shape));
  }

  // The matrices behind one name of a linear whose first module is in the layout `first`.
  Result<std::vector<StoredMatrix>> read_module(NamedTensors& tensors, const Layout& first,
                                                StoredLinear& linear) const {
    const Result<const Layout*> layout = find_layout(tensors);
    if (layout && *layout && *layout != &first) {
      const size_t taken = linear.tensors.size();
      auto matrices = (*layout)->read(tensors);
      if (matrices && (*layout)->format == first.format) return matrices;
      if (matrices) {
        return unsupported("{} is in the format {}, but other parts of the same linear are {}",
                           tensors.path(), (*layout)->format->name, first.format->name);
      }
      linear.tensors.erase(linear.tensors.begin() + static_cast<ptrdiff_t>(taken),
                           linear.tensors.end());
    }
    // What is whole in no layout lacks a part of the linear's, which its reader names.
    return first.read(tensors);
  }

  Status read_name(const LinearSpec& spec, const LinearName& name, const Layout& first,
                   StoredLinear& linear) const {
    const bool apart = name.form == NameForm::kExpertModule;
    const int modules = apart ? std::max(spec.experts, 1) : 1;
    linear.format = first.format;
    for (int e = 0; e < modules; ++e) {
      NamedTensors tensors = tensors_of(spec, name, e, linear.tensors);
      LK_ASSIGN_OR_RETURN(std::vector<StoredMatrix> matrices, read_module(tensors, first, linear));
      for (size_t m = 0; m < matrices.size(); ++m) {
        matrices[m].part = name.part;
        linear.experts[apart ? static_cast<size_t>(e) : m].push_back(matrices[m]);
      }
    }
    return {};
  }

  Status read_bias(const LinearSpec& spec, const NameGroup& group, StoredLinear& linear) const {
    if (!spec.bias) return {};
    static constexpr std::initializer_list<DType> kFloats = {DType::kBF16, DType::kF16,
                                                             DType::kF32};
    if (group.size() == 1 && group.front()->form != NameForm::kExpertModule) {
      NamedTensors tensors = tensors_of(spec, *group.front(), 0, linear.tensors);
      LK_ASSIGN_OR_RETURN(linear.bias,
                          tensors.take("bias", TensorRole::kBias, kFloats, {spec.out}));
      return {};
    }
    const int64_t count = static_cast<int64_t>(linear.experts.size()) * spec.out;
    auto values = std::make_shared<std::vector<float>>(
        checkpoint_.has_data() ? static_cast<size_t>(count) : 0);
    for (const LinearName* name : group) {
      const bool apart = name->form == NameForm::kExpertModule;
      for (int e = 0; e < (apart ? linear.expert_count() : 1); ++e) {
        NamedTensors tensors = tensors_of(spec, *name, e, linear.tensors);
        LK_ASSIGN_OR_RETURN(const TensorView piece,
                            tensors.take("bias", TensorRole::kBias, kFloats, {tensors.rows()}));
        if (piece.data) scatter_bias(spec, name->part, piece, apart ? e : 0, *values);
      }
    }
    linear.bias.data =
        checkpoint_.has_data() ? reinterpret_cast<const std::byte*>(values->data()) : nullptr;
    linear.bias.dtype = DType::kF32;
    linear.bias.shape = spec.experts > 0 ? Shape{spec.experts, spec.out} : Shape{spec.out};
    linear.gathered_bias = std::move(values);
    return {};
  }

  // Puts a part's bias, of one or of all experts, at its rows of the whole.
  static void scatter_bias(const LinearSpec& spec, RowPart part, const TensorView& piece,
                           int first_expert, std::vector<float>& values) {
    const int64_t rows = part == RowPart::kAll ? spec.out : spec.out / 2;
    for (int64_t i = 0; i < piece.elements(); ++i) {
      int64_t row = i % rows;
      if (part != RowPart::kAll && spec.row_order == RowOrder::kInterleavedGateUp) {
        row = 2 * row + (part == RowPart::kUp ? 1 : 0);
      } else if (part == RowPart::kUp) {
        row += rows;
      }
      values[static_cast<size_t>((first_expert + i / rows) * spec.out + row)] = load_f32(piece, i);
    }
  }

  // A tied head multiplies by the embedding's matrix, whatever copy of it the file may hold.
  Status adopt_tied_head(const LinearSpec& spec, const StoredModel& model,
                         StoredLinear& linear) const {
    if (spec.stage != Stage::kHead || !table_.tied_head) return {};
    for (const StoredLinear& other : model.linears) {
      if (other.spec->stage != Stage::kEmbedding) continue;
      if (other.spec->out != spec.out || other.spec->in != spec.in) {
        return invalid("the head [{}, {}] cannot share the embedding's matrix [{}, {}]", spec.out,
                       spec.in, other.spec->out, other.spec->in);
      }
      linear.format = other.format;
      linear.experts = other.experts;
      return {};
    }
    return invalid("the head is tied to an embedding, but {} has none", table_.architecture);
  }

  Result<TensorView> match_plain(const PlainTensorSpec& spec) {
    const std::string name = table_.full_name(spec.name, prefix_);
    const auto entry = checkpoint_.tensors().find(name);
    if (entry == checkpoint_.tensors().end()) {
      return invalid("tensor {} is missing, expected {}", name, shape_string(spec.shape));
    }
    const TensorView& view = entry->second;
    if (view.shape != spec.shape) {
      return invalid("tensor {} has shape {}, expected {}", name, shape_string(view.shape),
                     shape_string(spec.shape));
    }
    if (view.dtype != DType::kBF16 && view.dtype != DType::kF16 && view.dtype != DType::kF32) {
      return invalid("tensor {} has dtype {}, expected BF16 or F16 or F32", name,
                     dtype_name(view.dtype));
    }
    used_.insert(entry->first);
    return view;
  }

  // Scales of a quantized KV cache are the one thing that may stand in the file unread.
  Status refuse_unknown(std::string_view kv_cache, StoredModel& model) const {
    int kv_scales = 0;
    std::string_view first_kv_scale;
    for (const auto& [name, view] : checkpoint_.tensors()) {
      const bool skipped = std::any_of(
          table_.ignored.begin(), table_.ignored.end(),
          [&](const std::string& prefix) { return name.compare(0, prefix.size(), prefix) == 0; });
      if (skipped || used_.count(name)) continue;
      if (is_kv_scale(name, view)) {
        if (kv_scales++ == 0) first_kv_scale = name;
        continue;
      }
      return invalid("tensor {} ({} {}) is unknown to the architecture {}", name,
                     dtype_name(view.dtype), shape_string(view.shape), table_.architecture);
    }
    if (kv_scales > 0) {
      model.warnings.push_back(fmt::format(
          "{} scales of a quantized KV cache ({} ...) are not used: keys and values are "
          "kept in bfloat16 or float32",
          kv_scales, first_kv_scale));
    } else if (!kv_cache.empty()) {
      model.warnings.push_back(fmt::format(
          "the model's quantization asks for a KV cache in {}, which is not used: keys and values "
          "are kept in bfloat16 or float32",
          kv_cache.substr(0, 60)));
    }
    return {};
  }

  // One number for the keys, values or queries of an attention layer.
  static bool is_kv_scale(std::string_view name, const TensorView& view) {
    constexpr std::string_view kEndings[] = {".k_scale", ".v_scale", ".q_scale", ".kv_scale",
                                             "_proj.output_scale"};
    return view.elements() == 1 && std::any_of(std::begin(kEndings), std::end(kEndings),
                                               [&](auto ending) { return name.ends_with(ending); });
  }

  const Checkpoint& checkpoint_;
  const LinearTable& table_;
  const std::string prefix_;
  std::set<std::string_view> used_;
};

}  // namespace

Result<StoredModel> match_checkpoint(const Checkpoint& checkpoint, const LinearTable& table) {
  return Matcher(checkpoint, table).match();
}

}  // namespace lk

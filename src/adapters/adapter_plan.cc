#include "adapters/adapter_plan.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "adapters/expert_params.h"
#include "adapters/targets.h"

namespace lk {
namespace {

class Planner {
 public:
  Planner(const AdapterConfig& config, const LinearIndex& index, const AdapterLoadOptions& options)
      : config_(config), index_(index), options_(options), targets_(config, index) {}

  Result<AdapterPlan> run(const AdapterTensors& tensors) {
    LK_ASSIGN_OR_RETURN(grouped_, group_tensors(tensors, index_));
    plan_.warnings = config_.warnings;
    plan_.warnings.insert(plan_.warnings.end(), grouped_.warnings.begin(), grouped_.warnings.end());
    LK_RETURN_IF_ERROR(place_groups());
    LK_RETURN_IF_ERROR(
        decide_orientation(parameter_pairs_, config_, options_.orientation, plan_.warnings));
    for (const ParameterPair& pair : parameter_pairs_) {
      LK_RETURN_IF_ERROR(
          add(*pair.group, pair.place, -1, std::max(pair.place.spec->experts, 1), pair.swapped));
    }
    LK_RETURN_IF_ERROR(check_overlaps());
    Targets::Adapted adapted;
    for (const PlannedPair& pair : plan_.pairs) {
      adapted[pair.place.spec] |= row_bits(pair.place.name->part);
    }
    LK_RETURN_IF_ERROR(targets_.check_parameters(adapted));
    LK_ASSIGN_OR_RETURN(plan_.not_adapted, targets_.not_adapted(adapted, budget_));
    LK_ASSIGN_OR_RETURN(const auto contradictions, targets_.contradictions(adapted, budget_));
    plan_.warnings.insert(plan_.warnings.end(), contradictions.begin(), contradictions.end());
    warn_of_ranks();
    const LinearSpec* base = index_.table().linears.data();
    std::stable_sort(plan_.pairs.begin(), plan_.pairs.end(),
                     [&](const PlannedPair& x, const PlannedPair& y) {
                       return x.place.spec - base < y.place.spec - base;
                     });
    return std::move(plan_);
  }

 private:
  Status place_groups() {
    std::vector<std::string> unknown;
    for (size_t i = 0; i < grouped_.groups.size();) {
      const std::string& path = grouped_.groups[i].name.path;
      std::vector<const TensorGroup*> same;
      for (; i < grouped_.groups.size() && grouped_.groups[i].name.path == path; ++i) {
        same.push_back(&grouped_.groups[i]);
      }
      if (const auto* parameters = index_.parameters_of(path)) {
        LK_ASSIGN_OR_RETURN(const auto pairs,
                            assign_parameters(same, *parameters, targets_, plan_.warnings));
        parameter_pairs_.insert(parameter_pairs_.end(), pairs.begin(), pairs.end());
      } else if (const LinearPlace place = index_.module(path); place.spec) {
        LK_RETURN_IF_ERROR(add_module(same, place, -1));
      } else if (const auto expert = index_.expert_module(path)) {
        LK_RETURN_IF_ERROR(add_module(same, expert->place, expert->expert));
      } else {
        for (const TensorGroup* group : same) {
          unknown.push_back(group->raw.a_name);
          unknown.push_back(group->raw.b_name);
        }
      }
    }
    if (!unknown.empty()) {
      return invalid("{} tensors belong to no linear of a {} model: {}", unknown.size(),
                     index_.table().architecture, list_some(unknown));
    }
    return {};
  }

  Status add_module(const std::vector<const TensorGroup*>& groups, const LinearPlace& place,
                    int64_t expert) {
    const TensorGroup& group = *groups.front();
    if (groups.size() > 1) {
      return unsupported("tensors {} and {} are two pairs for one matrix, which is not supported",
                         group.raw.a_name, groups[1]->raw.a_name);
    }
    if (expert >= place.spec->experts && expert >= 0) {
      return invalid("tensor {} is for expert {}, but the model has experts 0 to {}",
                     group.raw.a_name, expert, place.spec->experts - 1);
    }
    const TensorView& a = group.raw.a;
    const TensorView& b = group.raw.b;
    const int64_t in = place.spec->in, out = place.rows();
    // An embedding's matrix is [vocabulary, hidden], and PEFT's lora_embedding_A reads tokens: it
    // is on the output side.
    const bool swapped = group.name.role == TensorRole::kEmbeddingA;
    const int64_t a_side = swapped ? out : in, b_side = swapped ? in : out;
    if (swapped && place.spec->stage != Stage::kEmbedding) {
      return invalid("tensor {} is an embedding's pair, but {} is no embedding", group.raw.a_name,
                     place.spec->path());
    }
    if (a.shape[1] != a_side) {
      return invalid("tensor {} has shape {}, expected [r, {}]", group.raw.a_name,
                     shape_string(a.shape), a_side);
    }
    if (b.shape[0] != b_side) {
      return invalid("tensor {} has shape {}, expected [{}, r]", group.raw.b_name,
                     shape_string(b.shape), b_side);
    }
    if (a.shape[0] != b.shape[1]) {
      return invalid("tensors {} {} and {} {} differ in rank: {} and {}", group.raw.a_name,
                     shape_string(a.shape), group.raw.b_name, shape_string(b.shape), a.shape[0],
                     b.shape[1]);
    }
    return add(group, place, expert, 1, swapped);
  }

  Status add(const TensorGroup& group, const LinearPlace& place, int64_t expert, int64_t experts,
             bool swapped) {
    const int64_t rank = group.total_rank() / experts;
    if (rank > options_.max_rank) {
      return fail(ErrorKind::kUnsupported, "tensor {} has rank {}, more than the {} allowed",
                  group.raw.a_name, rank, options_.max_rank);
    }
    std::string path = group.name.trained_path;
    if (place.name->form == NameForm::kParameterInOut ||
        place.name->form == NameForm::kParameterOutIn) {
      path += fmt::format(".{}", leaf(place.name->path));
    } else if (targets_.parameter(*place.name)) {
      path += ".weight";
    }
    LK_ASSIGN_OR_RETURN(const AdapterConfig::Scaling scaling, config_.scaling(path, budget_));
    if (scaling.rank != rank) {
      if (other_ranks_++ == 0) {
        first_other_rank_ = fmt::format("{}: {} in the tensors, {} in adapter_config.json", path,
                                        rank, scaling.rank);
      }
    }
    plan_.pairs.push_back(
        {group.raw, place, expert, experts, swapped, static_cast<int>(rank), scaling.scale});
    return {};
  }

  // At most one pair for each row of each matrix, in one layout for each linear; and no fused rank
  // over the limit.
  Status check_overlaps() const {
    struct Seen {
      const PlannedPair* first = nullptr;
      std::vector<unsigned> parts;  // for each expert
      std::vector<int> ranks;
    };
    std::unordered_map<const LinearSpec*, Seen> seen;
    for (const PlannedPair& pair : plan_.pairs) {
      const LinearSpec& spec = *pair.place.spec;
      Seen& entry = seen[&spec];
      if (!entry.first) {
        entry = {&pair, std::vector<unsigned>(static_cast<size_t>(std::max(spec.experts, 1))), {}};
        entry.ranks.resize(entry.parts.size());
      }
      if ((entry.first->experts > 1) != (pair.experts > 1)) {
        return unsupported("tensors {} and {} give {} in two layouts", entry.first->raw.a_name,
                           pair.raw.a_name, spec.path());
      }
      const unsigned bits = row_bits(pair.place.name->part);
      const size_t begin = pair.expert < 0 ? 0 : static_cast<size_t>(pair.expert);
      const size_t end = pair.expert < 0 ? entry.parts.size() : begin + 1;
      for (size_t e = begin; e < end; ++e) {
        if (entry.parts[e] & bits) {
          return invalid("tensor {} is a second pair for the same rows of {}", pair.raw.a_name,
                         spec.path());
        }
        entry.parts[e] |= bits;
        entry.ranks[e] += pair.rank;
        if (entry.ranks[e] > options_.max_rank) {
          return unsupported(
              "tensor {}: gate and up of {} have rank {} together, more than the {} allowed",
              pair.raw.a_name, spec.path(), entry.ranks[e], options_.max_rank);
        }
      }
    }
    return {};
  }

  void warn_of_ranks() {
    if (other_ranks_ == 0) return;
    plan_.warnings.push_back(
        fmt::format("{} modules have another rank than the configuration says; the tensors decide "
                    "the rank, the "
                    "configuration the scale (first: {})",
                    other_ranks_, first_other_rank_));
  }

  const AdapterConfig& config_;
  const LinearIndex& index_;
  const AdapterLoadOptions& options_;
  const Targets targets_;
  const MatchBudget budget_;
  GroupedTensors grouped_;
  std::vector<ParameterPair> parameter_pairs_;
  AdapterPlan plan_;
  int64_t other_ranks_ = 0;
  std::string first_other_rank_;
};

}  // namespace

Result<AdapterPlan> plan_adapter(const AdapterConfig& config, const AdapterTensors& tensors,
                                 const LinearIndex& index, const AdapterLoadOptions& options) {
  return Planner(config, index, options).run(tensors);
}

}  // namespace lk

#include "engine/memory_plan.h"

#include <algorithm>

#include "base/bytes.h"

namespace lk {
namespace {

constexpr size_t kMostWorking = size_t{256} << 20;

std::string parts(const MemoryPlan& plan) {
  return fmt::format("weights {}, KV cache {}, adapters up to {}, working memory {}",
                     format_bytes(plan.weights), format_bytes(plan.kv_bytes),
                     format_bytes(plan.adapter_bytes), format_bytes(plan.working));
}

}  // namespace

std::string MemoryPlan::describe() const {
  return fmt::format("{} threads; {}: {} of {} ({})", threads, parts(*this), format_bytes(total),
                     format_bytes(limit), limited_by);
}

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const MachineLimits& limits) {
  MemoryPlan plan;
  plan.threads = needs.threads.value_or(limits.cpus);
  if (plan.threads < 1) return invalid("--threads is {}, expected at least 1", plan.threads);
  plan.limit = limits.available;
  plan.limited_by = limits.limited_by;
  plan.weights = needs.weights;
  plan.working = needs.working.value_or(std::min(kMostWorking, plan.limit / 16));
  const size_t taken = plan.weights + plan.working;
  const size_t rest = plan.limit - std::min(plan.limit, taken);
  plan.kv_bytes =
      needs.kv_bytes.value_or(std::max(needs.kv_least, std::min(needs.kv_full, rest / 2)));
  const size_t beside_kv = rest - std::min(rest, plan.kv_bytes);
  plan.adapter_bytes =
      needs.adapter_bytes.value_or(needs.adapters ? std::min(rest / 4, beside_kv) : size_t{0});
  // Flags may say anything up to 2^62: no overflow in three of them.
  plan.total = taken;
  for (const size_t part : {plan.kv_bytes, plan.adapter_bytes})
    plan.total = part > SIZE_MAX - plan.total ? SIZE_MAX : plan.total + part;
  if (plan.kv_bytes < needs.kv_least) {
    return fail(ErrorKind::kResource,
                "--kv-cache-memory is {}, but one sequence of the longest context takes {}: give "
                "more or lower --max-model-len",
                format_bytes(plan.kv_bytes), format_bytes(needs.kv_least));
  }
  if (plan.total > plan.limit) {
    return fail(ErrorKind::kResource,
                "{} make {}, but there are {} ({}): lower --max-model-len, --kv-cache-memory or "
                "--adapter-memory",
                parts(plan), format_bytes(plan.total), format_bytes(plan.limit), plan.limited_by);
  }
  return plan;
}

}  // namespace lk

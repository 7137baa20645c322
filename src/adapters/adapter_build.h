// The Adapter of a plan: values converted, halves fused, identity computed. Stateless.
#pragma once

#include <memory>

#include "adapters/adapter.h"
#include "adapters/adapter_plan.h"
#include "base/result.h"

namespace lk {

// `mapped`: the tensors lie in a mapped file whose pages may be given back as they are read. Name
// and path are the caller's to set. Errors: kInvalid naming a tensor with a value that is not
// finite.
Result<std::shared_ptr<Adapter>> build_adapter(AdapterPlan plan, bool mapped);

// Hash of what is applied: linears, experts, ranks, scales and values. Never 0.
uint64_t adapter_identity(const std::vector<AdapterModule>& modules);

}  // namespace lk

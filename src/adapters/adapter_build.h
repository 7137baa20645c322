// The Adapter of a plan: values converted, halves fused, identity computed. Stateless.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "adapters/adapter.h"
#include "adapters/adapter_plan.h"
#include "base/result.h"

namespace lk {

// Fetches the values of a tensor by its name in the file.
using ReadTensor = std::function<Status(const std::string& name, std::span<std::byte> out)>;

// `read` fetches values when their turn comes, one pair at a time; empty: the plan's views have
// data. Name and path are the caller's to set. Errors: those of `read`; kInvalid naming a tensor
// with a value that is not finite.
Result<std::shared_ptr<Adapter>> build_adapter(AdapterPlan plan, const ReadTensor& read);

// Hash of what is applied: linears, experts, ranks, scales and values. Never 0.
uint64_t adapter_identity(const std::vector<AdapterModule>& modules);

}  // namespace lk

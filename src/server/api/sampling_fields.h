// The fields that say how tokens are chosen and when a text ends: one table, for every endpoint
// that generates and for the lines of `lorikeet run`. Stateless; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "engine/request.h"
#include "server/api/api_error.h"

namespace lk {

struct SamplingField {
  std::string_view name;
  // `value` is not null. Errors: 400 naming the field.
  ApiStatus (*read)(const OrderedJson& value, const std::string& name, Request& request);
};
std::span<const SamplingField> sampling_fields();

// Reads the fields of the table that `object` has; the others of `request` stay.
ApiStatus read_sampling_fields(const OrderedJson& object, Request& request);

// A seed for a request that brings none.
uint64_t random_seed();

}  // namespace lk

// The filters (value|name) in one table. Pure functions on a rendering's budget.
#pragma once

#include <span>
#include <string_view>

#include "text/jinja/value.h"

namespace lk::jinja {

using Filter = Value (*)(Runtime& rt, const Value& input, const CallArgs& args);

struct FilterRow {
  std::string_view name;
  Filter filter;
};

// The table's parts, by what they work on.
std::span<const FilterRow> text_filters();
std::span<const FilterRow> number_filters();
std::span<const FilterRow> sequence_filters();

// Null if there is none.
Filter find_filter(std::string_view name);

}  // namespace lk::jinja

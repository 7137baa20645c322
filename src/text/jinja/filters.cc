#include "text/jinja/filters.h"

namespace lk::jinja {

Filter find_filter(std::string_view name) {
  for (const auto rows : {text_filters(), number_filters(), sequence_filters()}) {
    for (const FilterRow& row : rows) {
      if (row.name == name) return row.filter;
    }
  }
  return nullptr;
}

}  // namespace lk::jinja

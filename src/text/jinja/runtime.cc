#include "text/jinja/runtime.h"

#include <fmt/format.h>

#include "text/jinja/objects.h"

namespace lk::jinja {

Runtime::~Runtime() {
  for (const auto& space : namespaces_) space->clear();
}

void Runtime::check_string(size_t bytes) {
  if (bytes > limits_.output_bytes) {
    raise_error(fmt::format("the text grows over {} bytes", limits_.output_bytes));
  }
}

void Runtime::out_of_steps() {
  steps_left_ = 0;
  raise_error(fmt::format("rendering takes more than {} steps", limits_.steps));
}

void Runtime::too_deep() {
  raise_error(fmt::format("rendering nests deeper than {} levels", limits_.depth));
}

}  // namespace lk::jinja

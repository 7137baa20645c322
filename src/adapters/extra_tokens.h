// Whether an adapter's folder brings tokens that the base model's embedding has no row for.
// Stateless.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/linear_table.h"

namespace lk {

// Reads added_tokens.json and the added_tokens_decoder of tokenizer_config.json where they are;
// copies of the base's files pass. Errors: kUnsupported naming the token, its id and the
// vocabulary's size.
Status check_extra_tokens(const std::string& folder, const LinearTable& table);

}  // namespace lk

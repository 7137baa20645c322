// Which roles a conversation's messages may have. Stateless; thread-safe.
#pragma once

#include <string>

#include "base/json.h"
#include "server/api/api_error.h"
#include "server/api/served_model.h"

namespace lk {

// The roles of OpenAI's API, and any other if the model's chat template shows messages of roles it
// was not written for. `name` is the field's path. Errors: 400 that lists the roles.
ApiStatus check_role(const std::string& role, const std::string& name, const ServedModel& served);

// Templates leave out messages of roles that they do not know, and nobody would notice: a message
// of a role that few templates show must be in the rendered `text`. Errors: 400.
ApiStatus check_odd_roles(const OrderedJson& messages, const std::string& text);

}  // namespace lk

#include "server/api/message_roles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "server/api/fields.h"

namespace lk {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};
constexpr size_t kUsualRoles = 5;  // templates know the first ones, or say that they do not

bool is_among(std::string_view role, size_t count) {
  return std::find(kRoles.begin(), kRoles.begin() + count, role) != kRoles.begin() + count;
}

// Found out with words that no template holds.
bool shows_any_role(const ChatTemplate& chat_template) {
  constexpr std::string_view kRole = "lk-some-role", kContent = "lk-some-content";
  const OrderedJson messages = {{{"role", "user"}, {"content", "a"}},
                                {{"role", kRole}, {"content", kContent}}};
  const auto text = chat_template.render(messages, nullptr, nullptr, true);
  return text && text->find(kRole) != text->npos && text->find(kContent) != text->npos;
}

}  // namespace

ApiStatus check_role(const std::string& role, const std::string& name, const ServedModel& served) {
  if (is_among(role, kRoles.size())) return {};
  if (!served.chat_template || shows_any_role(*served.chat_template)) return {};
  return bad_field(name, "{} must be one of {}, not {}", name, fmt::join(kRoles, ", "),
                   found_text(OrderedJson(role)));
}

ApiStatus check_odd_roles(const OrderedJson& messages, const std::string& text) {
  for (const OrderedJson& message : messages) {
    const auto& role = message["role"].get_ref<const std::string&>();
    if (is_among(role, kUsualRoles)) continue;
    const auto& content = message["content"].get_ref<const std::string&>();
    const size_t begin = std::min(content.find_first_not_of(" \t\r\n"), content.size());
    const size_t end = content.find_last_not_of(" \t\r\n") + 1;
    if (begin < end && text.find(content.data() + begin, 0, end - begin) == std::string::npos)
      return bad_field("messages", "messages of role {} are left out by this model's chat template",
                       found_text(OrderedJson(role)));
  }
  return {};
}

}  // namespace lk

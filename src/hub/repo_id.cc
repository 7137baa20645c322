#include "hub/repo_id.h"

#include <algorithm>

namespace lk {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool is_id_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && is_word(part.front()) && is_word(part.back()) &&
         std::all_of(part.begin(), part.end(),
                     [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

}  // namespace

bool is_repo_id(std::string_view text) {
  if (text.find("--") != text.npos || text.find("..") != text.npos || text.ends_with(".git"))
    return false;
  const size_t slash = text.find('/');
  if (slash == text.npos) return is_id_part(text);
  return is_id_part(text.substr(0, slash)) && is_id_part(text.substr(slash + 1));
}

bool is_revision(std::string_view text) {
  constexpr std::string_view kForbidden = " ~^:?*[\\";
  return is_safe_file_name(text) && text.size() <= 255 && text.find("..") == text.npos &&
         text.find_first_of(kForbidden) == text.npos;
}

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'f');
         });
}

bool is_safe_file_name(std::string_view text) {
  if (text.empty() || text.size() > 1024) return false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (part.empty() || part.size() > 255 || part == "." || part == "..") return false;
    if (std::any_of(part.begin(), part.end(), [](char c) { return is_control(c) || c == '\\'; }))
      return false;
    begin = end + 1;
  }
  return true;
}

std::string repo_folder_name(std::string_view id) {
  std::string name = "models--";
  for (char c : id) {
    if (c == '/')
      name += "--";
    else
      name += c;
  }
  return name;
}

}  // namespace lk

#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <initializer_list>

namespace lk {
namespace {

// The first of the variables that is set and not empty.
std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

// ~ at the start, $NAME and ${NAME}; unset names stay as they are.
std::string expand(const std::string& path) {
  std::string out;
  size_t at = 0;
  if (path == "~" || path.starts_with("~/")) {
    out = variable({"HOME"});
    at = 1;
  }
  while (at < path.size()) {
    if (path[at] != '$') {
      out += path[at++];
      continue;
    }
    const bool braces = at + 1 < path.size() && path[at + 1] == '{';
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < path.size() &&
           (std::isalnum(static_cast<unsigned char>(path[end])) || path[end] == '_'))
      ++end;
    const size_t next = end + (braces ? 1 : 0);
    const bool closed = !braces || (end < path.size() && path[end] == '}');
    const char* value =
        closed && end > begin ? std::getenv(path.substr(begin, end - begin).c_str()) : nullptr;
    if (value != nullptr) {
      out += value;
      at = next;
    } else {
      out += path[at++];
    }
  }
  return out;
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

int seconds(const char* name, int otherwise) {
  const std::string text = variable({name});
  const long value = std::strtol(text.c_str(), nullptr, 10);
  return value > 0 && value < 1 << 20 ? static_cast<int>(value) : otherwise;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

Result<std::string> read_token(const std::string& home) {
  if (is_true(variable({"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) return "";
  std::string token = trimmed(variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
  std::string source = "HF_TOKEN";
  if (token.empty()) {
    const std::string path = variable({"HF_TOKEN_PATH"});
    source = path.empty() ? home + "/token" : expand(path);
    std::string text(4096, '\0');
    std::ifstream file(source, std::ios::binary);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    token = trimmed(text);
  }
  if (std::any_of(token.begin(), token.end(), [](char c) { return c <= ' ' || c > '~'; }))
    return invalid("the token of {} holds a character that no token has", source);
  return token;
}

}  // namespace

Result<HubSettings> hub_settings_from_environment() {
  HubSettings settings;
  std::string home = expand(variable({"HF_HOME"}));
  if (home.empty()) {
    const std::string base = variable({"XDG_CACHE_HOME"});
    home = (base.empty() ? expand("~/.cache") : expand(base)) + "/huggingface";
  }
  const std::string cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache = cache.empty() ? home + "/hub" : expand(cache);
  settings.endpoint = variable({"HF_ENDPOINT"});
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  if (!settings.endpoint.starts_with("https://") && !settings.endpoint.starts_with("http://"))
    return invalid("HF_ENDPOINT is '{}', which does not start with https:// or http://",
                   settings.endpoint);
  LK_ASSIGN_OR_RETURN(settings.token, read_token(home));
  settings.ca_file = variable({"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"});
  settings.offline = is_true(variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  settings.connect_timeout_s = seconds("HF_HUB_ETAG_TIMEOUT", settings.connect_timeout_s);
  settings.read_timeout_s = seconds("HF_HUB_DOWNLOAD_TIMEOUT", settings.read_timeout_s);
  return settings;
}

}  // namespace lk

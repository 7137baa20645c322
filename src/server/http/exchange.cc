#include "server/http/exchange.h"

namespace lk {

std::string HttpRequest::header(const std::string& name) const {
  const auto at = headers.find(name);
  return at == headers.end() ? std::string() : at->second;
}

}  // namespace lk

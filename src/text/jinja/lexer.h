// Cuts a template's source into tokens, with trim_blocks and lstrip_blocks on. Stateless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lk::jinja {

enum class TokenKind : uint8_t {
  kEnd,
  kData,         // text between tags, stripped
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, string or operator
  double real = 0;
  __int128 integer = 0;

  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Thrown by lexer and parser; caught by Template::parse.
struct SyntaxError {
  int line;
  std::string message;
};

std::vector<Token> tokenize(std::string_view source);

}  // namespace lk::jinja

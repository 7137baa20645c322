// Builds the nodes of a template from its tokens. Used once per template.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/lexer.h"

namespace lk::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Throws SyntaxError, also for tags, filters, tests and functions that do not exist here.
  Program parse();

 private:
  // Counts how deep tags and expressions nest.
  class Deeper;
  using Ends = std::initializer_list<std::string_view>;
  // Names with a special meaning are looked for in the bodies of loops and macros.
  struct Mentions {
    int loop = 0, caller = 0, kwargs = 0, varargs = 0;
  };

  // parser.cc: tags
  Block parse_body(Ends ends);
  Block parse_block_until(Ends ends);
  void end_tag();
  StmtPtr parse_statement();
  StmtPtr parse_if();
  StmtPtr parse_for();
  StmtPtr parse_set();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_filter_block();
  StmtPtr parse_with();
  StmtPtr parse_generation();
  StmtPtr parse_print();
  StmtPtr parse_loop_control();
  void parse_signature(MacroBody* macro);
  void parse_macro_body(MacroBody* macro, std::string_view end);
  Target parse_target(bool with_attributes, std::string_view end_name = {});
  Target parse_target_part(bool with_attributes);
  void check_functions() const;

  // parser_expr.cc: expressions, in order of rising precedence
  ExprPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {},
                      bool parenthesized = false);
  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr parse_filter(ExprPtr input);  // the current token is the filter's name
  ExprPtr parse_test(ExprPtr input);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_call(ExprPtr callee);
  ArgumentList parse_arguments();
  std::string dotted_name();

  // tokens
  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  const Token& expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail(std::string message) const { fail_at(current().line, std::move(message)); }
  [[noreturn]] static void fail_at(int line, std::string message) {
    throw SyntaxError{line, std::move(message)};
  }
  static std::string describe(const Token& token);

  // Gives a finished expression its line and height; fails if it is too high.
  template <typename Node>
  ExprPtr finish(std::unique_ptr<Node> node, int line);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // that a break may leave
  Mentions mentions_;
  struct CalledName {
    NameExpr* name;
    int line;
  };
  std::vector<CalledName> called_;
  std::unordered_set<std::string> assigned_;
};

class Parser::Deeper {
 public:
  explicit Deeper(Parser& parser) : parser_(parser) {
    if (++parser.depth_ > kMaxParseDepth) {
      parser.fail("tags and expressions nest too deep");
    }
  }
  ~Deeper() { --parser_.depth_; }
  Deeper(const Deeper&) = delete;

 private:
  Parser& parser_;
};

template <typename Node>
ExprPtr Parser::finish(std::unique_ptr<Node> node, int line) {
  node->line = line;
  node->each_child([&](Expr& child) { node->height = std::max(node->height, child.height + 1); });
  if (node->height > 4 * kMaxParseDepth) fail("an expression has too many parts");
  return node;
}

}  // namespace lk::jinja

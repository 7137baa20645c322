#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/globals.h"
#include "text/jinja/print.h"

namespace lk::jinja {

Program Parser::parse() {
  Program program;
  program.body = parse_body({});
  Symbols symbols(nullptr, &program.scope);
  program.body.declare(symbols);
  program.body.bind(symbols);
  check_functions();
  return program;
}

// A called name that nothing in the template assigns must be a function of the environment:
// variables are plain data.
void Parser::check_functions() const {
  for (const CalledName& call : called_) {
    if (find_global(call.name->name) != nullptr || assigned_.count(call.name->name) != 0) continue;
    if (call.name->name == "caller" || call.name->name == "loop") continue;
    fail_at(call.line, fmt::format("function '{}' is not supported", call.name->name));
  }
}

bool Parser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail(fmt::format("expected '{}', got {}", op, describe(current())));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail(fmt::format("expected '{}', got {}", name, describe(current())));
}

const Token& Parser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) fail(fmt::format("expected {}, got {}", what, describe(current())));
  return take();
}

std::string Parser::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kData:
      return "text";
    case TokenKind::kOutputBegin:
      return "'{{'";
    case TokenKind::kOutputEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return "a number";
    default:
      return fmt::format("'{}'", token.text);
  }
}

// Statements until a tag named in `ends`, which is left as the current token, or until the end if
// there are none.
Block Parser::parse_body(Ends ends) {
  const Deeper deeper(*this);
  Block block;
  while (current().kind != TokenKind::kEnd) {
    const int line = current().line;
    if (current().kind == TokenKind::kData) {
      auto text = std::make_unique<TextStmt>();
      text->text = take().text;
      text->line = line;
      block.body.push_back(std::move(text));
    } else if (current().kind == TokenKind::kOutputBegin) {
      take();
      auto output = std::make_unique<OutputStmt>();
      output->line = line;
      output->value = parse_tuple();
      expect(TokenKind::kOutputEnd, "'}}'");
      block.body.push_back(std::move(output));
    } else {
      expect(TokenKind::kBlockBegin, "'{%'");
      if (current().kind != TokenKind::kName)
        fail(fmt::format("expected a tag's name, got {}", describe(current())));
      for (const std::string_view end : ends) {
        if (current().text == end) return block;
      }
      StmtPtr statement = parse_statement();
      statement->line = line;
      end_tag();
      block.body.push_back(std::move(statement));
    }
  }
  if (ends.size() > 0) {
    fail(fmt::format("unexpected end of template: '{}' is missing", *(ends.end() - 1)));
  }
  return block;
}

void Parser::end_tag() { expect(TokenKind::kBlockEnd, "'%}'"); }

// The body of a tag whose head has been read.
Block Parser::parse_block_until(Ends ends) {
  skip_operator(":");
  end_tag();
  return parse_body(ends);
}

StmtPtr Parser::parse_statement() {
  struct Row {
    std::string_view tag;
    StmtPtr (Parser::*parse)();
  };
  static constexpr Row kTags[] = {
      {"if", &Parser::parse_if},
      {"for", &Parser::parse_for},
      {"set", &Parser::parse_set},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"filter", &Parser::parse_filter_block},
      {"with", &Parser::parse_with},
      {"generation", &Parser::parse_generation},
      {"print", &Parser::parse_print},
      {"break", &Parser::parse_loop_control},
      {"continue", &Parser::parse_loop_control},
  };
  for (const Row& row : kTags) {
    if (current().text == row.tag) return (this->*row.parse)();
  }
  static constexpr std::string_view kClosers[] = {
      "elif",     "else",    "endif",     "endfor",        "endset",
      "endmacro", "endcall", "endfilter", "endgeneration", "endwith"};
  for (const std::string_view closer : kClosers) {
    if (current().text == closer) fail(fmt::format("tag '{}' closes nothing", closer));
  }
  fail(fmt::format("tag '{}' is not supported", current().text));
}

StmtPtr Parser::parse_if() {
  auto node = std::make_unique<IfStmt>();
  node->line = take().line;
  node->test = parse_tuple(false);
  node->then = parse_block_until({"elif", "else", "endif"});
  while (true) {
    const Token& tag = take();
    if (tag.text == "elif") {
      auto branch = std::make_unique<IfStmt>();
      branch->line = tag.line;
      branch->test = parse_tuple(false);
      branch->then = parse_block_until({"elif", "else", "endif"});
      node->elifs.push_back(std::move(branch));
      continue;
    }
    if (tag.text == "else") {
      node->otherwise = parse_block_until({"endif"});
      take();
    }
    return node;
  }
}

StmtPtr Parser::parse_for() {
  auto node = std::make_unique<ForStmt>();
  node->line = take().line;
  node->target = parse_target(false, "in");
  expect_name("in");
  node->items = parse_tuple(false, "recursive");
  if (skip_name("if")) node->filter = parse_expression();
  node->recursive = skip_name("recursive");
  const int before_body = mentions_.loop;
  ++loops_;
  node->body = parse_block_until({"else", "endfor"});
  --loops_;
  node->uses_loop = node->recursive || mentions_.loop > before_body;
  if (take().text == "else") {
    node->otherwise = parse_block_until({"endfor"});
    take();
  }
  return node;
}

Target Parser::parse_target_part(bool with_attributes) {
  const Deeper deeper(*this);
  Target target;
  if (skip_operator("(")) {
    target.is_tuple = true;
    bool comma = false;
    while (!current().is_operator(")")) {
      if (!target.parts.empty()) {
        expect_operator(",");
        comma = true;
        if (current().is_operator(")")) break;
      }
      target.parts.push_back(parse_target_part(false));
    }
    expect_operator(")");
    if (target.parts.size() == 1 && !comma) {
      // Parentheses around one name mean nothing.
      Target only = std::move(target.parts[0]);
      return only;
    }
    return target;
  }
  const Token& name = expect(TokenKind::kName, "a name to assign to");
  static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                    "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), name.text) != std::end(kConstants)) {
    fail_at(name.line, fmt::format("can't assign to '{}'", name.text));
  }
  target.name = name.text;
  if (with_attributes && skip_operator(".")) {
    target.attribute = expect(TokenKind::kName, "an attribute's name").text;
  } else {
    assigned_.insert(target.name);
  }
  return target;
}

// One target, or several with commas between them. `end_name` is the word that may follow a last
// comma.
Target Parser::parse_target(bool with_attributes, std::string_view end_name) {
  Target first = parse_target_part(with_attributes);
  if (!current().is_operator(",")) return first;
  Target tuple;
  tuple.is_tuple = true;
  tuple.parts.push_back(std::move(first));
  while (skip_operator(",")) {
    if (current().kind == TokenKind::kBlockEnd || current().is_operator("=") ||
        (!end_name.empty() && current().is_name(end_name))) {
      break;
    }
    tuple.parts.push_back(parse_target_part(with_attributes));
  }
  return tuple;
}

StmtPtr Parser::parse_set() {
  const int line = take().line;
  Target target = parse_target(true);
  if (skip_operator("=")) {
    auto node = std::make_unique<SetStmt>();
    node->target = std::move(target);
    node->value = parse_tuple();
    return node;
  }
  auto node = std::make_unique<BlockSetStmt>();
  node->line = line;
  node->target = std::move(target);
  while (skip_operator("|")) node->filter = parse_filter(std::move(node->filter));
  node->body = parse_block_until({"endset"});
  take();
  return node;
}

void Parser::parse_signature(MacroBody* macro) {
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (!macro->parameters.empty()) expect_operator(",");
    MacroBody::Parameter parameter;
    parameter.name = expect(TokenKind::kName, "a parameter's name").text;
    for (const auto& other : macro->parameters) {
      if (other.name == parameter.name)
        fail(fmt::format("parameter '{}' is given twice", parameter.name));
    }
    assigned_.insert(parameter.name);
    if (skip_operator("=")) {
      parameter.fallback = parse_expression();
    } else if (!macro->parameters.empty() && macro->parameters.back().fallback) {
      fail("non-default argument follows default argument");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  expect_operator(")");
}

void Parser::parse_macro_body(MacroBody* macro, std::string_view end) {
  const Mentions before = mentions_;
  const int loops = std::exchange(loops_, 0);
  macro->body = parse_block_until({end});
  loops_ = loops;
  take();
  macro->uses_caller = mentions_.caller > before.caller;
  macro->uses_kwargs = mentions_.kwargs > before.kwargs;
  macro->uses_varargs = mentions_.varargs > before.varargs;
}

StmtPtr Parser::parse_macro() {
  auto node = std::make_unique<MacroStmt>();
  node->line = take().line;
  node->macro.name = expect(TokenKind::kName, "a macro's name").text;
  assigned_.insert(node->macro.name);
  parse_signature(&node->macro);
  parse_macro_body(&node->macro, "endmacro");
  return node;
}

StmtPtr Parser::parse_call_block() {
  auto node = std::make_unique<CallBlockStmt>();
  node->line = take().line;
  if (current().is_operator("(")) parse_signature(&node->macro);
  node->call = parse_expression();
  if (dynamic_cast<CallExpr*>(node->call.get()) == nullptr)
    fail_at(node->line, "expected a call after 'call'");
  parse_macro_body(&node->macro, "endcall");
  return node;
}

StmtPtr Parser::parse_filter_block() {
  auto node = std::make_unique<FilterBlockStmt>();
  node->line = take().line;
  node->filter = parse_filter(nullptr);
  while (skip_operator("|")) node->filter = parse_filter(std::move(node->filter));
  node->body = parse_block_until({"endfilter"});
  take();
  return node;
}

StmtPtr Parser::parse_with() {
  auto node = std::make_unique<WithStmt>();
  node->line = take().line;
  while (current().kind != TokenKind::kBlockEnd) {
    if (!node->values.empty()) expect_operator(",");
    Target target = parse_target_part(false);
    expect_operator("=");
    node->values.emplace_back(std::move(target), parse_expression());
  }
  node->body = parse_block_until({"endwith"});
  take();
  return node;
}

StmtPtr Parser::parse_generation() {
  auto node = std::make_unique<GenerationStmt>();
  node->line = take().line;
  const int loops = std::exchange(loops_, 0);
  node->body = parse_block_until({"endgeneration"});
  loops_ = loops;
  take();
  return node;
}

StmtPtr Parser::parse_print() {
  auto node = std::make_unique<OutputStmt>();
  const int line = take().line;
  auto parts = std::make_unique<ConcatExpr>();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!parts->parts.empty()) expect_operator(",");
    parts->parts.push_back(parse_expression());
  }
  node->value = finish(std::move(parts), line);
  return node;
}

StmtPtr Parser::parse_loop_control() {
  auto node = std::make_unique<LoopControlStmt>();
  const Token& tag = take();
  if (loops_ == 0) fail_at(tag.line, fmt::format("tag '{}' stands outside a loop", tag.text));
  node->flow = tag.text == "break" ? Flow::kBreak : Flow::kContinue;
  return node;
}

}  // namespace lk::jinja

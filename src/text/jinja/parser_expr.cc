#include <fmt/format.h>

#include "text/jinja/parser.h"
#include "text/jinja/print.h"

namespace lk::jinja {

ExprPtr Parser::parse_tuple(bool with_conditional, std::string_view end_name, bool parenthesized) {
  const int line = current().line;
  auto tuple = std::make_unique<ListExpr>();
  tuple->tuple = true;
  bool comma = false;
  while (true) {
    const bool ends = current().kind == TokenKind::kOutputEnd ||
                      current().kind == TokenKind::kBlockEnd || current().is_operator(")") ||
                      (!end_name.empty() && current().is_name(end_name));
    if (ends) break;
    tuple->items.push_back(parse_expression(with_conditional));
    if (!skip_operator(",")) break;
    comma = true;
  }
  if (!comma) {
    if (!tuple->items.empty()) return std::move(tuple->items[0]);
    if (!parenthesized) fail(fmt::format("expected an expression, got {}", describe(current())));
  }
  return finish(std::move(tuple), line);
}

ExprPtr Parser::parse_expression(bool with_conditional) {
  const Deeper deeper(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExprPtr Parser::parse_conditional() {
  const Deeper deeper(*this);
  int line = current().line;
  ExprPtr expr = parse_or();
  while (skip_name("if")) {
    auto node = std::make_unique<ConditionalExpr>();
    node->then = std::move(expr);
    node->test = parse_or();
    if (skip_name("else")) node->otherwise = parse_conditional();
    expr = finish(std::move(node), line);
    line = current().line;
  }
  return expr;
}

ExprPtr Parser::parse_or() {
  const int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) {
    auto node = std::make_unique<LogicExpr>();
    node->left = std::move(left);
    node->right = parse_and();
    left = finish(std::move(node), line);
  }
  return left;
}

ExprPtr Parser::parse_and() {
  const int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) {
    auto node = std::make_unique<LogicExpr>();
    node->is_and = true;
    node->left = std::move(left);
    node->right = parse_not();
    left = finish(std::move(node), line);
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Deeper deeper(*this);
  const int line = take().line;
  auto node = std::make_unique<UnaryExpr>();
  node->operand = parse_not();
  return finish(std::move(node), line);
}

ExprPtr Parser::parse_compare() {
  using Op = CompareExpr::Op;
  struct Row {
    std::string_view op;
    Op meaning;
  };
  static constexpr Row kOperators[] = {{"==", Op::kEqual},  {"!=", Op::kNotEqual},
                                       {"<", Op::kLess},    {"<=", Op::kLessEqual},
                                       {">", Op::kGreater}, {">=", Op::kGreaterEqual}};
  const int line = current().line;
  ExprPtr first = parse_sum();
  auto node = std::make_unique<CompareExpr>();
  const auto next_operator = [&](Op* op) {
    for (const Row& row : kOperators) {
      if (skip_operator(row.op)) {
        *op = row.meaning;
        return true;
      }
    }
    *op = Op::kIn;
    if (skip_name("in")) return true;
    *op = Op::kNotIn;
    if (!current().is_name("not") || !following().is_name("in")) return false;
    take(), take();
    return true;
  };
  for (Op op; next_operator(&op);) node->rest.emplace_back(op, parse_sum());
  if (node->rest.empty()) return first;
  node->first = std::move(first);
  return finish(std::move(node), line);
}

namespace {

struct BinaryRow {
  std::string_view op;
  BinaryFunction function;
};

template <size_t kCount>
BinaryFunction binary_function(const Token& token, const BinaryRow (&rows)[kCount]) {
  if (token.kind != TokenKind::kOperator) return nullptr;
  for (const BinaryRow& row : rows) {
    if (token.text == row.op) return row.function;
  }
  return nullptr;
}

constexpr BinaryRow kSums[] = {{"+", add}, {"-", subtract}};
constexpr BinaryRow kProducts[] = {
    {"*", multiply}, {"/", divide}, {"//", floor_divide}, {"%", modulo}};
constexpr BinaryRow kPowers[] = {{"**", power}};

std::unique_ptr<BinaryExpr> binary(BinaryFunction function, ExprPtr left, ExprPtr right) {
  auto node = std::make_unique<BinaryExpr>();
  node->function = function;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

}  // namespace

ExprPtr Parser::parse_sum() {
  const int line = current().line;
  ExprPtr left = parse_concat();
  while (const BinaryFunction function = binary_function(current(), kSums)) {
    take();
    left = finish(binary(function, std::move(left), parse_concat()), line);
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  const int line = current().line;
  ExprPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  auto node = std::make_unique<ConcatExpr>();
  node->parts.push_back(std::move(first));
  while (skip_operator("~")) node->parts.push_back(parse_product());
  return finish(std::move(node), line);
}

ExprPtr Parser::parse_product() {
  const int line = current().line;
  ExprPtr left = parse_power();
  while (const BinaryFunction function = binary_function(current(), kProducts)) {
    take();
    left = finish(binary(function, std::move(left), parse_power()), line);
  }
  return left;
}

ExprPtr Parser::parse_power() {
  const int line = current().line;
  ExprPtr left = parse_unary();
  // From the left, unlike Python.
  while (const BinaryFunction function = binary_function(current(), kPowers)) {
    take();
    left = finish(binary(function, std::move(left), parse_unary()), line);
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filters) {
  const Deeper deeper(*this);
  const int line = current().line;
  ExprPtr expr;
  if (current().is_operator("-") || current().is_operator("+")) {
    auto node = std::make_unique<UnaryExpr>();
    node->op = take().text == "-" ? UnaryExpr::Op::kNegate : UnaryExpr::Op::kPlus;
    node->operand = parse_unary(false);
    expr = finish(std::move(node), line);
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary() {
  const Token& token = current();
  if (token.kind == TokenKind::kName) return parse_name();
  auto constant = std::make_unique<ConstExpr>();
  switch (token.kind) {
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += take().text;
      constant->value = Value::string(std::move(text));
      return finish(std::move(constant), token.line);
    }
    case TokenKind::kInteger:
      constant->value = Value::wide_integer(take().integer);
      return finish(std::move(constant), token.line);
    case TokenKind::kFloat:
      constant->value = Value::real(take().real);
      return finish(std::move(constant), token.line);
    default:
      break;
  }
  if (skip_operator("(")) {
    ExprPtr inner = parse_tuple(true, {}, true);
    expect_operator(")");
    return inner;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  fail(fmt::format("unexpected {}", describe(token)));
}

ExprPtr Parser::parse_name() {
  const Token& token = take();
  const std::string& text = token.text;
  auto constant = std::make_unique<ConstExpr>();
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    constant->value = Value::boolean(text == "true" || text == "True");
    return finish(std::move(constant), token.line);
  }
  if (text == "none" || text == "None") {
    constant->value = Value::none();
    return finish(std::move(constant), token.line);
  }
  if (text == "loop") ++mentions_.loop;
  if (text == "caller") ++mentions_.caller;
  if (text == "kwargs") ++mentions_.kwargs;
  if (text == "varargs") ++mentions_.varargs;
  auto name = std::make_unique<NameExpr>();
  name->name = text;
  name->missing = std::make_shared<const UndefinedInfo>(
      UndefinedInfo{fmt::format("{} is undefined", string_repr(text))});
  return finish(std::move(name), token.line);
}

ExprPtr Parser::parse_list() {
  const int line = take().line;
  auto list = std::make_unique<ListExpr>();
  while (!current().is_operator("]")) {
    if (!list->items.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    list->items.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(list), line);
}

ExprPtr Parser::parse_dict() {
  const int line = take().line;
  auto dict = std::make_unique<DictExpr>();
  while (!current().is_operator("}")) {
    if (!dict->entries.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    ExprPtr key = parse_expression();
    expect_operator(":");
    dict->entries.emplace_back(std::move(key), parse_expression());
  }
  expect_operator("}");
  return finish(std::move(dict), line);
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr expr) {
  while (true) {
    if (skip_operator("|")) {
      expr = parse_filter(std::move(expr));
    } else if (current().is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr object) {
  const Token& token = take();
  if (token.text == ".") {
    const Token& attribute = take();
    if (attribute.kind == TokenKind::kName) {
      auto node = std::make_unique<AttributeExpr>();
      node->object = std::move(object);
      node->name = attribute.text;
      node->key = Value::string(attribute.text);
      node->string_method = find_string_method(attribute.text);
      node->dict_method = find_dict_method(attribute.text);
      node->missing_in_dict = std::make_shared<const UndefinedInfo>(
          UndefinedInfo{no_attribute_message(Value::dict({}), attribute.text)});
      return finish(std::move(node), token.line);
    }
    if (attribute.kind != TokenKind::kInteger) fail_at(attribute.line, "expected name or number");
    auto index = std::make_unique<ConstExpr>();
    index->value = Value::wide_integer(attribute.integer);
    auto node = std::make_unique<ItemExpr>();
    node->object = std::move(object);
    node->key = finish(std::move(index), attribute.line);
    return finish(std::move(node), token.line);
  }
  ExprPtr key;
  ExprPtr bounds[3];
  bool slice = false;
  if (!current().is_operator(":")) key = parse_expression();
  if (current().is_operator(":")) {
    slice = true;
    bounds[0] = std::move(key);
    for (int i = 1; i < 3 && skip_operator(":"); ++i) {
      if (!current().is_operator(":") && !current().is_operator("]"))
        bounds[i] = parse_expression();
    }
  }
  if (current().is_operator(",")) {
    if (slice) fail("a slice inside a tuple is not supported");
    auto tuple = std::make_unique<ListExpr>();
    tuple->tuple = true;
    tuple->items.push_back(std::move(key));
    while (skip_operator(",") && !current().is_operator("]"))
      tuple->items.push_back(parse_expression());
    key = finish(std::move(tuple), token.line);
  }
  expect_operator("]");
  if (!slice) {
    auto node = std::make_unique<ItemExpr>();
    node->object = std::move(object);
    node->key = std::move(key);
    return finish(std::move(node), token.line);
  }
  auto node = std::make_unique<SliceExpr>();
  node->object = std::move(object);
  node->start = std::move(bounds[0]);
  node->stop = std::move(bounds[1]);
  node->step = std::move(bounds[2]);
  return finish(std::move(node), token.line);
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  const int line = current().line;
  auto node = std::make_unique<CallExpr>();
  if (auto* name = dynamic_cast<NameExpr*>(callee.get())) called_.push_back({name, line});
  node->callee = std::move(callee);
  node->arguments = parse_arguments();
  return finish(std::move(node), line);
}

ArgumentList Parser::parse_arguments() {
  const Deeper deeper(*this);
  const int line = current().line;
  ArgumentList list;
  expect_operator("(");
  bool first = true;
  while (!current().is_operator(")")) {
    if (!std::exchange(first, false)) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    bool misplaced = false;
    if (skip_operator("*")) {
      misplaced = list.star || list.star_star;
      list.star = parse_expression();
    } else if (skip_operator("**")) {
      misplaced = list.star_star != nullptr;
      list.star_star = parse_expression();
    } else if (current().kind == TokenKind::kName && following().is_operator("=")) {
      misplaced = list.star_star != nullptr;
      std::string name = take().text;
      take();
      for (const auto& [other, value] : list.named) {
        if (other == name) fail(fmt::format("keyword argument '{}' is given twice", name));
      }
      list.named.emplace_back(std::move(name), parse_expression());
    } else {
      misplaced = list.star || list.star_star || !list.named.empty();
      list.positional.push_back(parse_expression());
    }
    if (misplaced) fail_at(line, "invalid syntax for function call expression");
  }
  expect_operator(")");
  return list;
}

std::string Parser::dotted_name() {
  std::string name = expect(TokenKind::kName, "a name").text;
  while (skip_operator(".")) name += "." + expect(TokenKind::kName, "a name").text;
  return name;
}

ExprPtr Parser::parse_filter(ExprPtr input) {
  const int line = current().line;
  const std::string name = dotted_name();
  auto node = std::make_unique<FilterExpr>();
  node->filter = find_filter(name);
  if (node->filter == nullptr) fail_at(line, fmt::format("filter '{}' is not supported", name));
  node->input = std::move(input);
  if (current().is_operator("(")) node->arguments = parse_arguments();
  return finish(std::move(node), line);
}

ExprPtr Parser::parse_test(ExprPtr input) {
  const int line = take().line;
  auto node = std::make_unique<TestExpr>();
  node->negated = skip_name("not");
  const std::string name = dotted_name();
  node->test = find_test(name);
  if (node->test == nullptr) fail_at(line, fmt::format("test '{}' is not supported", name));
  node->input = std::move(input);
  const Token& next = current();
  const bool literal = next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                       next.kind == TokenKind::kFloat || next.is_operator("[") ||
                       next.is_operator("{");
  const bool name_follows = next.kind == TokenKind::kName && next.text != "else" &&
                            next.text != "or" && next.text != "and";
  if (next.is_operator("(")) {
    node->arguments = parse_arguments();
  } else if (literal || name_follows) {
    if (next.text == "is" && next.kind == TokenKind::kName)
      fail("You cannot chain multiple tests with is");
    node->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  return finish(std::move(node), line);
}

}  // namespace lk::jinja

#include "common/chat/parser_impl.h"

#include <fmt/format.h>

#include <charconv>

namespace tandem::chat {
namespace {

constexpr int kDepthMax = 200;

}  // namespace

Parser::Depth::Depth(Parser& parser) : parser_(parser) {
  if (++parser_.depth_ > kDepthMax) parser_.error("the template is nested too deeply");
}

const Token& Parser::next() {
  const Token& token = tokens_[pos_];
  if (token.kind != TokenKind::kEnd) ++pos_;
  return token;
}

bool Parser::at_op(std::string_view op) const {
  return current().kind == TokenKind::kOperator && current().text == op;
}

bool Parser::at_name(std::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}

bool Parser::skip_op(std::string_view op) {
  if (!at_op(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) error(fmt::format("expected '{}', got {}", op, describe(current())));
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("expected '{}', got {}", name, describe(current())));
}

std::string Parser::expect_any_name(std::string_view what) {
  if (current().kind != TokenKind::kName) {
    error(fmt::format("expected {}, got {}", what, describe(current())));
  }
  return next().text;
}

void Parser::error(std::string message) const {
  throw ParseError{current().line, std::move(message)};
}

ExprPtr Parser::make(ExprKind kind) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = current().line;
  return node;
}

ExprPtr Parser::binary(ExprKind kind, ExprPtr left, ExprPtr right, std::string op) const {
  ExprPtr node = make(kind);
  node->line = left->line;
  node->text = std::move(op);
  node->items.push_back(std::move(left));
  node->items.push_back(std::move(right));
  return node;
}

ExprPtr Parser::expression(bool with_condition) {
  const Depth depth(*this);
  ExprPtr node = parse_or();
  while (with_condition && skip_name("if")) {
    ExprPtr condition = parse_or();
    ExprPtr otherwise;
    if (skip_name("else")) otherwise = expression();
    node = binary(ExprKind::kCond, std::move(node), std::move(condition));
    node->items.push_back(std::move(otherwise));
  }
  return node;
}

ExprPtr Parser::parse_or() {
  ExprPtr left = parse_and();
  while (skip_name("or")) {
    left = binary(ExprKind::kOr, std::move(left), parse_and());
  }
  return left;
}

ExprPtr Parser::parse_and() {
  ExprPtr left = parse_not();
  while (skip_name("and")) {
    left = binary(ExprKind::kAnd, std::move(left), parse_not());
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Depth depth(*this);
  ExprPtr node = make(ExprKind::kNot);
  next();
  node->items.push_back(parse_not());
  return node;
}

ExprPtr Parser::parse_compare() {
  ExprPtr first = parse_sum();
  ExprPtr node;
  while (true) {
    std::string op;
    for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (at_op(known)) op = known;
    }
    if (at_name("in")) op = "in";
    const bool not_in = at_name("not") && tokens_[pos_ + 1].kind == TokenKind::kName &&
                        tokens_[pos_ + 1].text == "in";
    if (not_in) op = "not in";
    if (op.empty()) return node ? std::move(node) : std::move(first);
    next();
    if (not_in) next();
    if (!node) {
      node = make(ExprKind::kCompare);
      node->items.push_back(std::move(first));
    }
    node->ops.push_back(std::move(op));
    node->items.push_back(parse_sum());
  }
}

ExprPtr Parser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    std::string op = next().text;
    left = binary(ExprKind::kBinary, std::move(left), parse_concat(), std::move(op));
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr first = parse_product();
  if (!at_op("~")) return first;
  ExprPtr node = make(ExprKind::kConcat);
  node->items.push_back(std::move(first));
  while (skip_op("~")) {
    node->items.push_back(parse_product());
  }
  return node;
}

ExprPtr Parser::parse_product() {
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    std::string op = next().text;
    left = binary(ExprKind::kBinary, std::move(left), parse_power(), std::move(op));
  }
  return left;
}

ExprPtr Parser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (skip_op("**")) {
    left = binary(ExprKind::kBinary, std::move(left), parse_unary(true), "**");
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  const Depth depth(*this);
  ExprPtr node;
  if (at_op("-") || at_op("+")) {
    node = make(at_op("-") ? ExprKind::kNegate : ExprKind::kPlus);
    next();
    node->items.push_back(parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_postfix_and_filters(std::move(node)) : std::move(node);
}

ExprPtr Parser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString: {
      ExprPtr node = make(ExprKind::kString);
      while (current().kind == TokenKind::kString) {
        node->text += next().text;
      }
      return node;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr node = parse_tuple(true, "", true);
    expect_op(")");
    return node;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  error(fmt::format("expected an expression, got {}", describe(token)));
}

ExprPtr Parser::parse_name() {
  const std::string& name = current().text;
  ExprPtr node;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node = make(ExprKind::kBool);
    node->flag = name[0] == 't' || name[0] == 'T';
  } else if (name == "none" || name == "None") {
    node = make(ExprKind::kNone);
  } else {
    node = make(ExprKind::kName);
    node->text = name;
    saw_varargs_ |= name == "varargs";
    saw_kwargs_ |= name == "kwargs";
    saw_caller_ |= name == "caller";
  }
  next();
  return node;
}

ExprPtr Parser::parse_number() {
  const std::string& text = current().text;
  if (current().kind == TokenKind::kFloat) {
    ExprPtr node = make(ExprKind::kFloat);
    std::from_chars(text.data(), text.data() + text.size(), node->number);
    next();
    return node;
  }
  ExprPtr node = make(ExprKind::kInt);
  int base = 10;
  std::string_view digits = text;
  if (text.size() > 2 && text[0] == '0' && (text[1] < '0' || text[1] > '9')) {
    const char letter = static_cast<char>(text[1] | 0x20);
    base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  if (digits.size() > 37) error(fmt::format("the number {} is too large", text));
  for (const char c : digits) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (digit >= base) error(fmt::format("'{}' is no number", text));
    node->integer = node->integer * base + digit;
  }
  next();
  return node;
}

ExprPtr Parser::parse_list() {
  ExprPtr node = make(ExprKind::kList);
  expect_op("[");
  while (!at_op("]")) {
    if (!node->items.empty()) expect_op(",");
    if (at_op("]")) break;
    node->items.push_back(expression());
  }
  expect_op("]");
  return node;
}

ExprPtr Parser::parse_dict() {
  ExprPtr node = make(ExprKind::kDict);
  expect_op("{");
  while (!at_op("}")) {
    if (!node->items.empty()) expect_op(",");
    if (at_op("}")) break;
    node->items.push_back(expression());
    expect_op(":");
    node->items.push_back(expression());
  }
  expect_op("}");
  return node;
}

bool Parser::at_tuple_end(std::string_view stop) const {
  return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
         at_op(")") || (!stop.empty() && at_name(stop));
}

ExprPtr Parser::parse_tuple(bool with_condition, std::string_view stop, bool in_parentheses) {
  const Depth depth(*this);
  ExprPtr node = make(ExprKind::kTuple);
  bool is_tuple = false;
  while (!at_tuple_end(stop)) {
    node->items.push_back(expression(with_condition));
    if (!skip_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->items.empty()) return std::move(node->items[0]);
  if (!in_parentheses) error(fmt::format("expected an expression, got {}", describe(current())));
  return node;
}

}  // namespace tandem::chat

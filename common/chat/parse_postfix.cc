// What stands behind a value: attributes, subscripts, calls, filters, tests.
#include "common/chat/builtins.h"
#include "common/chat/parser_impl.h"

#include <fmt/format.h>

namespace tandem::chat {

ExprPtr Parser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_op(".") || at_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_op("(")) {
      ExprPtr call = make(ExprKind::kCall);
      call->items.push_back(std::move(node));
      parse_call_args(*call);
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr node) {
  if (skip_op(".")) {
    if (current().kind == TokenKind::kInteger) {
      ExprPtr index = parse_number();
      return binary(ExprKind::kGetItem, std::move(node), std::move(index));
    }
    ExprPtr attr = make(ExprKind::kGetAttr);
    attr->text = expect_any_name("a name or a number after '.'");
    attr->items.push_back(std::move(node));
    return attr;
  }
  expect_op("[");
  ExprPtr parts[3];
  int count = 0;
  bool is_slice = false;
  while (!at_op("]")) {
    if (skip_op(":")) {
      is_slice = true;
      if (++count > 2) error("expected at most two ':' in a slice");
      continue;
    }
    if (parts[count]) error(fmt::format("expected ']', got {}", describe(current())));
    parts[count] = expression();
  }
  expect_op("]");
  if (!is_slice) {
    if (!parts[0]) error("expected a subscript");
    return binary(ExprKind::kGetItem, std::move(node), std::move(parts[0]));
  }
  ExprPtr slice = make(ExprKind::kSlice);
  slice->items.push_back(std::move(node));
  for (ExprPtr& part : parts) {
    slice->items.push_back(std::move(part));
  }
  return slice;
}

void Parser::parse_call_args(Expr& call) {
  const Depth depth(*this);
  expect_op("(");
  bool first = true;
  while (!at_op(")")) {
    if (!first) {
      expect_op(",");
      if (at_op(")")) break;
    }
    first = false;
    if (skip_op("**")) {
      call.star_star = expression();
    } else if (skip_op("*")) {
      call.star = expression();
    } else if (current().kind == TokenKind::kName &&
               tokens_[pos_ + 1].kind == TokenKind::kOperator && tokens_[pos_ + 1].text == "=") {
      std::string name = next().text;
      next();
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty() || call.star || call.star_star) {
        error("expected a keyword argument after keyword arguments");
      }
      call.items.push_back(expression());
    }
  }
  expect_op(")");
}

ExprPtr Parser::parse_postfix_and_filters(ExprPtr node) {
  while (true) {
    if (at_op("|")) {
      node = parse_filters(std::move(node), false);
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_op("(")) {
      node = parse_postfix(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::parse_filters(ExprPtr node, bool first_is_inline) {
  while (first_is_inline || skip_op("|")) {
    first_is_inline = false;
    ExprPtr filter = make(ExprKind::kFilter);
    filter->text = expect_any_name("the name of a filter");
    filter->filter = find_filter(filter->text);
    if (filter->filter == nullptr) error(fmt::format("No filter named '{}'.", filter->text));
    filter->items.push_back(std::move(node));
    if (at_op("(")) parse_call_args(*filter);
    node = std::move(filter);
  }
  return node;
}

ExprPtr Parser::parse_test(ExprPtr node) {
  ExprPtr test = make(ExprKind::kTest);
  next();
  test->flag = skip_name("not");
  test->text = expect_any_name("the name of a test");
  test->test = find_test(test->text);
  if (test->test == nullptr) error(fmt::format("No test named '{}'.", test->text));
  test->items.push_back(std::move(node));
  const TokenKind kind = current().kind;
  const bool is_value = kind == TokenKind::kString || kind == TokenKind::kInteger ||
                        kind == TokenKind::kFloat || at_op("[") || at_op("{");
  const bool is_word = kind == TokenKind::kName && !at_name("else") && !at_name("or") &&
                       !at_name("and") && !at_name("if") && !at_name("is") && !at_name("in") &&
                       !at_name("not") && !at_name("recursive");
  if (at_op("(")) {
    parse_call_args(*test);
  } else if (is_value || is_word) {
    test->items.push_back(parse_postfix(parse_primary()));
  }
  return test;
}

}  // namespace tandem::chat

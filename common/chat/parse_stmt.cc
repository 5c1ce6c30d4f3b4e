#include "common/chat/parser.h"
#include "common/chat/parser_impl.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::chat {

Stmt Parser::make_stmt(StmtKind kind) const {
  Stmt stmt;
  stmt.kind = kind;
  stmt.line = current().line;
  return stmt;
}

void Parser::expect_block_end() {
  if (current().kind != TokenKind::kBlockEnd) {
    error(fmt::format("expected 'end of statement block', got {}", describe(current())));
  }
  next();
}

void Parser::end_block(std::string_view name) {
  expect_name(name);
  expect_block_end();
}

Body Parser::parse_all() {
  Body body = parse_body({});
  if (current().kind != TokenKind::kEnd) {
    error(fmt::format("unexpected {}", describe(current())));
  }
  return body;
}

/// Statements up to one of the named tags; stops before the name, inside its block.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Depth depth(*this);
  Body body;
  while (true) {
    switch (current().kind) {
      case TokenKind::kEnd:
        if (ends.size() > 0) {
          error(fmt::format("unexpected end of template, expected '{}'", *(ends.end() - 1)));
        }
        return body;
      case TokenKind::kText: {
        Stmt stmt = make_stmt(StmtKind::kText);
        stmt.text = next().text;
        body.push_back(std::move(stmt));
        break;
      }
      case TokenKind::kVariableBegin: {
        next();
        Stmt stmt = make_stmt(StmtKind::kOutput);
        stmt.expr = parse_tuple(true, "", false);
        if (current().kind != TokenKind::kVariableEnd) {
          error(fmt::format("expected 'end of print statement', got {}", describe(current())));
        }
        next();
        body.push_back(std::move(stmt));
        break;
      }
      default:
        next();
        for (const std::string_view end : ends) {
          if (at_name(end)) return body;
        }
        parse_statement(body);
    }
  }
}

void Parser::parse_statement(Body& out) {
  const std::string name = current().kind == TokenKind::kName ? current().text : "";
  if (name.empty()) error(fmt::format("expected the name of a tag, got {}", describe(current())));
  if (name == "if") {
    out.push_back(parse_if());
  } else if (name == "for") {
    out.push_back(parse_for());
  } else if (name == "set") {
    out.push_back(parse_set());
  } else if (name == "macro") {
    out.push_back(parse_macro());
  } else if (name == "call") {
    out.push_back(parse_call_block());
  } else if (name == "filter") {
    out.push_back(parse_filter_block());
  } else if (name == "with") {
    out.push_back(parse_with());
  } else if (name == "print") {
    Stmt stmt = make_stmt(StmtKind::kOutput);
    next();
    stmt.expr = parse_tuple(true, "", false);
    expect_block_end();
    out.push_back(std::move(stmt));
  } else if (name == "break" || name == "continue") {
    if (loop_depth_ == 0) error(fmt::format("'{}' outside a loop", name));
    out.push_back(make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue));
    next();
    expect_block_end();
  } else if (name == "generation" || name == "block") {
    Stmt stmt = make_stmt(name == "block" ? StmtKind::kBlock : StmtKind::kScope);
    next();
    if (name == "block") stmt.text = expect_any_name("the name of a block");
    expect_block_end();
    const std::string end = "end" + name;
    const int loops = std::exchange(loop_depth_, 0);
    stmt.body = parse_body({end});
    loop_depth_ = loops;
    next();
    if (name == "block") skip_name(stmt.text);
    expect_block_end();
    out.push_back(std::move(stmt));
  } else if (name == "import" || name == "include" || name == "extends" || name == "from") {
    error(fmt::format("'{}' is not supported: a chat template is one file", name));
  } else {
    error(fmt::format("Encountered unknown tag '{}'.", name));
  }
}

Stmt Parser::parse_if() {
  Stmt stmt = make_stmt(StmtKind::kIf);
  next();
  stmt.expr = parse_tuple(false, "", false);
  expect_block_end();
  stmt.body = parse_body({"elif", "else", "endif"});
  if (at_name("elif")) {
    // One level of the tree per elif: the limit on nesting covers long chains, too.
    const Depth depth(*this);
    stmt.other.push_back(parse_if());
    return stmt;
  }
  if (skip_name("else")) {
    expect_block_end();
    stmt.other = parse_body({"endif"});
  }
  end_block("endif");
  return stmt;
}

Stmt Parser::parse_for() {
  Stmt stmt = make_stmt(StmtKind::kFor);
  next();
  stmt.target = parse_target(false, "in");
  expect_name("in");
  stmt.expr = parse_tuple(false, "recursive", false);
  if (skip_name("if")) stmt.condition = expression();
  stmt.flag = skip_name("recursive");
  expect_block_end();
  ++loop_depth_;
  stmt.body = parse_body({"else", "endfor"});
  --loop_depth_;
  if (skip_name("else")) {
    expect_block_end();
    stmt.other = parse_body({"endfor"});
  }
  end_block("endfor");
  return stmt;
}

ExprPtr Parser::parse_one_target(bool allow_attribute) {
  if (skip_op("(")) {
    ExprPtr inner = parse_target(allow_attribute, "");
    expect_op(")");
    return inner;
  }
  ExprPtr node = make(ExprKind::kName);
  node->text = expect_any_name("a name to assign to");
  for (const std::string_view fixed : {"true", "false", "none", "True", "False", "None", "loop"}) {
    if (node->text == fixed) error(fmt::format("can't assign to '{}'", fixed));
  }
  if (!allow_attribute || !skip_op(".")) return node;
  ExprPtr attr = make(ExprKind::kGetAttr);
  attr->text = expect_any_name("a name after '.'");
  attr->items.push_back(std::move(node));
  return attr;
}

ExprPtr Parser::parse_target(bool allow_attribute, std::string_view stop) {
  const Depth depth(*this);
  ExprPtr first = parse_one_target(allow_attribute);
  if (!at_op(",")) return first;
  ExprPtr node = make(ExprKind::kTuple);
  node->items.push_back(std::move(first));
  while (skip_op(",")) {
    if (at_tuple_end(stop) || at_op("=")) break;
    node->items.push_back(parse_one_target(allow_attribute));
  }
  return node;
}

Stmt Parser::parse_set() {
  Stmt stmt = make_stmt(StmtKind::kSet);
  next();
  stmt.target = parse_target(true, "");
  if (skip_op("=")) {
    stmt.expr = parse_tuple(true, "", false);
    expect_block_end();
    return stmt;
  }
  stmt.kind = StmtKind::kSetBlock;
  if (at_op("|")) stmt.condition = parse_filters(nullptr, false);
  expect_block_end();
  stmt.body = parse_body({"endset"});
  end_block("endset");
  return stmt;
}

void Parser::parse_params(Stmt& stmt) {
  expect_op("(");
  while (!at_op(")")) {
    if (!stmt.params.empty()) expect_op(",");
    if (at_op(")")) break;
    Param param;
    param.name = expect_any_name("the name of a parameter");
    if (skip_op("=")) {
      param.fallback = expression();
    } else if (!stmt.params.empty() && stmt.params.back().fallback) {
      error("expected a default: the parameter before has one");
    }
    stmt.params.push_back(std::move(param));
  }
  expect_op(")");
}

void Parser::parse_macro_body(Stmt& stmt, std::string_view end) {
  const bool outer[] = {saw_varargs_, saw_kwargs_, saw_caller_};
  saw_varargs_ = saw_kwargs_ = saw_caller_ = false;
  const int loops = std::exchange(loop_depth_, 0);
  stmt.body = parse_body({end});
  loop_depth_ = loops;
  stmt.uses_varargs = saw_varargs_;
  stmt.uses_kwargs = saw_kwargs_;
  stmt.uses_caller = saw_caller_;
  saw_varargs_ = outer[0];
  saw_kwargs_ = outer[1];
  saw_caller_ = outer[2];
  next();
}

Stmt Parser::parse_macro() {
  Stmt stmt = make_stmt(StmtKind::kMacro);
  next();
  stmt.text = expect_any_name("the name of a macro");
  parse_params(stmt);
  expect_block_end();
  parse_macro_body(stmt, "endmacro");
  skip_name(stmt.text);
  expect_block_end();
  return stmt;
}

Stmt Parser::parse_call_block() {
  Stmt stmt = make_stmt(StmtKind::kCall);
  next();
  if (at_op("(")) parse_params(stmt);
  stmt.text = "caller";
  stmt.expr = expression();
  if (stmt.expr->kind != ExprKind::kCall) error("expected a call");
  expect_block_end();
  parse_macro_body(stmt, "endcall");
  expect_block_end();
  return stmt;
}

Stmt Parser::parse_filter_block() {
  Stmt stmt = make_stmt(StmtKind::kFilter);
  next();
  stmt.expr = parse_filters(nullptr, true);
  expect_block_end();
  stmt.body = parse_body({"endfilter"});
  end_block("endfilter");
  return stmt;
}

Stmt Parser::parse_with() {
  Stmt stmt = make_stmt(StmtKind::kWith);
  next();
  while (current().kind != TokenKind::kBlockEnd) {
    if (!stmt.targets.empty()) expect_op(",");
    stmt.targets.push_back(parse_one_target(false));
    expect_op("=");
    stmt.values.push_back(expression());
  }
  expect_block_end();
  stmt.body = parse_body({"endwith"});
  end_block("endwith");
  return stmt;
}

Result<Body> parse_template(std::string_view source) {
  TANDEM_TRY(std::vector<Token> tokens, tokenize(source));
  try {
    return Parser(std::move(tokens)).parse_all();
  } catch (const ParseError& e) {
    return invalid_argument(fmt::format("line {}: {}", e.line, e.message));
  }
}

}  // namespace tandem::chat

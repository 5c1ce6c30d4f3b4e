// The parser's class, shared by its two halves (expressions, statements).
#pragma once

#include "common/chat/ast.h"
#include "common/chat/lexer.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::chat {

struct ParseError {
  int line;
  std::string message;
};

/// Recursive descent over the tokens, after jinja2/parser.py. Throws ParseError inside the room.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body parse_all();

 private:
  /// Nesting of expressions and statements has a limit, so that no input overflows the stack.
  class Depth {
   public:
    explicit Depth(Parser& parser);

    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

    ~Depth() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  // Tokens.
  [[nodiscard]] const Token& current() const { return tokens_[pos_]; }

  const Token& next();
  [[nodiscard]] bool at_op(std::string_view op) const;
  [[nodiscard]] bool at_name(std::string_view name) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name(std::string_view what);
  [[noreturn]] void error(std::string message) const;

  // Expressions.
  ExprPtr make(ExprKind kind) const;
  ExprPtr binary(ExprKind kind, ExprPtr left, ExprPtr right, std::string op = "") const;
  ExprPtr expression(bool with_condition = true);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_number();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_filters(ExprPtr node, bool first_is_inline);
  ExprPtr parse_postfix_and_filters(ExprPtr node);
  ExprPtr parse_test(ExprPtr node);
  void parse_call_args(Expr& call);
  /// One expression, or a tuple without parentheses. `stop` is a name that ends it.
  ExprPtr parse_tuple(bool with_condition, std::string_view stop, bool in_parentheses);
  [[nodiscard]] bool at_tuple_end(std::string_view stop) const;

  // Statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  void parse_statement(Body& out);
  Stmt make_stmt(StmtKind kind) const;
  Stmt parse_if();
  Stmt parse_for();
  Stmt parse_set();
  Stmt parse_macro();
  Stmt parse_call_block();
  Stmt parse_filter_block();
  Stmt parse_with();
  void parse_params(Stmt& stmt);
  void parse_macro_body(Stmt& stmt, std::string_view end);
  ExprPtr parse_target(bool allow_attribute, std::string_view stop);
  ExprPtr parse_one_target(bool allow_attribute);
  /// The name of an end tag, then the end of its block.
  void end_block(std::string_view name);
  void expect_block_end();

  std::vector<Token> tokens_;
  std::size_t pos_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
  /// What the innermost macro's body mentions.
  bool saw_varargs_ = false;
  bool saw_kwargs_ = false;
  bool saw_caller_ = false;
};

}  // namespace tandem::chat

// Tests: what may stand behind "is".
#include "common/chat/builtins.h"

#include <fmt/format.h>

namespace tandem::chat {
namespace {

struct Entry {
  std::string_view name;
  TestFn function;
};

template <Type kType>
bool is_type(Interp&, const Value& v, Args&) {
  return v.is(kType);
}

const Value& only_arg(const Args& args, std::string_view name) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    fail(fmt::format("the test '{}' takes one argument", name));
  }
  return args.positional[0];
}

bool test_defined(Interp&, const Value& v, Args&) {
  return !v.is(Type::kUndefined);
}

bool test_true(Interp&, const Value& v, Args&) {
  return v.is(Type::kBool) && v.b;
}

bool test_false(Interp&, const Value& v, Args&) {
  return v.is(Type::kBool) && !v.b;
}

bool test_number(Interp&, const Value& v, Args&) {
  return v.is_number();
}

bool test_sequence(Interp&, const Value& v, Args&) {
  if (v.is(Type::kSeq)) {
    const auto style = v.seq().style;
    return style == Seq::kList || style == Seq::kTuple || style == Seq::kRange ||
           style == Seq::kGroup;
  }
  return v.is(Type::kString) || v.is(Type::kDict) || v.is(Type::kUndefined);
}

bool test_iterable(Interp&, const Value& v, Args&) {
  return v.is(Type::kSeq) || v.is(Type::kString) || v.is(Type::kDict) || v.is(Type::kUndefined) ||
         v.is(Type::kLoop);
}

bool test_callable(Interp&, const Value& v, Args&) {
  // Undefined has a __call__ that fails, and so counts.
  return v.is(Type::kMacro) || v.is(Type::kFunction) || v.is(Type::kMethod) ||
         v.is(Type::kJoiner) || v.is(Type::kLoop) || v.is(Type::kUndefined);
}

Int whole(const Value& v, std::string_view name) {
  if (!v.is(Type::kInt) && !v.is(Type::kBool)) {
    fail(fmt::format("the test '{}' needs an integer, found {}", name, type_name(v)));
  }
  return as_int(v);
}

bool test_even(Interp&, const Value& v, Args&) {
  return whole(v, "even") % 2 == 0;
}

bool test_odd(Interp&, const Value& v, Args&) {
  return whole(v, "odd") % 2 != 0;
}

bool test_divisibleby(Interp&, const Value& v, Args& args) {
  const Int by = whole(only_arg(args, "divisibleby"), "divisibleby");
  if (by == 0) fail("division by zero");
  return whole(v, "divisibleby") % by == 0;
}

bool test_eq(Interp&, const Value& v, Args& args) {
  return equal(v, only_arg(args, "eq"));
}

bool test_ne(Interp&, const Value& v, Args& args) {
  return !equal(v, only_arg(args, "ne"));
}

bool test_lt(Interp&, const Value& v, Args& args) {
  return compare(v, only_arg(args, "lt")) < 0;
}

bool test_le(Interp&, const Value& v, Args& args) {
  return compare(v, only_arg(args, "le")) <= 0;
}

bool test_gt(Interp&, const Value& v, Args& args) {
  return compare(v, only_arg(args, "gt")) > 0;
}

bool test_ge(Interp&, const Value& v, Args& args) {
  return compare(v, only_arg(args, "ge")) >= 0;
}

bool test_in(Interp& in, const Value& v, Args& args) {
  return contains(in, only_arg(args, "in"), v);
}

bool test_sameas(Interp&, const Value& v, Args& args) {
  const Value& other = only_arg(args, "sameas");
  if (v.type != other.type) return false;
  if (v.is(Type::kSeq) || v.is(Type::kDict)) return v.obj == other.obj;
  return equal(v, other);
}

bool test_lower(Interp&, const Value& v, Args&) {
  const std::string text = to_str(v);
  return lower(text) == text && upper(text) != text;
}

bool test_upper(Interp&, const Value& v, Args&) {
  const std::string text = to_str(v);
  return upper(text) == text && lower(text) != text;
}

bool test_escaped(Interp&, const Value&, Args&) {
  return false;
}

bool test_filter(Interp&, const Value& v, Args&) {
  return v.is(Type::kString) && find_filter(v.str()) != nullptr;
}

bool test_test(Interp&, const Value& v, Args&) {
  return v.is(Type::kString) && find_test(v.str()) != nullptr;
}

constexpr Entry kTests[] = {
    {"!=", test_ne},
    {"<", test_lt},
    {"<=", test_le},
    {"==", test_eq},
    {">", test_gt},
    {">=", test_ge},
    {"boolean", is_type<Type::kBool>},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisibleby},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"escaped", test_escaped},
    {"even", test_even},
    {"false", test_false},
    {"filter", test_filter},
    {"float", is_type<Type::kFloat>},
    {"ge", test_ge},
    {"greaterthan", test_gt},
    {"gt", test_gt},
    {"in", test_in},
    {"integer", is_type<Type::kInt>},
    {"iterable", test_iterable},
    {"le", test_le},
    {"lessthan", test_lt},
    {"lower", test_lower},
    {"lt", test_lt},
    {"mapping", is_type<Type::kDict>},
    {"ne", test_ne},
    {"none", is_type<Type::kNone>},
    {"number", test_number},
    {"odd", test_odd},
    {"sameas", test_sameas},
    {"sequence", test_sequence},
    {"string", is_type<Type::kString>},
    {"test", test_test},
    {"true", test_true},
    {"undefined", is_type<Type::kUndefined>},
    {"upper", test_upper},
};

}  // namespace

TestFn find_test(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace tandem::chat

// Values of a template while it renders: Python's, as far as templates see them.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::chat {

__extension__ typedef __int128 Int;

/// Thrown inside the room only; render() turns it into a Status.
struct RenderError {
  std::string message;
  Code code = Code::kInvalidArgument;
  /// From raise_exception: the message is the template author's and stays as it is.
  bool raised = false;
};

[[noreturn, gnu::cold]] void fail(std::string message);

enum class Type : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSeq,
  kDict,
  kNamespace,
  kMacro,
  kLoop,
  kFunction,
  kMethod,
  kCycler,
  kJoiner,
};

struct Obj;
struct Seq;
struct Dict;

/// A handle that is cheap to copy; what it points to lives in the Arena of the render (or, for
/// strings, in the template or in the context).
struct Value {
  Type type = Type::kUndefined;
  /// Bytes of a string; for undefined: bytes of the message.
  std::size_t size = 0;

  union {
    bool b;
    Int i = 0;
    double d;
    const char* s;
    Obj* obj;
  };

  static Value none();
  static Value boolean(bool v);
  static Value integer(Int v);
  static Value number(double v);
  /// Borrows the bytes.
  static Value string(std::string_view v);
  /// Borrows the message; used when somebody looks inside the undefined value.
  static Value undefined(std::string_view message);
  static Value object(Type type, Obj* obj);

  [[nodiscard]] std::string_view str() const { return {s, size}; }

  [[nodiscard]] Seq& seq() const;
  [[nodiscard]] Dict& dict() const;

  [[nodiscard]] bool is(Type t) const { return type == t; }

  /// bool, int or float.
  [[nodiscard]] bool is_number() const;
};

struct Obj {
  virtual ~Obj() = default;
};

struct Seq : Obj {
  enum Style : std::uint8_t {
    kList,
    kTuple,
    kGenerator,
    kRange,
    kKeys,
    kValues,
    kItems,
    kGroup
  };

  std::vector<Value> items;
  Style style = kList;
  /// Generators give their items once.
  bool consumed = false;
};

struct Dict : Obj {
  std::vector<std::pair<Value, Value>> items;

  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  void set(const Value& key, const Value& value);
};

/// Owns everything that a render makes; counts bytes against a limit.
class Arena {
 public:
  explicit Arena(std::size_t bytes_max) : bytes_left_(bytes_max) { objects_.reserve(16); }

  /// Fails with resource_exhausted when the limit is reached.
  void charge(std::size_t byte_count);

  template <class T>
  T* make() {
    charge(sizeof(T));
    auto owned = std::make_unique<T>();
    T* raw = owned.get();
    objects_.push_back(std::move(owned));
    return raw;
  }

  Value string(std::string text);
  Value seq(std::vector<Value> items, Seq::Style style = Seq::kList);
  Value dict();
  /// Strings stay in `value`, which must outlive the arena.
  Value from_json(const json::Value& value, int depth = 0);

 private:
  struct Text : Obj {
    std::string text;
  };

  std::size_t bytes_left_;
  std::vector<std::unique_ptr<Obj>> objects_;
};

/// Values nested deeper than this are refused, wherever a walk over them would recurse.
inline constexpr int kValueDepthMax = 200;

/// Python's name of the type, for messages.
std::string_view type_name(const Value& v);
bool truth(const Value& v);
/// Python's ==.
bool equal(const Value& a, const Value& b, int depth = 0);
/// Python's ordering: below, equal, above zero. Fails with Python's TypeError.
int compare(const Value& a, const Value& b, int depth = 0);
/// Python's str() and repr().
void append_str(std::string& out, const Value& v);
void append_repr(std::string& out, const Value& v, int depth = 0);
std::string to_str(const Value& v);

std::string int_to_string(Int v);
/// Python's repr of a float: shortest digits, exponent below -4 and from 16 on.
std::string float_repr(double v);
double as_double(const Value& number);
/// bool or int as an integer; nothing else may be passed.
Int as_int(const Value& v);
/// An index or count; fails for other types and for what does not fit.
std::int64_t to_index(const Value& v, std::string_view what);

/// Characters of a string, one view each.
std::vector<std::string_view> code_points(std::string_view text);
bool is_ascii(std::string_view text);
bool is_space(char32_t c);

}  // namespace tandem::chat

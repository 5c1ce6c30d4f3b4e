// json::Value: a JSON value that owns its contents. Objects keep the order of their keys.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::json {

class Value;
struct Member;
using Array = std::vector<Value>;
/// An array of plain integers, where the parser was asked for it (ParseOptions::integer_lists).
using Integers = std::vector<std::int32_t>;

/// Members in the order in which they were first set. Lookup is linear for few members and by hash
/// for many, so that a vocabulary of 150,000 keys stays cheap.
class Object {
 public:
  Object();
  /// In this order; of members with the same key the last one, at the place of the first.
  /// `repeated` becomes the first key that came again, if one did; null: nobody asks.
  explicit Object(std::vector<Member> members, std::optional<std::string>* repeated = nullptr);
  Object(const Object& other);
  Object(Object&& other) noexcept;
  Object& operator=(const Object& other);
  Object& operator=(Object&& other) noexcept;
  ~Object();

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] bool empty() const;
  /// Borrowed; valid until the object changes. Null when there is no such key.
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] Value* find(std::string_view key);
  /// The same with its key.
  [[nodiscard]] const Member* find_member(std::string_view key) const;

  [[nodiscard]] bool contains(std::string_view key) const { return find(key) != nullptr; }

  /// Sets or replaces; a replaced member keeps its place. Returns true when the key was new.
  bool set(std::string key, Value value);
  /// Removes a member if it is there; the order of the others stays.
  bool erase(std::string_view key);

  [[nodiscard]] const Member* begin() const;
  [[nodiscard]] const Member* end() const;
  [[nodiscard]] Member* begin();
  [[nodiscard]] Member* end();

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  /// Of the index. With a part of the hash beside it, few keys are looked at in vain.
  struct Slot {
    std::uint32_t position = kNone;  ///< in members_
    std::uint32_t hash = 0;
  };

  /// Where the key is, or the free slot where it would be.
  [[nodiscard]] std::size_t slot_of(std::string_view key, std::uint32_t hash) const;
  [[nodiscard]] std::uint32_t position_of(std::string_view key) const;
  /// False when some key is there twice; then the index has the first one.
  bool rebuild_index();
  [[nodiscard]] bool has_duplicates() const;

  std::vector<Member> members_;
  /// Open addressing. Null while the object is small.
  std::unique_ptr<std::vector<Slot>> index_;
};

enum class Kind : std::uint8_t {
  kNull,
  kBool,
  kInt,     ///< fits int64
  kUint,    ///< above int64, fits uint64
  kDouble,  ///< has a fraction or exponent, or is an integer beyond 64 bits
  kString,
  kArray,
  kObject,
  kIntegers,  ///< an array too
};

/// "null", "boolean", "integer", "number", "string", "array", "object".
std::string_view kind_name(Kind kind);

/// A value type: copies are deep. Threads: const access from many threads is safe.
class Value {
 public:
  Value() = default;

  // NOLINTBEGIN(google-explicit-constructor): literals should read like JSON.
  Value(std::nullptr_t) {}

  Value(bool b) : data_(b) {}

  template <std::integral T>

  requires(!std::same_as<T, bool>) Value(T number) {
    if constexpr (std::unsigned_integral<T> && sizeof(T) == 8) {
      if (number > static_cast<T>(INT64_MAX)) {
        data_ = static_cast<std::uint64_t>(number);
        return;
      }
    }
    data_ = static_cast<std::int64_t>(number);
  }

  Value(double number) : data_(number) {}

  Value(float number) : data_(static_cast<double>(number)) {}

  Value(std::string text) : data_(std::move(text)) {}

  Value(std::string_view text) : data_(std::string(text)) {}

  Value(const char* text) : data_(std::string(text)) {}

  Value(Array items) : data_(std::move(items)) {}

  Value(Object members) : data_(std::move(members)) {}

  Value(Integers numbers) : data_(std::move(numbers)) {}

  // NOLINTEND(google-explicit-constructor)

  static Value array(std::initializer_list<Value> items = {});
  /// Later duplicates replace earlier ones.
  static Value object(std::initializer_list<std::pair<const char*, Value>> members = {});

  [[nodiscard]] Kind kind() const { return static_cast<Kind>(data_.index()); }

  [[nodiscard]] bool is_null() const { return kind() == Kind::kNull; }

  [[nodiscard]] bool is_bool() const { return kind() == Kind::kBool; }

  /// An integer that fits int64 or uint64.
  [[nodiscard]] bool is_integer() const { return kind() == Kind::kInt || kind() == Kind::kUint; }

  [[nodiscard]] bool is_number() const { return is_integer() || kind() == Kind::kDouble; }

  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }

  /// Also when its items are held as Integers.
  [[nodiscard]] bool is_array() const {
    return kind() == Kind::kArray || kind() == Kind::kIntegers;
  }

  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }

  /// Borrowed pointers to the contents; null when the kind is another one.
  [[nodiscard]] const bool* if_bool() const { return std::get_if<bool>(&data_); }

  [[nodiscard]] const std::int64_t* if_int() const { return std::get_if<std::int64_t>(&data_); }

  [[nodiscard]] const std::uint64_t* if_uint() const { return std::get_if<std::uint64_t>(&data_); }

  [[nodiscard]] const double* if_double() const { return std::get_if<double>(&data_); }

  [[nodiscard]] const std::string* if_string() const { return std::get_if<std::string>(&data_); }

  [[nodiscard]] std::string* if_string() { return std::get_if<std::string>(&data_); }

  /// Becomes an empty string, whatever it was.
  std::string& make_string() { return data_.emplace<std::string>(); }

  [[nodiscard]] const Array* if_array() const { return std::get_if<Array>(&data_); }

  [[nodiscard]] Array* if_array() { return std::get_if<Array>(&data_); }

  [[nodiscard]] const Integers* if_integers() const { return std::get_if<Integers>(&data_); }

  [[nodiscard]] const Object* if_object() const { return std::get_if<Object>(&data_); }

  [[nodiscard]] Object* if_object() { return std::get_if<Object>(&data_); }

  /// Member of an object; null when this is no object or has no such key.
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// The number as a double (integers are rounded); 0 when this is no number.
  [[nodiscard]] double number_or_zero() const;

  /// Numbers are equal when their mathematical values are; objects whatever the order of keys;
  /// arrays however they hold their items.
  friend bool operator==(const Value& a, const Value& b);

 private:
  std::variant<std::monostate,
               bool,
               std::int64_t,
               std::uint64_t,
               double,
               std::string,
               Array,
               Object,
               Integers>
      data_;
};

struct Member {
  std::string key;
  Value value;
};

}  // namespace tandem::json

#include "common/json/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

namespace tandem::json {
namespace {

constexpr std::size_t kIndexFrom = 16;
// Room that an object begins with: growing moves all its values.
constexpr std::size_t kMembersFirst = 4;

std::uint32_t hash_of(std::string_view key) {
  return static_cast<std::uint32_t>(std::hash<std::string_view>{}(key));
}

bool equal_int_double(std::int64_t i, double d) {
  return d >= -0x1p63 && d < 0x1p63 && std::trunc(d) == d && static_cast<std::int64_t>(d) == i;
}

bool equal_uint_double(std::uint64_t u, double d) {
  return d >= 0 && d < 0x1p64 && std::trunc(d) == d && static_cast<std::uint64_t>(d) == u;
}

bool equal_number_double(const Value& number, double d) {
  if (const auto* i = number.if_int()) return equal_int_double(*i, d);
  if (const auto* u = number.if_uint()) return equal_uint_double(*u, d);
  return false;
}

bool equal_integers(const Value& integers, const Array& items) {
  const Integers* numbers = integers.if_integers();
  if (numbers == nullptr) return false;
  return std::equal(numbers->begin(),
                    numbers->end(),
                    items.begin(),
                    items.end(),
                    [](std::int32_t number, const Value& item) { return Value(number) == item; });
}

bool equal_objects(const Object& a, const Object& b) {
  if (a.size() != b.size()) return false;
  for (const Member& member : a) {
    const Value* other = b.find(member.key);
    if (other == nullptr || !(member.value == *other)) return false;
  }
  return true;
}

}  // namespace

Object::Object() = default;

Object::Object(std::vector<Member> members, std::optional<std::string>* repeated)
    : members_(std::move(members)) {
  const bool unique = members_.size() > kIndexFrom ? rebuild_index() : !has_duplicates();
  if (unique) return;
  std::vector<Member> all = std::exchange(members_, {});
  index_ = nullptr;
  for (Member& member : all) {
    if (repeated != nullptr && !*repeated && contains(member.key)) *repeated = member.key;
    set(std::move(member.key), std::move(member.value));
  }
}

Object::Object(Object&& other) noexcept = default;
Object& Object::operator=(Object&& other) noexcept = default;
Object::~Object() = default;

Object::Object(const Object& other) : members_(other.members_) {
  if (other.index_) index_ = std::make_unique<std::vector<Slot>>(*other.index_);
}

Object& Object::operator=(const Object& other) {
  if (this != &other) *this = Object(other);
  return *this;
}

std::size_t Object::size() const {
  return members_.size();
}

bool Object::empty() const {
  return members_.empty();
}

const Member* Object::begin() const {
  return members_.data();
}

const Member* Object::end() const {
  return members_.data() + members_.size();
}

Member* Object::begin() {
  return members_.data();
}

Member* Object::end() {
  return members_.data() + members_.size();
}

std::size_t Object::slot_of(std::string_view key, std::uint32_t hash) const {
  const std::size_t mask = index_->size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = (*index_)[at];
    if (slot.position == kNone) return at;
    if (slot.hash == hash && members_[slot.position].key == key) return at;
  }
}

std::uint32_t Object::position_of(std::string_view key) const {
  if (index_) return (*index_)[slot_of(key, hash_of(key))].position;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].key == key) return static_cast<std::uint32_t>(i);
  }
  return kNone;
}

const Member* Object::find_member(std::string_view key) const {
  const std::uint32_t position = position_of(key);
  return position == kNone ? nullptr : &members_[position];
}

const Value* Object::find(std::string_view key) const {
  const Member* member = find_member(key);
  return member == nullptr ? nullptr : &member->value;
}

Value* Object::find(std::string_view key) {
  const std::uint32_t position = position_of(key);
  return position == kNone ? nullptr : &members_[position].value;
}

bool Object::set(std::string key, Value value) {
  // With an index this is one search, not a second one for the place.
  const std::uint32_t hash = index_ ? hash_of(key) : 0;
  Slot* slot = index_ ? &(*index_)[slot_of(key, hash)] : nullptr;
  const std::uint32_t old = slot != nullptr ? slot->position : position_of(key);
  if (old != kNone) {
    members_[old].value = std::move(value);
    return false;
  }
  if (members_.empty()) members_.reserve(kMembersFirst);
  members_.push_back({std::move(key), std::move(value)});
  if (slot != nullptr) *slot = {static_cast<std::uint32_t>(members_.size() - 1), hash};
  if (index_ ? members_.size() * 2 > index_->size() : members_.size() > kIndexFrom)
    (void)rebuild_index();
  return true;
}

bool Object::erase(std::string_view key) {
  const std::uint32_t position = position_of(key);
  if (position == kNone) return false;
  members_.erase(members_.begin() + position);
  if (index_) (void)rebuild_index();
  return true;
}

bool Object::rebuild_index() {
  std::size_t slot_count = 64;
  while (slot_count < members_.size() * 2 + 2) {
    slot_count *= 2;
  }
  index_ = std::make_unique<std::vector<Slot>>(slot_count);
  bool unique = true;
  const auto insert = [&](std::size_t position, std::uint32_t hash) {
    Slot& slot = (*index_)[slot_of(members_[position].key, hash)];
    if (slot.position == kNone) {
      slot = {static_cast<std::uint32_t>(position), hash};
    } else {
      unique = false;
    }
  };
  // The slots of a large object lie all over its index: some are asked for at a time.
  constexpr std::size_t kAhead = 16;
  std::array<std::uint32_t, kAhead> hashes{};
  const std::size_t count = members_.size();
  for (std::size_t i = 0; i < count + kAhead; ++i) {
    std::uint32_t& hash = hashes[i % kAhead];
    if (i >= kAhead && i - kAhead < count) insert(i - kAhead, hash);
    if (i >= count) continue;
    hash = hash_of(members_[i].key);
    __builtin_prefetch(&(*index_)[hash & (slot_count - 1)], 1);
  }
  return unique;
}

bool Object::has_duplicates() const {
  for (std::size_t i = 1; i < members_.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (members_[k].key == members_[i].key) return true;
    }
  }
  return false;
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "boolean";
    case Kind::kInt:
    case Kind::kUint:
      return "integer";
    case Kind::kDouble:
      return "number";
    case Kind::kString:
      return "string";
    case Kind::kArray:
    case Kind::kIntegers:
      return "array";
    case Kind::kObject:
      return "object";
  }
  return "?";
}

Value Value::array(std::initializer_list<Value> items) {
  return Array(items);
}

Value Value::object(std::initializer_list<std::pair<const char*, Value>> members) {
  Object object;
  for (const auto& [key, value] : members) {
    object.set(key, value);
  }
  return object;
}

const Value* Value::find(std::string_view key) const {
  const Object* object = if_object();
  return object == nullptr ? nullptr : object->find(key);
}

double Value::number_or_zero() const {
  if (const auto* i = if_int()) return static_cast<double>(*i);
  if (const auto* u = if_uint()) return static_cast<double>(*u);
  if (const auto* d = if_double()) return *d;
  return 0;
}

bool operator==(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) {
    if (const auto* d = a.if_double()) return equal_number_double(b, *d);
    if (const auto* d = b.if_double()) return equal_number_double(a, *d);
    if (const auto* items = a.if_array()) return equal_integers(b, *items);
    if (const auto* items = b.if_array()) return equal_integers(a, *items);
    return false;
  }
  if (const auto* object = a.if_object()) return equal_objects(*object, *b.if_object());
  if (const auto* items = a.if_array()) return *items == *b.if_array();
  if (const auto* numbers = a.if_integers()) return *numbers == *b.if_integers();
  if (const auto* text = a.if_string()) return *text == *b.if_string();
  if (const auto* flag = a.if_bool()) return *flag == *b.if_bool();
  if (const auto* i = a.if_int()) return *i == *b.if_int();
  if (const auto* u = a.if_uint()) return *u == *b.if_uint();
  if (const auto* d = a.if_double()) return *d == *b.if_double();
  return true;
}

}  // namespace tandem::json

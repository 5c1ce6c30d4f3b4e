#include "common/json/value.h"

#include <cmath>
#include <functional>

namespace tandem::json {
namespace {

constexpr std::size_t kIndexFrom = 16;
// Room that an object begins with: growing moves all its values.
constexpr std::size_t kMembersFirst = 4;

std::size_t hash_of(std::string_view key) {
  return std::hash<std::string_view>{}(key);
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
Object::Object(Object&& other) noexcept = default;
Object& Object::operator=(Object&& other) noexcept = default;
Object::~Object() = default;

Object::Object(const Object& other) : members_(other.members_) {
  if (other.index_) index_ = std::make_unique<std::vector<std::uint32_t>>(*other.index_);
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

std::uint32_t Object::position_of(std::string_view key) const {
  if (!index_) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].key == key) return static_cast<std::uint32_t>(i);
    }
    return kNone;
  }
  const std::size_t mask = index_->size() - 1;
  for (std::size_t slot = hash_of(key) & mask;; slot = (slot + 1) & mask) {
    const std::uint32_t position = (*index_)[slot];
    if (position == kNone || members_[position].key == key) return position;
  }
}

const Value* Object::find(std::string_view key) const {
  const std::uint32_t position = position_of(key);
  return position == kNone ? nullptr : &members_[position].value;
}

Value* Object::find(std::string_view key) {
  const std::uint32_t position = position_of(key);
  return position == kNone ? nullptr : &members_[position].value;
}

bool Object::set(std::string key, Value value) {
  if (Value* old = find(key)) {
    *old = std::move(value);
    return false;
  }
  if (members_.empty()) members_.reserve(kMembersFirst);
  members_.push_back({std::move(key), std::move(value)});
  if (index_ ? members_.size() * 2 > index_->size() : members_.size() > kIndexFrom) {
    rebuild_index();
  } else if (index_) {
    index_last();
  }
  return true;
}

bool Object::erase(std::string_view key) {
  const std::uint32_t position = position_of(key);
  if (position == kNone) return false;
  members_.erase(members_.begin() + position);
  if (index_) rebuild_index();
  return true;
}

void Object::rebuild_index() {
  std::size_t slot_count = 64;
  while (slot_count < members_.size() * 4) {
    slot_count *= 2;
  }
  index_ = std::make_unique<std::vector<std::uint32_t>>(slot_count, kNone);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    std::size_t slot = hash_of(members_[i].key) & (slot_count - 1);
    while ((*index_)[slot] != kNone) {
      slot = (slot + 1) & (slot_count - 1);
    }
    (*index_)[slot] = static_cast<std::uint32_t>(i);
  }
}

void Object::index_last() {
  const std::size_t mask = index_->size() - 1;
  std::size_t slot = hash_of(members_.back().key) & mask;
  while ((*index_)[slot] != kNone) {
    slot = (slot + 1) & mask;
  }
  (*index_)[slot] = static_cast<std::uint32_t>(members_.size() - 1);
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
    return false;
  }
  if (const auto* object = a.if_object()) return equal_objects(*object, *b.if_object());
  if (const auto* items = a.if_array()) return *items == *b.if_array();
  if (const auto* text = a.if_string()) return *text == *b.if_string();
  if (const auto* flag = a.if_bool()) return *flag == *b.if_bool();
  if (const auto* i = a.if_int()) return *i == *b.if_int();
  if (const auto* u = a.if_uint()) return *u == *b.if_uint();
  if (const auto* d = a.if_double()) return *d == *b.if_double();
  return true;
}

}  // namespace tandem::json

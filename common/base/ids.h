// Strong ids and index types: an id of one kind never converts into another.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tandem {

/// using BlockId = Id<struct BlockTag, std::uint32_t>; ids compare, hash and nothing else.
template <class Tag, class Rep = std::uint64_t>
struct Id {
  Rep value{};
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

/// Time on one process's monotonic clock, nanoseconds since an arbitrary start. Never sent to a
/// peer: deadlines travel as what is left.
struct Time {
  std::int64_t ns = 0;
  friend constexpr auto operator<=>(const Time&, const Time&) = default;
};

struct Duration {
  std::int64_t ns = 0;
  friend constexpr auto operator<=>(const Duration&, const Duration&) = default;

  [[nodiscard]] constexpr double seconds() const { return static_cast<double>(ns) * 1e-9; }

  [[nodiscard]] constexpr std::int64_t milliseconds() const { return ns / 1'000'000; }
};

constexpr Duration nanoseconds(std::int64_t n) {
  return {n};
}

constexpr Duration microseconds(std::int64_t n) {
  return {n * 1'000};
}

constexpr Duration milliseconds(std::int64_t n) {
  return {n * 1'000'000};
}

constexpr Duration seconds(std::int64_t n) {
  return {n * 1'000'000'000};
}

constexpr Time operator+(Time t, Duration d) {
  return {t.ns + d.ns};
}

constexpr Time operator-(Time t, Duration d) {
  return {t.ns - d.ns};
}

constexpr Duration operator-(Time a, Time b) {
  return {a.ns - b.ns};
}

constexpr Duration operator+(Duration a, Duration b) {
  return {a.ns + b.ns};
}

constexpr Duration operator-(Duration a, Duration b) {
  return {a.ns - b.ns};
}

constexpr Duration operator*(Duration a, std::int64_t k) {
  return {a.ns * k};
}

}  // namespace tandem

template <class Tag, class Rep>
struct std::hash<tandem::Id<Tag, Rep>> {
  std::size_t operator()(const tandem::Id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};

// Status and Result<T>: the only way an expected failure travels between rooms.
#pragma once

#include "common/base/check.h"

#include <boost/smart_ptr/intrusive_ptr.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace tandem {

/// Canonical codes; the numbers are gRPC's, so the wire mapping is a cast.
enum class Code : std::uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// "invalid_argument", "unavailable", ...: for logs.
std::string_view code_name(Code code);

namespace internal {
struct Failure;
[[gnu::cold]] void intrusive_ptr_add_ref(const Failure* failure) noexcept;
[[gnu::cold]] void intrusive_ptr_release(const Failure* failure) noexcept;
}  // namespace internal

/// Success, or a code with one sentence for the person who reads it. Success never allocates.
///
/// What makes or keeps a failure is marked cold, here and wherever else one is made: the compiler
/// then moves all that leads to one out of the code that runs for each request, which the
/// instruction cache is too small for.
class [[nodiscard]] Status {
 public:
  Status() = default;
  [[gnu::cold]] Status(Code code, std::string message);

  [[nodiscard]] bool ok() const { return failure_ == nullptr; }

  [[nodiscard]] Code code() const;

  /// Empty on success.
  [[nodiscard]] const std::string& message() const;
  /// The same code with "context: " put before the message; success stays success.
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  boost::intrusive_ptr<const internal::Failure> failure_;
};

inline Status ok_status() {
  return {};
}

[[gnu::cold]] Status cancelled(std::string message);
[[gnu::cold]] Status invalid_argument(std::string message);
[[gnu::cold]] Status deadline_exceeded(std::string message);
[[gnu::cold]] Status not_found(std::string message);
[[gnu::cold]] Status already_exists(std::string message);
[[gnu::cold]] Status permission_denied(std::string message);
[[gnu::cold]] Status resource_exhausted(std::string message);
[[gnu::cold]] Status failed_precondition(std::string message);
[[gnu::cold]] Status aborted(std::string message);
[[gnu::cold]] Status unimplemented(std::string message);
[[gnu::cold]] Status internal_error(std::string message);
[[gnu::cold]] Status unavailable(std::string message);
[[gnu::cold]] Status data_loss(std::string message);
[[gnu::cold]] Status unauthenticated(std::string message);

/// A value or the Status that says why there is none. Taking the value of a failed Result is a
/// broken invariant.
template <class T>
class [[nodiscard]] Result {
 public:
  using ValueType = T;

  // NOLINTNEXTLINE(google-explicit-constructor): so that a function can return either
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {
    TANDEM_CHECK(!std::get<0>(state_).ok(), "Result built from an ok Status");
  }

  template <class U = T,
            class = std::enable_if_t<std::is_constructible_v<T, U&&> &&
                                     !std::is_same_v<std::remove_cvref_t<U>, Status> &&
                                     !std::is_same_v<std::remove_cvref_t<U>, Result>>>
  // NOLINTNEXTLINE(google-explicit-constructor): so that a function can return either
  Result(U&& value) : state_(std::in_place_index<1>, std::forward<U>(value)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 1; }

  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<0>(state_); }

  T& value() & {
    TANDEM_CHECK(ok(), std::get<0>(state_).message());
    return std::get<1>(state_);
  }

  const T& value() const& {
    TANDEM_CHECK(ok(), std::get<0>(state_).message());
    return std::get<1>(state_);
  }

  T&& value() && {
    TANDEM_CHECK(ok(), std::get<0>(state_).message());
    return std::get<1>(std::move(state_));
  }

  T& operator*() & { return value(); }

  const T& operator*() const& { return value(); }

  T&& operator*() && { return std::move(*this).value(); }

  T* operator->() { return &value(); }

  const T* operator->() const { return &value(); }

 private:
  std::variant<Status, T> state_;
};

namespace internal {
inline Status to_status(Status status) {
  return status;
}

template <class T>
Status to_status(const Result<T>& result) {
  return result.status();
}
}  // namespace internal

}  // namespace tandem

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)
#define TANDEM_TRY_1(expr)                                                      \
  if (::tandem::Status tandem_try_status = ::tandem::internal::to_status(expr); \
      !tandem_try_status.ok()) [[unlikely]]                                     \
  return tandem_try_status
#define TANDEM_TRY_2(decl, expr) \
  TANDEM_TRY_2_NAMED(TANDEM_CONCAT(tandem_try_, __COUNTER__), decl, expr)
#define TANDEM_TRY_2_NAMED(name, decl, expr) \
  auto name = (expr);                        \
  if (!name.ok()) [[unlikely]]               \
    return name.status();                    \
  decl = std::move(name).value()
#define TANDEM_TRY_PICK(a, b, macro, ...) macro
/// TANDEM_TRY(status_or_result_expr); or TANDEM_TRY(auto x, result_expr); returns early with the
/// error.
#define TANDEM_TRY(...) TANDEM_TRY_PICK(__VA_ARGS__, TANDEM_TRY_2, TANDEM_TRY_1)(__VA_ARGS__)

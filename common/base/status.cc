#include "common/base/status.h"

#include <array>
#include <atomic>
#include <utility>

namespace tandem {

std::string_view code_name(Code code) {
  static constexpr std::array<std::string_view, 17> kNames = {"ok",
                                                              "cancelled",
                                                              "unknown",
                                                              "invalid_argument",
                                                              "deadline_exceeded",
                                                              "not_found",
                                                              "already_exists",
                                                              "permission_denied",
                                                              "resource_exhausted",
                                                              "failed_precondition",
                                                              "aborted",
                                                              "out_of_range",
                                                              "unimplemented",
                                                              "internal",
                                                              "unavailable",
                                                              "data_loss",
                                                              "unauthenticated"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

namespace internal {

struct Failure {
  Code code;
  std::string message;
  mutable std::atomic<std::uint32_t> holders{0};
};

void intrusive_ptr_add_ref(const Failure* failure) noexcept {
  failure->holders.fetch_add(1, std::memory_order_relaxed);
}

void intrusive_ptr_release(const Failure* failure) noexcept {
  if (failure->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure;
}

}  // namespace internal

Status::Status(Code code, std::string message) {
  if (code != Code::kOk) failure_ = new internal::Failure{code, std::move(message)};
}

Code Status::code() const {
  return failure_ ? failure_->code : Code::kOk;
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return failure_ ? failure_->message : kEmpty;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {code(), std::string(context) + ": " + message()};
}

Status cancelled(std::string message) {
  return {Code::kCancelled, std::move(message)};
}

Status invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}

Status deadline_exceeded(std::string message) {
  return {Code::kDeadlineExceeded, std::move(message)};
}

Status not_found(std::string message) {
  return {Code::kNotFound, std::move(message)};
}

Status already_exists(std::string message) {
  return {Code::kAlreadyExists, std::move(message)};
}

Status permission_denied(std::string message) {
  return {Code::kPermissionDenied, std::move(message)};
}

Status resource_exhausted(std::string message) {
  return {Code::kResourceExhausted, std::move(message)};
}

Status failed_precondition(std::string message) {
  return {Code::kFailedPrecondition, std::move(message)};
}

Status aborted(std::string message) {
  return {Code::kAborted, std::move(message)};
}

Status unimplemented(std::string message) {
  return {Code::kUnimplemented, std::move(message)};
}

Status internal_error(std::string message) {
  return {Code::kInternal, std::move(message)};
}

Status unavailable(std::string message) {
  return {Code::kUnavailable, std::move(message)};
}

Status data_loss(std::string message) {
  return {Code::kDataLoss, std::move(message)};
}

Status unauthenticated(std::string message) {
  return {Code::kUnauthenticated, std::move(message)};
}

}  // namespace tandem

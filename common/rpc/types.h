// What a router and a worker say to each other, as plain values.
#pragma once

#include "common/core/generator.h"
#include "common/core/request.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::rpc {

/// Version of package tandem.v1 that this build speaks; a peer with another one is refused.
inline constexpr std::uint32_t kProtocolVersion = 1;

/// Numbers are the wire's (proto enum Role).
enum class Role : std::uint8_t {
  kUnified = 1,
  kPrefill = 2,
  kDecode = 3,
};

/// "null", "prefill", "decode": the values of --disaggregation-mode.
std::string_view role_name(Role role);

/// What a worker says of itself once, when a session opens.
struct WorkerInfo {
  std::uint64_t incarnation = 0;  ///< random at process start
  Role role = Role::kUnified;
  std::string model_digest;
  core::ServedModel model;
  std::int32_t page_size = 0;
  std::string dtype;
  std::string kv_cache_dtype;
  std::string numerics_family;
  std::string version;
  std::uint32_t protocol_version = kProtocolVersion;
  std::string http_address;       ///< host:port
  std::string grpc_address;       ///< host:port
  std::string bootstrap_address;  ///< host:port; prefill only
  std::string arguments_json;     ///< every resolved argument, one JSON object
  std::int32_t dp_rank = 0;
  std::int32_t dp_size = 1;
};

/// How a request is split between two workers, as told to one of them.
struct Disaggregation {
  Role role = Role::kPrefill;  ///< of the receiver of the message
  std::uint64_t room = 0;      ///< names the pairing; 63 bits
  std::uint32_t attempt = 0;
  std::uint64_t decode_incarnation = 0;
  std::string bootstrap_host;  ///< of the prefill side
  std::uint16_t bootstrap_port = 0;
  std::string peer_grpc_address;  ///< of the other side
  std::uint64_t peer_incarnation = 0;
};

/// One request on its way to a worker.
struct Submission {
  core::Request request;
  std::uint32_t attempt = 0;
  /// Absent: the worker serves the request alone.
  std::optional<Disaggregation> disaggregation;
};

/// The same for who only sends it: a parameter, which borrows what it is of for the call alone.
struct SubmissionView {
  // NOLINTNEXTLINE(google-explicit-constructor): a submission can be looked at
  SubmissionView(const Submission& whole)
      : request(whole.request), attempt(whole.attempt), disaggregation(whole.disaggregation) {}

  SubmissionView(const core::Request& request_in,
                 std::uint32_t attempt_in,
                 const std::optional<Disaggregation>& disaggregation_in)
      : request(request_in), attempt(attempt_in), disaggregation(disaggregation_in) {}

  const core::Request& request;
  std::uint32_t attempt;
  const std::optional<Disaggregation>& disaggregation;
};

}  // namespace tandem::rpc

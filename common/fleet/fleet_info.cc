// What the fleet tells of itself: readiness, loads, workers; and how a worker's gRPC address is
// found.
#include "common/fleet/fleet.h"
#include "common/http/client.h"
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tandem::fleet {
namespace {

constexpr Duration kPublished = milliseconds(100);

}  // namespace

Result<std::string> probe_grpc_address(const WorkerAddress& address,
                                       const std::string& api_key,
                                       Time deadline) {
  const std::string what = "GET http://" + address.text() + "/get_server_info";
  http::ClientRequest request;
  request.host = address.host;
  request.port = address.port;
  request.path = "/get_server_info";
  if (!api_key.empty()) request.headers.add("authorization", "Bearer " + api_key);
  const auto response = http::request(request, deadline);
  if (!response.ok()) return response.status().with_context(what);
  if (response->status != 200)
    return unavailable(fmt::format("{}: HTTP {}", what, response->status));
  auto body = json::parse(response->body);
  if (!body.ok()) return body.status().with_context(what);
  const json::Field root(*body);
  TANDEM_TRY(const auto port, root.optional_int("grpc_port", 1, 65535));
  if (!port) return failed_precondition(what + ": no grpc_port; is this a Tandem worker?");
  return address.host + ":" + std::to_string(*port);
}

Status Fleet::ready() const {
  if (draining_) return unavailable("the router is shutting down");
  const std::lock_guard lock(published_mutex_);
  return published_.ready;
}

Status Fleet::present() const {
  const std::lock_guard lock(published_mutex_);
  return published_.present;
}

/// Their own link compares everything; this is what can be told before the first request.
Status Fleet::check_pair(const rpc::WorkerInfo& prefill, const rpc::WorkerInfo& decode) {
  if (prefill.page_size != decode.page_size) {
    return failed_precondition(
        fmt::format("the pair does not fit: page_size: prefill has {}, decode has {}",
                    prefill.page_size,
                    decode.page_size));
  }
  const auto differ = [](const char* field, const std::string& one, const std::string& other) {
    return failed_precondition(fmt::format(
        R"(the pair does not fit: {}: prefill has "{}", decode has "{}")", field, one, other));
  };
  if (prefill.dtype != decode.dtype) return differ("dtype", prefill.dtype, decode.dtype);
  if (prefill.kv_cache_dtype != decode.kv_cache_dtype) {
    return differ("kv_cache_dtype", prefill.kv_cache_dtype, decode.kv_cache_dtype);
  }
  return {};
}

bool Fleet::all_pairs_fit() const {
  const rpc::WorkerInfo* first = nullptr;
  for (const auto& [number, worker] : workers_) {
    if (worker.state != State::kUp) continue;
    if (first == nullptr) first = &worker.info;
    if (!check_pair(*first, worker.info).ok()) return false;
  }
  return true;
}

/// Whether some prefill and some decode worker that are up can be linked.
Status Fleet::find_pair() const {
  Status why = unavailable("no prefill worker is up, or no decode worker");
  for (const auto& [p, prefill] : workers_) {
    if (prefill.state != State::kUp || prefill.info.role != rpc::Role::kPrefill) continue;
    for (const auto& [d, decode] : workers_) {
      if (decode.state != State::kUp || decode.info.role != rpc::Role::kDecode) continue;
      why = check_pair(prefill.info, decode.info);
      if (why.ok()) return why;
    }
  }
  return why;
}

std::vector<core::Load> Fleet::loads() const {
  const std::lock_guard lock(published_mutex_);
  return published_.loads;
}

core::ServedModel Fleet::served_model() const {
  const std::lock_guard lock(published_mutex_);
  return published_.model.value_or(core::ServedModel{});
}

std::string Fleet::model_source() const {
  const std::lock_guard lock(published_mutex_);
  return published_.model_source;
}

std::vector<std::pair<std::string, std::string>> Fleet::server_info() const {
  const std::lock_guard lock(published_mutex_);
  return {{"workers", published_.workers_json}, {"router", published_.router_json}};
}

Status Fleet::wait_ready(Time deadline, const std::function<bool()>& give_up) {
  for (;;) {
    Status status = present();
    if (status.ok()) return status;
    if (give_up && give_up()) return cancelled("stopped while waiting for workers");
    if (steady_clock().now() >= deadline)
      return status.with_context("workers did not become ready in time");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string Fleet::worker_json(const Worker& worker) const {
  static constexpr const char* kStates[] = {"probing", "connecting", "up", "waiting"};
  json::Object object;
  object.set("url", worker.address.text());
  object.set("role", rpc::role_name(worker.address.role));
  object.set("state", kStates[static_cast<std::size_t>(worker.state)]);
  object.set("incarnation", fmt::format("{:016x}", worker.info.incarnation));
  object.set("model_digest", worker.info.model_digest);
  object.set("http_address", worker.info.http_address);
  object.set("grpc_address", worker.info.grpc_address);
  object.set("bootstrap_address", worker.info.bootstrap_address);
  object.set("active_requests", static_cast<std::int64_t>(flights_.active_at(worker.key)));
  object.set("running_requests", worker.load.running_requests);
  object.set("waiting_requests", worker.load.waiting_requests);
  object.set("used_pages", worker.load.used_pages);
  object.set("cached_pages", worker.load.cached_pages);
  object.set("free_pages", worker.load.free_pages);
  object.set("transferring_pages", worker.load.transferring_pages);
  object.set("total_pages", worker.load.total_pages);
  object.set("last_error", worker.last_error);
  return json::to_string(json::Value(std::move(object)));
}

void Fleet::publish(Time now) {
  // Formatting for readers that look seldom costs what three tokens do.
  if (!changed_ && now < publish_at_) return;
  changed_ = false;
  publish_at_ = now + kPublished;
  Published next;
  bool unified = false;
  bool prefill = false;
  bool decode = false;
  // What each of them has room for.
  std::int32_t context_length = model_of_ ? model_of_->model.context_length : 0;
  std::int32_t request_tokens = 0;  // 0: as many as the context
  std::string missing;
  for (const auto& [number, worker] : workers_) {
    next.workers_json += (next.workers_json.empty() ? "" : ",") + worker_json(worker);
    if (worker.state != State::kUp) {
      if (!worker.last_error.empty()) missing = worker.last_error;
      continue;
    }
    unified |= worker.info.role == rpc::Role::kUnified;
    prefill |= worker.info.role == rpc::Role::kPrefill;
    decode |= worker.info.role == rpc::Role::kDecode;
    next.loads.push_back(worker.load);
    context_length = std::min(context_length, worker.info.model.context_length);
    // Prefill holds the prompt alone, and refuses what it has no room for.
    const std::int32_t tokens = worker.info.model.max_request_tokens;
    if (worker.info.role != rpc::Role::kPrefill && tokens > 0)
      request_tokens = request_tokens > 0 ? std::min(request_tokens, tokens) : tokens;
  }
  next.workers_json = "[" + next.workers_json + "]";
  const FlightStats& stats = flights_.stats();
  next.router_json = fmt::format(
      R"({{"active":{},"queued":{},"started":{},"retried":{},"failed":{},"stale_events":{},"repeated_tokens":{},)"
      R"("differing_tokens":{},"miscounted":{},"prefix_tokens":{},"prefix_trims":{}}})",
      flights_.active_count(),
      queue_.size(),
      stats.started,
      stats.retried,
      stats.failed,
      stats.stale_events,
      stats.repeated_tokens,
      stats.differing_tokens,
      stats.miscounted,
      prefixes_.tokens(),
      prefix_trims_);
  const std::string why = missing.empty() ? "" : " (last error: " + missing + ")";
  if (options_.disaggregated) {
    if (!prefill)
      next.present = unavailable("no prefill worker is up" + why);
    else if (!decode)
      next.present = unavailable("no decode worker is up" + why);
  } else if (!unified) {
    next.present = unavailable("no worker is up" + why);
  }
  next.ready = next.present;
  if (next.ready.ok() && options_.disaggregated) {
    if (const Status pair = find_pair(); !pair.ok()) next.ready = unavailable(pair.message());
  }
  if (model_of_) {
    next.model = model_of_->model;
    next.model->context_length = context_length;
    next.model->max_request_tokens = request_tokens;
    next.model_source = model_of_->http_address;
  }
  const std::lock_guard lock(published_mutex_);
  published_ = std::move(next);
}

}  // namespace tandem::fleet

#include "common/bootstrap/http_routes.h"

#include "common/http/message.h"
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/json/write.h"
#include "common/obs/metrics.h"

#include <charconv>
#include <utility>

namespace tandem::bootstrap {

namespace {

using WriterPtr = std::shared_ptr<http::ResponseWriter>;

constexpr std::int64_t kRankMax = 1 << 20;
constexpr std::size_t kRoomsPerQueryMax = 65'536;
// All rows that come over PUT /route are of the one prefill deployment that SGLang's protocol
// knows.
constexpr const char* kRouteInstance = "sglang-route";

int http_status(const Status& status) {
  switch (status.code()) {
    case Code::kNotFound:
      return 404;
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return 400;
    case Code::kResourceExhausted:
    case Code::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

void send_error(const WriterPtr& writer, const Status& status) {
  const int code = http_status(status);
  writer->send(
      code, {{"content-type", "application/json"}}, http::error_json(code, status.message()));
}

void send_json(const WriterPtr& writer, std::string body) {
  writer->send(200, {{"content-type", "application/json"}}, std::move(body));
}

void send_ok(const WriterPtr& writer) {
  writer->send(200, {{"content-type", "text/plain; charset=utf-8"}}, "OK");
}

Result<json::Value> parse_object(const std::string& body) {
  auto parsed = json::parse(body, {.max_bytes = 4U << 20U, .max_depth = 8});
  // Whatever limit it broke: the text is at fault, and sending it again would not help.
  if (!parsed.ok()) return invalid_argument(parsed.status().message());
  json::Value value = std::move(*parsed);
  TANDEM_TRY(json::Field(value).as_object());
  return value;
}

/// A whole number that must be there, with 400 and its name otherwise.
Status read_number(const json::Value& body,
                   const char* name,
                   std::int64_t min,
                   std::uint32_t* out) {
  TANDEM_TRY(const auto found, json::Field(body).optional_int(name, min, kRankMax));
  if (!found) return invalid_argument(std::string(name) + ": missing");
  *out = static_cast<std::uint32_t>(*found);
  return {};
}

Status read_optional(const json::Value& body,
                     const char* name,
                     std::int64_t min,
                     std::uint32_t* out) {
  TANDEM_TRY(const auto found, json::Field(body).optional_int(name, min, kRankMax));
  if (found) *out = static_cast<std::uint32_t>(*found);
  return {};
}

Status read_text(const json::Value& body, const char* name, std::string* out) {
  TANDEM_TRY(auto found, json::Field(body).optional_string(name));
  if (found) *out = std::move(*found);
  return {};
}

Status read_topology(const json::Value& body, cluster::Topology* t) {
  TANDEM_TRY(read_number(body, "attn_tp_size", 1, &t->attn_tp_size));
  TANDEM_TRY(read_number(body, "attn_tp_rank", 0, &t->attn_tp_rank));
  TANDEM_TRY(read_number(body, "attn_dp_size", 1, &t->attn_dp_size));
  TANDEM_TRY(read_number(body, "attn_dp_rank", 0, &t->attn_dp_rank));
  TANDEM_TRY(read_number(body, "pp_size", 1, &t->pp_size));
  TANDEM_TRY(read_number(body, "pp_rank", 0, &t->pp_rank));
  // Later versions of the protocol only.
  TANDEM_TRY(read_optional(body, "attn_cp_size", 1, &t->attn_cp_size));
  TANDEM_TRY(read_optional(body, "attn_cp_rank", 0, &t->attn_cp_rank));
  TANDEM_TRY(read_optional(body, "system_dp_size", 1, &t->system_dp_size));
  return read_optional(body, "system_dp_rank", 0, &t->system_dp_rank);
}

Result<cluster::Member> read_route(const std::string& text) {
  TANDEM_TRY(const json::Value body, parse_object(text));
  std::string role = "Prefill";
  TANDEM_TRY(read_text(body, "role", &role));
  if (!http::equals_ignoring_case(role, "prefill")) {
    return invalid_argument("role: found '" + role + "', expected 'Prefill'");
  }
  cluster::Member row;
  row.instance = kRouteInstance;
  row.role = cluster::Role::kPrefill;
  TANDEM_TRY(read_topology(body, &row.topology));
  TANDEM_TRY(read_text(body, "rank_ip", &row.rank_ip));
  if (row.rank_ip.empty()) return invalid_argument("rank_ip: missing");
  TANDEM_TRY(read_number(body, "rank_port", 1, &row.rank_port));
  TANDEM_TRY(read_optional(body, "page_size", 1, &row.page_size));
  TANDEM_TRY(read_optional(body, "prefill_http_port", 0, &row.prefill_http_port));
  TANDEM_TRY(read_text(body, "kv_cache_dtype", &row.kv_cache_dtype));
  TANDEM_TRY(read_text(body, "kv_layout", &row.kv_layout));
  TANDEM_TRY(read_text(body, "load_balance_method", &row.load_balance_method));
  TANDEM_TRY(read_text(body, "decode_allocation_policy", &row.decode_allocation_policy));
  return row;
}

void put_route(Directory& directory, const http::Request& request, const WriterPtr& writer) {
  const auto row = read_route(request.body);
  const Status status = row.ok() ? directory.put_route(*row) : row.status();
  status.ok() ? send_ok(writer) : send_error(writer, status);
}

Status read_query(const http::Request& request, const char* name, std::int64_t* out) {
  const auto text = http::query_value(request.query, name);
  if (!text) return invalid_argument(std::string(name) + ": missing");
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, *out);
  if (parsed.ec != std::errc() || parsed.ptr != end || *out < -1 || *out > kRankMax) {
    return invalid_argument(std::string(name) + ": found '" + *text + "', expected -1 or a rank");
  }
  return {};
}

Result<cluster::RouteQuery> read_route_query(const http::Request& request) {
  cluster::RouteQuery query;
  TANDEM_TRY(read_query(request, "prefill_dp_rank", &query.prefill_dp_rank));
  TANDEM_TRY(read_query(request, "prefill_cp_rank", &query.prefill_cp_rank));
  TANDEM_TRY(read_query(request, "target_tp_rank", &query.target_tp_rank));
  TANDEM_TRY(read_query(request, "target_pp_rank", &query.target_pp_rank));
  return query;
}

// What Tandem adds to SGLang's members: readers that do not know it ignore it.
void write_addresses(json::Writer& out, const cluster::Member& row) {
  out.key("http_address");
  out.string(row.http_address);
  out.key("grpc_address");
  out.string(row.grpc_address);
  out.key("incarnation");
  out.string(std::to_string(row.incarnation));
}

std::string layout_json(const cluster::Member& row) {
  std::string text;
  json::Writer out(text);
  out.begin_object();
  const std::pair<const char*, std::uint32_t> numbers[] = {
      {"attn_tp_size", row.topology.attn_tp_size},
      {"attn_cp_size", row.topology.attn_cp_size},
      {"dp_size", cluster::dp_size(row.topology)},
      {"pp_size", row.topology.pp_size},
      {"page_size", row.page_size},
      {"prefill_http_port", row.prefill_http_port},
  };
  for (const auto& [name, number] : numbers) {
    out.key(name);
    out.number(number);
  }
  const std::pair<const char*, const std::string*> texts[] = {
      {"kv_cache_dtype", &row.kv_cache_dtype},
      {"kv_layout", &row.kv_layout},
      {"load_balance_method", &row.load_balance_method},
      {"decode_allocation_policy", &row.decode_allocation_policy},
      {"model_digest", &row.model_digest},
  };
  for (const auto& [name, value] : texts) {
    out.key(name);
    out.string(*value);
  }
  out.key("follow_bootstrap_room");
  out.boolean(row.load_balance_method.empty() || row.load_balance_method == "round_robin" ||
              row.load_balance_method == "follow_bootstrap_room");
  write_addresses(out, row);
  out.end_object();
  return text;
}

std::string rank_json(const cluster::Member& row) {
  // Rows of Tandem's own workers name no transfer port: their gRPC address is where to link.
  const std::string& address = row.grpc_address;
  const std::size_t colon = address.rfind(':');
  const bool own = row.rank_ip.empty() && colon != std::string::npos;
  std::uint32_t port = row.rank_port;
  if (own) std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  std::string text;
  json::Writer out(text);
  out.begin_object();
  out.key("rank_ip");
  out.string(own ? std::string_view(address).substr(0, colon) : std::string_view(row.rank_ip));
  out.key("rank_port");
  out.number(port);
  write_addresses(out, row);
  out.end_object();
  return text;
}

void get_route(Directory& directory, const http::Request& request, const WriterPtr& writer) {
  const auto query = read_route_query(request);
  if (!query.ok()) return send_error(writer, query.status());
  const auto rows = directory.prefill_rows();
  if (!rows.ok()) {
    // Nobody registered yet is "not ready" too: who asks comes back.
    return send_error(writer, unavailable(rows.status().message()));
  }
  if (query->asks_for_layout()) return send_json(writer, layout_json(rows->front()));
  const auto row = cluster::find_rank(*rows, *query);
  if (!row.ok()) return send_error(writer, row.status());
  send_json(writer, rank_json(*row));
}

Result<std::pair<std::uint64_t, std::uint32_t>> read_room(const std::string& text) {
  TANDEM_TRY(const json::Value body, parse_object(text));
  const json::Value* room = body.find("bootstrap_room");
  if (room == nullptr) return invalid_argument("bootstrap_room: missing");
  TANDEM_TRY(const std::uint64_t number, json::Field(*room, "bootstrap_room").as_uint());
  std::uint32_t dp_rank = 0;
  TANDEM_TRY(read_number(body, "dp_rank", 0, &dp_rank));
  return std::pair(number, dp_rank);
}

void register_dp_rank(Directory& directory, const http::Request& request, const WriterPtr& writer) {
  const auto room = read_room(request.body);
  if (!room.ok()) return send_error(writer, room.status());
  directory.put_room(room->first, room->second);
  send_ok(writer);
}

Result<std::vector<std::uint64_t>> read_rooms(const std::string& text) {
  TANDEM_TRY(const json::Value body, parse_object(text));
  const json::Value* list = body.find("bootstrap_rooms");
  if (list == nullptr) return invalid_argument("bootstrap_rooms: missing");
  TANDEM_TRY(const json::Array* items, json::Field(*list, "bootstrap_rooms").as_array());
  if (items->size() > kRoomsPerQueryMax) {
    return invalid_argument("bootstrap_rooms: found " + std::to_string(items->size()) +
                            " rooms, expected at most " + std::to_string(kRoomsPerQueryMax));
  }
  std::vector<std::uint64_t> rooms;
  rooms.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const json::Field item((*items)[i], "bootstrap_rooms[" + std::to_string(i) + "]");
    TANDEM_TRY(const std::uint64_t room, item.as_uint());
    rooms.push_back(room);
  }
  return rooms;
}

void query_dp_ranks(Directory& directory, const http::Request& request, const WriterPtr& writer) {
  const auto rooms = read_rooms(request.body);
  if (!rooms.ok()) return send_error(writer, rooms.status());
  std::string text;
  json::Writer out(text);
  out.begin_object();
  for (const auto& [room, rank] : directory.find_rooms(*rooms)) {
    out.key(std::to_string(room));
    out.number(rank);
  }
  out.end_object();
  send_json(writer, std::move(text));
}

std::shared_ptr<obs::Metrics> make_metrics(const std::shared_ptr<Directory>& directory) {
  auto metrics = std::make_shared<obs::Metrics>();
  const obs::Gauge rows = metrics->gauge("tandem_bootstrap_rows", "Registered ranks.");
  const obs::Gauge rooms = metrics->gauge("tandem_bootstrap_rooms", "Rooms with a known DP rank.");
  const obs::Gauge watchers = metrics->gauge("tandem_bootstrap_watchers", "Open Watch streams.");
  const obs::Gauge revision =
      metrics->gauge("tandem_bootstrap_revision", "Changes of the membership so far.");
  metrics->on_scrape([=] {
    const Directory::Counts counts = directory->counts();
    rows.set(static_cast<double>(counts.rows));
    rooms.set(static_cast<double>(counts.rooms));
    watchers.set(static_cast<double>(counts.watchers));
    revision.set(static_cast<double>(counts.revision));
  });
  return metrics;
}

}  // namespace

void add_routes(http::Router& router, const std::shared_ptr<Directory>& directory, bool metrics) {
  using Action = void (*)(Directory&, const http::Request&, const WriterPtr&);
  const auto add = [&](const char* method, const char* path, Action action) {
    router.add(method, path, [directory, action](http::Request&& request, const WriterPtr& writer) {
      action(*directory, request, writer);
    });
  };
  add("PUT", "/route", put_route);
  add("GET", "/route", get_route);
  add("POST", "/register_dp_rank", register_dp_rank);
  add("POST", "/query_dp_ranks", query_dp_ranks);
  add("GET", "/health", [](Directory&, const http::Request&, const WriterPtr& writer) {
    send_ok(writer);
  });
  if (!metrics) return;
  router.add("GET",
             "/metrics",
             [text = make_metrics(directory)](http::Request&&, const WriterPtr& writer) {
               writer->send(200, {{"content-type", "text/plain; version=0.0.4"}}, text->text());
             });
}

}  // namespace tandem::bootstrap

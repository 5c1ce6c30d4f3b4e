#include "common/rpc/bootstrap.h"

#include "common/base/clock.h"
#include "common/bootstrap/bootstrap_server.h"
#include "common/http/client.h"
#include "common/json/parse.h"
#include "common/obs/log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <thread>

namespace tandem::bootstrap {
namespace {

class BootstrapTest : public ::testing::Test {
 protected:
  void SetUp() override { restart({}); }

  void restart(BootstrapOptions options, std::uint16_t port = 0) {
    server_.reset();
    options.registry.lease = seconds(3);
    options.metrics = true;
    server_ = std::make_unique<BootstrapServer>(options);
    const auto bound = server_->start("127.0.0.1", port);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    http_port_ = *bound;
    client_.address = "127.0.0.1:" + std::to_string(http_port_);
    client_.connect_timeout = seconds(20);
  }

  http::Response call(const std::string& method, const std::string& path, std::string body = {}) {
    http::ClientRequest request;
    request.method = method;
    request.host = "127.0.0.1";
    request.port = http_port_;
    request.path = path;
    request.headers = {{"content-type", "application/json"}};
    request.body = std::move(body);
    const auto response = http::request(request, steady_clock().now() + seconds(20));
    EXPECT_TRUE(response.ok()) << response.status().message();
    return response.ok() ? *response : http::Response{};
  }

  Result<v1::ResolveReply> resolve(v1::Role role) {
    v1::ResolveRequest request;
    request.set_role(role);
    std::promise<Result<v1::ResolveReply>> promise;
    rpc::resolve_members(
        client_, request, [&](Result<v1::ResolveReply> r) { promise.set_value(std::move(r)); });
    return promise.get_future().get();
  }

  std::unique_ptr<BootstrapServer> server_;
  std::uint16_t http_port_ = 0;
  rpc::ClientOptions client_;
};

v1::MemberRow make_row(std::uint64_t incarnation) {
  v1::MemberRow row;
  row.set_instance("10.0.0.7:30000");
  row.set_incarnation(incarnation);
  row.set_rank_count(1);
  row.set_role(v1::ROLE_PREFILL);
  row.set_http_address("10.0.0.7:30000");
  row.set_grpc_address("10.0.0.7:30001");
  row.set_page_size(16);
  return row;
}

template <class Predicate>
bool eventually(Predicate predicate) {
  for (int i = 0; i < 3000; ++i) {
    if (predicate()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::string route_body(int tp_rank, int tp_size, const std::string& more = "") {
  return R"({"role":"Prefill","attn_tp_size":)" + std::to_string(tp_size) + R"(,"attn_tp_rank":)" +
         std::to_string(tp_rank) +
         R"(,"attn_dp_size":1,"attn_dp_rank":0,"pp_size":1,"pp_rank":0,"rank_ip":"10.1.2.3",)"
         R"("rank_port":)" +
         std::to_string(5000 + tp_rank) + R"(,"page_size":64)" + more + "}";
}

constexpr const char* kLayoutQuery =
    "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";

TEST_F(BootstrapTest, SglangRoutes) {
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(call("GET", kLayoutQuery).status, 503);
  EXPECT_EQ(call("PUT", "/route", route_body(0, 2)).status, 200);
  EXPECT_EQ(call("PUT", "/route", route_body(0, 2)).status, 200);  // again: still one rank
  EXPECT_EQ(call("GET", kLayoutQuery).status, 503);
  EXPECT_EQ(call("PUT", "/route", route_body(1, 2)).status, 200);
  const http::Response layout = call("GET", kLayoutQuery);
  ASSERT_EQ(layout.status, 200);
  const auto body = json::parse(layout.body);
  ASSERT_TRUE(body.ok()) << layout.body;
  EXPECT_EQ(*body->find("attn_tp_size"), json::Value(2));
  EXPECT_EQ(*body->find("dp_size"), json::Value(1));
  EXPECT_EQ(*body->find("page_size"), json::Value(64));
  const http::Response rank =
      call("GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0");
  ASSERT_EQ(rank.status, 200);
  const auto rank_body = json::parse(rank.body);
  EXPECT_EQ(*rank_body->find("rank_ip"), json::Value("10.1.2.3"));
  EXPECT_EQ(*rank_body->find("rank_port"), json::Value(5001));
  EXPECT_EQ(
      call("GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=7&target_pp_rank=0")
          .status,
      404);
}

struct BadRow {
  const char* name;
  const char* method;
  std::string path;
  std::string body;
  int status;
  const char* says;
};

TEST_F(BootstrapTest, BadRequestsNameTheField) {
  const BadRow rows[] = {
      {"query field missing",
       "GET",
       "/route?prefill_dp_rank=0&target_tp_rank=0",
       "",
       400,
       "prefill_cp_rank"},
      {"query no number",
       "GET",
       "/route?prefill_dp_rank=x&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0",
       "",
       400,
       "prefill_dp_rank"},
      {"not JSON", "PUT", "/route", "{", 400, "line 1"},
      {"no object", "PUT", "/route", "[]", 400, "object"},
      {"field missing", "PUT", "/route", R"({"role":"Prefill"})", 400, "attn_tp_size"},
      {"no address",
       "PUT",
       "/route",
       R"({"attn_tp_size":1,"attn_tp_rank":0,"attn_dp_size":1,"attn_dp_rank":0,"pp_size":1,"pp_rank":0})",
       400,
       "rank_ip"},
      {"rank too large", "PUT", "/route", route_body(2, 2), 400, "attn_tp_rank"},
      {"decode", "PUT", "/route", R"({"role":"Decode"})", 400, "role"},
      {"port", "PUT", "/route", route_body(0, 1, R"(,"rank_port":70000)"), 400, "rank_port"},
      {"wrong type", "PUT", "/route", route_body(0, 1, R"(,"page_size":"x")"), 400, "page_size"},
      {"no room", "POST", "/register_dp_rank", R"({"dp_rank":1})", 400, "bootstrap_room"},
      {"negative room",
       "POST",
       "/register_dp_rank",
       R"({"bootstrap_room":-1,"dp_rank":1})",
       400,
       "bootstrap_room"},
      {"no rank", "POST", "/register_dp_rank", R"({"bootstrap_room":1})", 400, "dp_rank"},
      {"no rooms", "POST", "/query_dp_ranks", "{}", 400, "bootstrap_rooms"},
      {"bad room",
       "POST",
       "/query_dp_ranks",
       R"({"bootstrap_rooms":[1,"x"]})",
       400,
       "bootstrap_rooms[1]"},
      {"unknown path", "GET", "/nothing", "", 404, ""},
      {"method", "DELETE", "/route", "", 405, ""},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const http::Response response = call(row.method, row.path, row.body);
    EXPECT_EQ(response.status, row.status) << response.body;
    EXPECT_NE(response.body.find(row.says), std::string::npos) << response.body;
  }
  EXPECT_EQ(call("GET", kLayoutQuery).status, 503);  // nothing of it was kept
}

TEST_F(BootstrapTest, RoomsOfDpRanks) {
  const std::string room = "9223372036854775807";
  EXPECT_EQ(
      call("POST", "/register_dp_rank", R"({"bootstrap_room":)" + room + R"(,"dp_rank":3})").status,
      200);
  const http::Response found =
      call("POST", "/query_dp_ranks", R"({"bootstrap_rooms":[1,)" + room + "]}");
  EXPECT_EQ(found.status, 200);
  EXPECT_EQ(found.body, R"({")" + room + R"(":3})");
  EXPECT_NE(call("GET", "/metrics").body.find("tandem_bootstrap_rooms 1"), std::string::npos);
}

TEST_F(BootstrapTest, RegistrationShowsEverywhere) {
  EXPECT_EQ(resolve(v1::ROLE_PREFILL).status().code(), Code::kNotFound);
  auto registration = rpc::keep_registered(client_, {make_row(7)});
  ASSERT_TRUE(eventually([&] { return registration->state().ok(); }));
  const auto reply = resolve(v1::ROLE_PREFILL);
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(reply->rows(0).grpc_address(), "10.0.0.7:30001");
  EXPECT_EQ(call("GET", kLayoutQuery).status, 200);
  const http::Response rank =
      call("GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0");
  EXPECT_NE(rank.body.find(R"("rank_ip":"10.0.0.7","rank_port":30001)"), std::string::npos)
      << rank.body;
  registration.reset();  // leaves at once, not at the end of the lease
  EXPECT_EQ(resolve(v1::ROLE_PREFILL).status().code(), Code::kNotFound);
}

TEST_F(BootstrapTest, WatchersSeeChangesAndSurviveARestart) {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> members;  // incarnation -> revision
  int full_count = 0;
  auto watch = rpc::watch_members(client_, v1::ROLE_PREFILL, [&](v1::MembershipDelta&& delta) {
    const std::lock_guard lock(mutex);
    if (delta.full()) {
      ++full_count;
      members.clear();
    }
    for (const auto& row : delta.removed())
      members.erase(row.incarnation());
    for (const auto& row : delta.added())
      members[row.incarnation()] = delta.revision();
  });
  const auto knows = [&](std::vector<std::uint64_t> want) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      std::vector<std::uint64_t> have;
      for (const auto& [incarnation, revision] : members)
        have.push_back(incarnation);
      return full_count > 0 && have == want;
    });
  };
  ASSERT_TRUE(knows({}));
  auto first = rpc::keep_registered(client_, {make_row(7)});
  ASSERT_TRUE(knows({7}));
  auto second = rpc::keep_registered(client_, {make_row(8)});  // the process restarted
  ASSERT_TRUE(knows({8}));
  ASSERT_TRUE(eventually([&] { return first->state().code() == Code::kFailedPrecondition; }));
  first.reset();
  restart({}, http_port_);
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return full_count >= 2;
  }));
  EXPECT_TRUE(knows({8}));  // registered again by itself
}

TEST_F(BootstrapTest, PortInUseNamesTheFlag) {
  BootstrapServer other({});
  const auto bound = other.start("127.0.0.1", http_port_);
  ASSERT_FALSE(bound.ok());
  EXPECT_NE(bound.status().message().find("--disaggregation-bootstrap-port"), std::string::npos)
      << bound.status().message();
}

}  // namespace
}  // namespace tandem::bootstrap

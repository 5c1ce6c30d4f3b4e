#include "common/fleet/worker_address.h"

#include <gtest/gtest.h>

namespace tandem::fleet {
namespace {

struct Row {
  const char* url;
  const char* host;  // nullptr: refused
  std::uint16_t port;
  bool is_grpc;
};

constexpr Row kRows[] = {
    {"http://127.0.0.1:30000", "127.0.0.1", 30000, false},
    {"http://worker-0.workers:80/", "worker-0.workers", 80, false},
    {"grpc://10.0.0.1:9000", "10.0.0.1", 9000, true},
    {"10.0.0.1:9000", "10.0.0.1", 9000, false},
    {"http://[::1]:30000", "[::1]", 30000, false},
    {"https://a:1", nullptr, 0, false},
    {"http://a", nullptr, 0, false},
    {"http://:1", nullptr, 0, false},
    {"http://a:0", nullptr, 0, false},
    {"http://a:65536", nullptr, 0, false},
    {"http://a:1x", nullptr, 0, false},
    {"http://a:1/path", nullptr, 0, false},
    {"http://user@a:1", nullptr, 0, false},
    {"", nullptr, 0, false},
};

TEST(WorkerAddress, Parse) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.url);
    const auto address = parse_worker_url(row.url, rpc::Role::kDecode);
    ASSERT_EQ(address.ok(), row.host != nullptr) << address.status().message();
    if (row.host == nullptr) continue;
    EXPECT_EQ(address->host, row.host);
    EXPECT_EQ(address->port, row.port);
    EXPECT_EQ(address->is_grpc, row.is_grpc);
    EXPECT_EQ(address->role, rpc::Role::kDecode);
  }
}

}  // namespace
}  // namespace tandem::fleet

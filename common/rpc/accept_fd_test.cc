// Is handing accepted connections to gRPC sound? These tests do what one port for HTTP/1.1 and gRPC
// does: accept outside, peek at the preface, hand the descriptor over; many at once, with
// concurrent streams, through shutdown, and with peers that vanish.
#include "common/rpc/testing/front.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace tandem::rpc {
namespace {

using testing::FakeRouter;
using testing::FakeWorker;
using testing::Front;
using testing::kPreface;
using testing::make_event;
using testing::make_submission;
using testing::open_session;
using testing::RouterNotes;
using testing::ServedBy;
using testing::WorkerNotes;

int open_descriptors() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr)
    ++count;
  closedir(dir);
  return count;
}

std::unique_ptr<Server> portless_server(const std::shared_ptr<FakeWorker>& worker, ServedBy by) {
  ServerOptions options;
  if (by == ServedBy::kPool) options.io = &testing::io_pool();
  auto server = Server::start(options, {make_session_service(worker)});
  EXPECT_TRUE(server.ok()) << server.status().message();
  EXPECT_EQ((*server)->port(), 0);
  return std::move(server).value();
}

std::shared_ptr<FakeWorker> echo_worker(int tokens) {
  auto worker = std::make_shared<FakeWorker>();
  worker->on_submit_hook = [tokens](const WorkerSessionPtr& session, const Submission& s) {
    for (int i = 0; i < tokens; ++i)
      session->send_step({make_event(s.request.id.value, i)}, {});
  };
  return worker;
}

/// By gRPC, and by the pool where it can.
class AcceptFd : public ::testing::TestWithParam<ServedBy> {};

INSTANTIATE_TEST_SUITE_P(Ways,
                         AcceptFd,
                         ::testing::Values(ServedBy::kGrpc, ServedBy::kPool),
                         testing::name_of);

TEST_P(AcceptFd, ManyConnectionsAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 12;
  constexpr int kTokens = 20;
  auto worker = echo_worker(kTokens);
  auto server = portless_server(worker, GetParam());
  Front front(server.get());
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        auto router = std::make_shared<FakeRouter>();
        auto client = open_session(front.address(), router);
        for (std::uint64_t id = 1; id <= 5; ++id) {
          EXPECT_TRUE(client->submit(make_submission(id)).ok());
        }
        const bool all =
            router->notes.wait([](const RouterNotes& n) { return n.events.size() == 5 * kTokens; });
        if (all) ++good;
        if (round % 2 == 0) client->close();  // else: dropped in the middle
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(good, kThreads * kRounds);
  EXPECT_EQ(front.handed_over(), kThreads * kRounds);
}

TEST_P(AcceptFd, ShutdownWithLiveConnections) {
  for (int round = 0; round < 5; ++round) {
    auto worker = echo_worker(1);
    auto server = portless_server(worker, GetParam());
    Front front(server.get());
    std::vector<std::shared_ptr<FakeRouter>> routers;
    std::vector<std::unique_ptr<SessionClient>> clients;
    for (int i = 0; i < 6; ++i) {
      routers.push_back(std::make_shared<FakeRouter>());
      clients.push_back(open_session(front.address(), routers.back()));
    }
    for (auto& r : routers) {
      ASSERT_TRUE(r->notes.wait([](const RouterNotes& n) { return !n.hellos.empty(); }));
    }
    std::thread late([&] {
      auto router = std::make_shared<FakeRouter>();
      auto client = open_session(front.address(), router);
      EXPECT_TRUE(router->notes.wait(
          [](const RouterNotes& n) { return !n.hellos.empty() || !n.closed.empty(); }));
    });
    server->shutdown(seconds(2));
    for (auto& r : routers) {
      EXPECT_TRUE(r->notes.wait([](const RouterNotes& n) { return n.closed.size() == 1; }));
    }
    late.join();
  }
}

TEST_P(AcceptFd, PeersThatVanishOrTalkNonsense) {
  auto worker = echo_worker(1);
  auto server = portless_server(worker, GetParam());
  static constexpr const char* kFirstBytes[] = {
      "", kPreface, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage garbage garbage"};
  for (int round = 0; round < 30; ++round) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    const std::string bytes = kFirstBytes[round % 3];
    ASSERT_EQ(write(pair[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_TRUE(server->accept_fd(pair[0]).ok());
    close(pair[1]);
  }
  // The server still serves.
  Front front(server.get());
  auto router = std::make_shared<FakeRouter>();
  auto client = open_session(front.address(), router);
  ASSERT_TRUE(client->submit(make_submission(1)).ok());
  EXPECT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.events.size() == 1; }));
}

TEST_P(AcceptFd, BytesThatWereReadAlready) {
  auto worker = echo_worker(3);
  auto server = portless_server(worker, GetParam());
  // A proxy in miniature: it reads what the client says first, and hands that over as text.
  const auto listener = testing::bind_loopback(4);
  auto router = std::make_shared<FakeRouter>();
  auto client = open_session(listener.address(), router);
  const int fd = accept(listener.fd, nullptr, nullptr);
  char head[24];
  ASSERT_EQ(recv(fd, head, sizeof(head), MSG_WAITALL), 24);
  EXPECT_TRUE(server->accept_fd(fd, std::string_view(head, sizeof(head))).ok());
  ASSERT_TRUE(client->submit(make_submission(1)).ok());
  EXPECT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.events.size() == 3; }));
  close(listener.fd);
}

TEST_P(AcceptFd, DescriptorsAreNeverLost) {
  auto worker = echo_worker(1);
  auto server = portless_server(worker, GetParam());
  EXPECT_EQ(server->accept_fd(-1).code(), Code::kInvalidArgument);
  int unconnected = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(server->accept_fd(unconnected).code(), Code::kUnavailable);
  EXPECT_EQ(fcntl(unconnected, F_GETFD), -1);
  server->shutdown(Duration{0});
  const int before = open_descriptors();
  for (int i = 0; i < 8; ++i) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    EXPECT_EQ(server->accept_fd(pair[0]).code(), Code::kUnavailable);
    close(pair[1]);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(ServerStart, PortInUseIsOneSentence) {
  auto worker = std::make_shared<FakeWorker>();
  auto server = testing::start_server({make_session_service(worker)});
  const auto second = Server::start({.listen_address = testing::address_of(*server)},
                                    {make_session_service(worker)});
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find(testing::address_of(*server)), std::string::npos);
  EXPECT_EQ(Server::start({.listen_address = "nonsense"}, {}).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::rpc

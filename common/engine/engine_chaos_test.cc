// Random traffic in all roles at once, with aborts, deadlines, failing forward calls and broken
// transfers: what a client got is always a prefix of the truth, everything ends once, no page is
// lost.
#include "common/base/random.h"
#include "common/engine/engine.h"
#include "common/engine/fake_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace tandem::engine {
namespace {

using core::TokenId;

constexpr std::int32_t kPageSize = 4;
constexpr std::int32_t kVocab = 64;

core::Request draw_request(Random& random, std::uint64_t id) {
  core::Request r;
  r.id = {id};
  r.input_ids.resize(1 + random.below(30));
  for (TokenId& token : r.input_ids)
    token = 3 + static_cast<TokenId>(random.below(2));
  r.sampling.max_new_tokens = 1 + static_cast<std::int32_t>(random.below(20));
  r.sampling.ignore_eos = random.chance(0.5);
  r.sampling.seed = random.next();
  r.sampling.frequency_penalty = random.chance(0.3) ? 0.5F : 0.0F;
  r.return_logprob = random.chance(0.3);
  if (r.return_logprob && random.chance(0.5)) r.logprob_start_len = 0;
  return r;
}

std::vector<TokenId> truth(core::Request r) {
  FakeExecutor executor({.page_size = kPageSize, .vocab_size = kVocab});
  auto engine = Engine::create({.max_total_tokens = 256, .page_size = kPageSize}, &executor);
  r.deadline.reset();
  std::vector<TokenId> out;
  EXPECT_TRUE((*engine)
                  ->submit(std::move(r),
                           [&](core::TokenEvent&& event) {
                             out.insert(out.end(), event.tokens.begin(), event.tokens.end());
                           })
                  .ok());
  while ((*engine)->has_work())
    (*engine)->step({});
  return out;
}

/// One client, and on the way of a pair also what the worker keeps.
struct Client final : PrefillObserver {
  core::Request request;
  bool pair = false;
  std::vector<TokenId> got;
  int endings = 0;
  bool whole = false;
  std::vector<kv::PageId> source;
  std::int32_t matched = 0;
  std::vector<kv::PageId> landing;
  bool has_first = false;
  bool over = false;

  void take(core::TokenEvent&& event) {
    EXPECT_EQ(endings, 0);
    EXPECT_EQ(event.first_index, static_cast<std::int32_t>(got.size()));
    got.insert(got.end(), event.tokens.begin(), event.tokens.end());
    if (!event.finish) return;
    ++endings;
    whole = event.finish->kind != core::FinishKind::kAbort;
  }

  void chunk_ready(core::RequestId,
                   std::int32_t first_page_index,
                   std::span<const kv::PageId> pages,
                   std::int32_t) override {
    EXPECT_EQ(static_cast<std::size_t>(first_page_index), source.size());
    source.insert(source.end(), pages.begin(), pages.end());
  }

  void first_token(core::TokenEvent&& event) override {
    has_first = true;
    take(std::move(event));
  }

  void ended(core::RequestId, const Status& why) override {
    EXPECT_FALSE(why.ok());
    ++endings;
  }
};

class Chaos {
 public:
  explicit Chaos(std::uint64_t seed) : random_(seed) {
    for (Side& side : sides_) {
      side.executor = std::make_unique<FakeExecutor>(FakeExecutor::Options{
          .page_size = kPageSize,
          .vocab_size = kVocab,
          .max_batch_tokens = 4 + static_cast<std::int32_t>(random_.below(40)),
          .max_logit_rows = 1 + static_cast<std::int32_t>(random_.below(8)),
          .max_slices = 1 + static_cast<std::int32_t>(random_.below(8))});
      EngineOptions options;
      options.max_total_tokens = 64 + static_cast<std::int64_t>(random_.below(128));
      options.page_size = kPageSize;
      options.disable_radix_cache = random_.chance(0.2);
      options.max_running_requests = 2 + static_cast<std::int32_t>(random_.below(8));
      options.chunked_prefill_size =
          random_.chance(0.3) ? -1 : 1 + static_cast<std::int32_t>(random_.below(16));
      options.mixed_chunk = random_.chance(0.7);
      options.schedule_policy = random_.chance(0.5) ? SchedulePolicy::kLpm : SchedulePolicy::kFcfs;
      options.schedule_conservativeness = random_.uniform();
      options.reserved_decode_tokens = static_cast<std::int32_t>(random_.below(16));
      options.stream_interval = 1 + static_cast<std::int32_t>(random_.below(3));
      options.clock = &clock_;
      side.engine = std::move(*Engine::create(options, side.executor.get()));
    }
  }

  void run() {
    for (int i = 0; i < 300; ++i) {
      if (random_.chance(0.25)) arrive();
      tick(true);
      if (testing::Test::HasFailure()) return;
    }
    for (int i = 0; std::ranges::any_of(clients_, [](auto& c) { return !c.second->over; }); ++i) {
      ASSERT_LT(i, 5000) << "somebody never ends";
      tick(false);
    }
    for (auto& [id, client] : clients_)
      verify(*client);
    for (Side& side : sides_) {
      ASSERT_TRUE(side.engine->flush_cache().ok());
      EXPECT_EQ(side.engine->load().free_pages, side.engine->load().total_pages);
    }
  }

 private:
  struct Side {
    std::unique_ptr<FakeExecutor> executor;
    std::unique_ptr<Engine> engine;
  };

  Engine& prefill() { return *sides_[0].engine; }

  Engine& decode() { return *sides_[1].engine; }

  void arrive() {
    auto client = std::make_unique<Client>();
    client->request = draw_request(random_, ++ids_);
    if (random_.chance(0.2)) {
      client->request.deadline =
          clock_.now() + milliseconds(1 + static_cast<std::int64_t>(random_.below(40)));
    }
    client->pair = random_.chance(0.5);
    core::Request request = client->request;
    if (client->pair) {
      const auto reservation = decode().reserve(request);
      if (!reservation.ok()) return;
      client->matched = reservation->matched_tokens;
      if (!reservation->nothing_to_decode)
        client->landing = *decode().take_pages(request.id, reservation->page_count);
      if (!prefill().submit_prefill(request, client.get()).ok()) {
        decode().cancel_reservation(request.id, 0);
        return;
      }
    } else {
      Client* raw = client.get();
      Engine& engine = random_.chance(0.5) ? prefill() : decode();
      const Status status =
          engine.submit(request, [raw](core::TokenEvent&& event) { raw->take(std::move(event)); });
      if (!status.ok()) return;
    }
    clients_.emplace(client->request.id.value, std::move(client));
  }

  void tick(bool hurt) {
    clock_.advance(milliseconds(1));
    for (Side& side : sides_) {
      if (hurt && random_.chance(0.01)) side.executor->fail_next(internal_error("chaos"));
      side.engine->step(clock_.now());
    }
    for (auto& [id, client] : clients_) {
      if (client->over) continue;
      if (hurt && random_.chance(0.005)) {
        prefill().abort({id}, cancelled("chaos"));
        decode().abort({id}, cancelled("chaos"));
        // Between first token and adoption no engine has anybody to tell: the worker has.
        const bool between = client->has_first && !client->landing.empty();
        EXPECT_TRUE(client->endings == 1 || between);
        client->over = true;
      } else if (client->pair) {
        follow_pair(*client);
      } else {
        client->over = client->endings > 0;
      }
    }
    for (Side& side : sides_) {
      const Status status = side.engine->check_invariants();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  /// Moves what has come, all or a part, and then commits or gives up.
  void follow_pair(Client& client) {
    const core::RequestId id = client.request.id;
    if (client.landing.empty()) {
      client.over = client.endings > 0;
      // Of those that prefill alone was for.
      if (client.over) prefill().release_prefill(id);
      return;
    }
    if (!client.has_first && client.endings == 0) return;
    const auto skip = static_cast<std::size_t>(client.matched / kPageSize);
    const bool breaks = client.endings > 0 || random_.chance(0.1);
    std::size_t moved = client.source.size() < skip ? 0 : client.source.size() - skip;
    if (breaks) moved = random_.below(moved + 1);
    for (std::size_t i = 0; i < moved; ++i) {
      std::memcpy(decode().page_address(client.landing[i]),
                  prefill().page_address(client.source[skip + i]),
                  prefill().page_bytes());
    }
    prefill().release_prefill(id);
    client.landing.clear();
    if (breaks) {
      // Only full pages are units; the last one may be partial.
      const auto prompt = static_cast<std::int32_t>(client.request.input_ids.size());
      const auto landed = client.matched + static_cast<std::int32_t>(moved) * kPageSize;
      decode().cancel_reservation(id, std::min(landed, prompt) - client.matched);
      client.over = true;
      return;
    }
    AdoptState state;
    state.first_token = client.got.front();
    Client* raw = &client;
    const Status status =
        decode().adopt(id, state, [raw](core::TokenEvent&& event) { raw->take(std::move(event)); });
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void verify(const Client& client) {
    const auto want = truth(client.request);
    EXPECT_LE(client.endings, 1);
    if (client.whole) {
      EXPECT_EQ(client.got, want);
    } else {
      ASSERT_LE(client.got.size(), want.size());
      EXPECT_TRUE(std::equal(client.got.begin(), client.got.end(), want.begin()));
    }
  }

  Random random_;
  FakeClock clock_;
  Side sides_[2];
  std::uint64_t ids_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Client>> clients_;
};

TEST(EngineChaos, WhatArrivesIsTheTruthAndNothingIsLost) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chaos(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::engine

#include "common/rpc/wire.h"
#include "common/worker/handoff_wire.h"
#include "tests/fuzz/feeds.h"

#include "proto/tandem/v1/pair.pb.h"
#include "proto/tandem/v1/session.pb.h"

#include <cstddef>
#include <string>

namespace tandem::fuzz {
namespace {

constexpr Time kNow{1'000'000'000};

void must_name_a_field(const Status& status) {
  const std::size_t end = status.message().find(": ");
  must(end != std::string::npos && end > 0, "a refusal names the field");
}

/// What is read and written again is the same ever after.
template <class Message, class Read, class Write>
void check_round(const Message& message, Read read, Write write) {
  const auto value = read(message);
  if (!value.ok()) return must_name_a_field(value.status());
  Message sent;
  write(*value, &sent);
  const auto got = read(sent);
  must(got.ok(), "what is written can be read");
  Message again;
  write(*got, &again);
  must(again.SerializeAsString() == sent.SerializeAsString(), "and is the same");
}

void check_submission(const v1::Submit& message) {
  check_round(
      message,
      [](const v1::Submit& m) { return rpc::read_submission(m, kNow); },
      [](const rpc::Submission& submission, v1::Submit* out) {
        v1::SessionUp scratch;
        v1::SessionUp up;
        std::string bytes;
        rpc::append_submission(submission, kNow, &scratch, &bytes);
        must(up.ParseFromString(bytes) && up.has_submit(), "what is sent is a submission");
        *out = up.submit();
      });
}

void check_event(const v1::TokenEvent& message) {
  check_round(message, rpc::read_event, rpc::write_event);
}

void feed_session_up(Bytes bytes) {
  v1::SessionUp up;
  if (up.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) && up.has_submit())
    check_submission(up.submit());
}

void feed_session_down(Bytes bytes) {
  v1::SessionDown down;
  if (!down.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  for (const v1::TokenEvent& event : down.step().events())
    check_event(event);
  if (down.has_hello())
    check_round(down.hello().info(), rpc::read_worker_info, rpc::write_worker_info);
  const Status status = rpc::read_status(down.submit_rejected().status());
  must(status.ok() == (down.submit_rejected().status().code() == 0), "a failure stays one");
}

void feed_pair_message(Bytes bytes) {
  v1::PairMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  bool taken = false;
  for (const handoff::Role own : {handoff::Role::kPrefill, handoff::Role::kDecode}) {
    taken = taken || worker::from_wire(message, own).ok();
    check_round(
        message,
        [own](const v1::PairMessage& m) { return worker::from_wire(m, own); },
        [](const worker::PairValue& value, v1::PairMessage* out) {
          *out = std::visit([](const auto& m) { return worker::to_wire(m); }, value);
        });
  }
  const bool refusable =
      message.has_link_offer() || message.kind_case() == v1::PairMessage::KIND_NOT_SET;
  must(taken || refusable, "one of both sides takes a message");
  const auto state = worker::read_commit_state(message.commit().state());
  if (!state.ok()) return must_name_a_field(state.status());
  const std::string written = worker::write_commit_state(*state);
  must(worker::write_commit_state(*worker::read_commit_state(written)) == written,
       "a state is the same");
}

}  // namespace

void feed_wire(Bytes bytes) {
  if (bytes.empty()) return;
  constexpr void (*kFeeds[])(Bytes) = {feed_session_up, feed_session_down, feed_pair_message};
  kFeeds[bytes[0] % std::size(kFeeds)](bytes.subspan(1));
}

}  // namespace tandem::fuzz

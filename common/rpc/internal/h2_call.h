// The end of an H2Stream that calls: unchanged gRPC servers understand it.
#pragma once

#include "common/rpc/internal/h2_stream.h"
#include "common/rpc/session_client.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::rpc::internal {

class H2Call;

/// Callbacks come on the pool's threads, one at a time; the next message is read when a callback
/// has returned.
class H2CallHandler {
 public:
  virtual ~H2CallHandler() = default;
  /// One message, valid during the call. An error ends the call with it.
  virtual Status on_message(H2Call& call, std::string_view bytes) = 0;
  /// Last, exactly once, unless the pool stops before.
  virtual void on_ended(const Status& status) = 0;
};

class H2Call final : public H2Stream {
 public:
  /// A call of `path` ("/package.Service/Method") that waits for start(); what is sent before is
  /// sent first. kInvalidArgument: the address.
  static Result<std::shared_ptr<H2Call>> make(const ClientOptions& options,
                                              std::string path,
                                              async::IoPool& pool,
                                              std::shared_ptr<H2CallHandler> handler);

  /// For make().
  H2Call(const ClientOptions& options,
         std::string path,
         async::IoPool& pool,
         std::shared_ptr<H2CallHandler> handler);

  /// Connects. Once.
  void start();
  /// Says that nothing more comes, after what waits. The call ends when the peer says so.
  void finish();

 private:
  using Resolver = boost::asio::ip::basic_resolver<boost::asio::ip::tcp, Strand>;

  Status on_message(std::string_view bytes) override;
  void on_wrong_message(const Status& why) override;
  void on_end(const Status& status) override;
  Status begin() override;
  void on_header(std::int32_t stream, std::string_view name, std::string_view value) override;
  void on_frame(const nghttp2_frame& frame) override;
  void on_stream_closed(std::int32_t stream, std::uint32_t error) override;
  void on_last_data(std::uint32_t* flags) override;

  // On the strand.
  void connect();
  void connect_to(const Resolver::results_type& endpoints);
  void wait_for_greeting();

  [[nodiscard]] Status status_of_headers() const;

  const ClientOptions options_;
  const std::string path_;

  // The strand's own.
  std::string host_;
  std::string port_;
  Resolver resolver_;
  Timer greeting_;
  std::shared_ptr<H2CallHandler> handler_;

  // Guarded by mutex_.
  std::optional<int> http_status_;
  std::optional<int> grpc_status_;
  std::string grpc_message_;
};

}  // namespace tandem::rpc::internal

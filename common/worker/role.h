// Role: what a worker does with a submitted request. One engine, three roles.
#pragma once

#include "common/base/status.h"
#include "common/core/generator.h"
#include "common/engine/engine.h"
#include "common/rpc/types.h"
#include "common/worker/engine_loop.h"

#include <memory>

namespace tandem::worker {

/// All calls on the engine thread.
class Role : public LoopClient {
 public:
  /// Takes the request or says why not. After ok exactly one finishing event reaches `sink`, except
  /// that a prefill role whose first token went on to decode sends none, and a decode role sends
  /// none for a request that the prefill side ended.
  virtual Status submit(rpc::Submission submission, core::EventSink sink) = 0;
  /// Ends a request; unknown ids are ignored.
  virtual void abort(core::RequestId id, const Status& why) = 0;
  /// Ends all requests.
  virtual void abort_all(const Status& why) = 0;
};

/// Serves requests whole. `engine` is borrowed.
std::unique_ptr<Role> make_unified_role(engine::Engine* engine);

}  // namespace tandem::worker

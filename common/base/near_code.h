// Code that runs between ops lies in one section, whose ends the linker knows: the weights of an op
// push it out of the caches, so it is asked for as data is.
#pragma once

#include "common/base/load_ahead.h"

#include <cstddef>

/// Of functions that run between two ops of a pass: several hundred times, so let them be short. In
/// one file either inline functions or others: they cannot share a section there.
#define TANDEM_BETWEEN_OPS [[gnu::section("tandem_between_ops")]]

extern "C" {
// NOLINTBEGIN: the linker's names
extern const std::byte __start_tandem_between_ops[];
extern const std::byte __stop_tandem_between_ops[];
// NOLINTEND
}

namespace tandem {

/// Pre: the program has such a function.
inline void load_code_between_ops_ahead() {
  load_ahead_bytes(
      __start_tandem_between_ops,
      static_cast<std::size_t>(__stop_tandem_between_ops - __start_tandem_between_ops));
}

}  // namespace tandem

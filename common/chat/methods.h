// Tables of methods.
#pragma once

#include "common/chat/interp.h"

#include <cstddef>
#include <string_view>

namespace tandem::chat {

using MethodFn = Value (*)(Interp&, const Value& self, Args&);

struct MethodEntry {
  std::string_view name;
  MethodFn function;
};

template <std::size_t kSize>
MethodFn find_method_in(const MethodEntry (&entries)[kSize], std::string_view name) {
  for (const MethodEntry& entry : entries) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

/// Null when str has no such method here (methods_str.cc).
MethodFn find_string_method(std::string_view name);

}  // namespace tandem::chat

// Names that templates find: filters, tests, global functions.
#pragma once

#include "common/chat/ast.h"
#include "common/chat/interp.h"

#include <optional>
#include <string>
#include <string_view>

namespace tandem::chat {

/// Null when there is no such filter or test.
FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);

using GlobalFn = Value (*)(Interp&, Args&);

struct GlobalFunction : Obj {
  std::string_view name;
  GlobalFn function = nullptr;
};

/// A global such as range or namespace; nullopt when there is none.
std::optional<Value> find_global(std::string_view name);

struct FilterEntry {
  std::string_view name;
  FilterFn function;
};

/// Filters on lists (filters_seq.cc); find_filter looks here, too.
FilterFn find_seq_filter(std::string_view name);

// Filters that others build on.
Value filter_length(Interp& in, const Value& v, Args& args);
Value filter_upper(Interp& in, const Value& v, Args& args);
Value filter_tojson(Interp& in, const Value& v, Args& args);

/// Upper, lower and title case of text.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
/// Python's strip: white space when `chars` is null. Sides as in lstrip and rstrip.
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right);
/// Replaces at most `count` times; below zero: everywhere.
std::string replace(Interp& in,
                    std::string_view text,
                    std::string_view from,
                    std::string_view to,
                    std::int64_t count);

}  // namespace tandem::chat

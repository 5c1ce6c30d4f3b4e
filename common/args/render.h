// Pieces that the visitors which print share: --help, the man page, completion. Internal to the
// room.
#pragma once

#include "common/args/spec.h"

#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

/// What a program is, in one sentence.
std::string_view about(Program program);
/// The stand-in for a value: "PAGE_SIZE".
std::string placeholder(const Entry& entry);
/// ">= 1 and <= 64 or -1"; "" without bounds.
std::string range_text(const Range& range);
/// "an integer >= 1, plain or with a unit (512MiB, 4GB)".
std::string number_words(const Spec& spec, bool is_float);
/// What an argument takes: "auto, half or float16", "true or false", "text", ...
std::string allowed_words(const Entry& entry);
/// Type, default, range, choices, variable: "int; default 16384; >= 1".
std::string facts(const Entry& entry);
/// The sections of these entries in their order.
std::vector<std::string_view> sections_of(const std::vector<const Entry*>& entries);
/// What a shell offers for a program: built arguments that it takes. A router also takes what it
/// forwards to the workers that it starts.
std::vector<const Entry*> offered(const Registry& registry, Program program);

}  // namespace tandem::args

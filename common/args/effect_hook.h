// The seam of tests/arguments: takes the effect out of an argument.
#pragma once

#include <string_view>

namespace tandem::args {

/// Null in every program that is installed. The programs of tests/arguments link one more object
/// that sets it before main: an argument (long name without dashes) for which it says true counts
/// as never given, on the command line, in a file and in the environment. A test of the
/// argument's effect must then fail.
using WithoutEffect = bool (*)(std::string_view name);
extern WithoutEffect without_effect;

}  // namespace tandem::args

// What both fuzz programs and the replay test feed to the argument parser, and what must hold
// whatever it is fed.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::fuzz {

/// A whole command line: the first byte picks the program, then come words, one a line. A line
/// "$NAME=VALUE" is a variable of the environment instead. Aborts when a promise of parse() is
/// broken.
void feed_argv(std::span<const std::uint8_t> bytes);

/// A config file: the first byte picks the program, the rest is the file. Aborts likewise.
/// Writes one file below TMPDIR, which is removed when the process ends.
void feed_yaml(std::span<const std::uint8_t> bytes);

}  // namespace tandem::fuzz

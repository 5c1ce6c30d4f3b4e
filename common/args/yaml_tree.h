// A bounded tree of a YAML document with the place of every node. Internal to the room.
#pragma once

#include "common/base/status.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

struct YamlNode {
  enum class Kind : std::uint8_t {
    kNull,
    kScalar,
    kSequence,
    kMap
  };

  Kind kind = Kind::kNull;
  std::string text;                ///< scalars
  bool plain = false;              ///< scalar without quotes: may be a number or boolean
  int line = 1;                    ///< 1-based
  int column = 1;                  ///< 1-based
  std::vector<YamlNode> children;  ///< of a map: key, value, key, value, ...
};

/// Parses one document. An empty text is an empty map. At most 20,000 nodes, aliases counted each
/// time they are used, nested at most 32 deep; no tags, and no key twice in a mapping below the
/// root. Errors are "line:column: reason".
Result<YamlNode> parse_yaml(const std::string& text);

/// The node as JSON text; plain scalars become numbers, booleans and null as in YAML's core schema.
std::string yaml_to_json(const YamlNode& node);

}  // namespace tandem::args

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

/// What is in a text, and what is wrong with it.
struct YamlDocument {
  YamlNode root;
  std::vector<std::string> complaints;  ///< "line:column: reason"; none: the text is good
  /// False: reading stopped early. If `root` is a map, it then holds the pairs that surely stand
  /// before that place.
  bool whole = true;
};

/// Parses one document. An empty text is an empty map. At most 20,000 nodes, aliases counted each
/// time they are used, nested at most 32 deep; no tags, and no key twice in a mapping below the
/// root. Reading goes on behind a tag and a key that stands twice, so that all of them are told.
YamlDocument parse_yaml(const std::string& text);

/// The node as JSON text; plain scalars become numbers, booleans and null as in YAML's core schema.
std::string yaml_to_json(const YamlNode& node);

}  // namespace tandem::args

#include "common/args/yaml_tree.h"

#include "common/args/field.h"
#include "common/args/spec.h"
#include "common/args/text.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <nlohmann/json.hpp>

#include <map>
#include <sstream>
#include <stdexcept>

namespace tandem::args {
namespace {

constexpr std::size_t kNodesMax = 20000;
constexpr std::size_t kDepthMax = 32;

std::string place(const YAML::Mark& mark) {
  return std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
}

/// Thrown inside yaml-cpp's callbacks, caught in parse_yaml().
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Builds the tree from events. yaml-cpp's own Node graph would share aliased nodes and expand them
/// on conversion; here every use of an alias is copied and counted, so a bomb of anchors runs into
/// the limit.
class Builder : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}

  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    finish(make(mark, "", YamlNode::Kind::kNull), anchor);
  }

  void OnScalar(const YAML::Mark& mark,
                const std::string& tag,
                YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp tags unquoted scalars "?" and quoted ones "!".
    YamlNode node = make(mark, tag, YamlNode::Kind::kScalar);
    node.text = value;
    node.plain = tag == "?";
    finish(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark,
                       const std::string& tag,
                       YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(make(mark, tag, YamlNode::Kind::kSequence), anchor, mark);
  }

  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark,
                  const std::string& tag,
                  YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(make(mark, tag, YamlNode::Kind::kMap), anchor, mark);
  }

  void OnMapEnd() override { close(); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      throw Refused(place(mark) + ": an alias stands inside its own anchor");
    count(found->second.nodes, mark);
    YamlNode copy = found->second.node;
    copy.line = mark.line + 1;
    copy.column = mark.column + 1;
    finish(std::move(copy), 0);
  }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    std::size_t nodes_before;
  };

  struct Anchored {
    YamlNode node;
    std::size_t nodes;
  };

  void count(std::size_t nodes, const YAML::Mark& mark) {
    nodes_ += nodes;
    if (nodes_ > kNodesMax)
      throw Refused(place(mark) + ": more than " + std::to_string(kNodesMax) + " values");
  }

  YamlNode make(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused(place(mark) + ": the tag " + shown(tag) + " is not allowed here");
    }
    count(1, mark);
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void open(YamlNode node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (stack_.size() >= kDepthMax) {
      throw Refused(place(mark) + ": nested deeper than " + std::to_string(kDepthMax));
    }
    stack_.push_back({std::move(node), anchor, nodes_});
  }

  void close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    // The keys of the root are arguments; their reader knows every spelling of them.
    if (!stack_.empty() && done.node.kind == YamlNode::Kind::kMap) refuse_twins(done.node);
    const std::size_t nodes = nodes_ - done.nodes_before + 1;
    if (done.anchor != 0) anchors_[done.anchor] = {done.node, nodes};
    attach(std::move(done.node));
  }

  static void refuse_twins(const YamlNode& map) {
    std::map<std::string_view, const YamlNode*> seen;
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2) {
      const YamlNode& key = map.children[i];
      if (key.kind != YamlNode::Kind::kScalar) continue;
      const auto [earlier, is_new] = seen.emplace(key.text, &key);
      if (is_new) continue;
      throw Refused(std::to_string(key.line) + ":" + std::to_string(key.column) + ": the key " +
                    shown(key.text) + " is given twice, first at " +
                    std::to_string(earlier->second->line) + ":" +
                    std::to_string(earlier->second->column));
    }
  }

  void finish(YamlNode node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = {node, 1};
    attach(std::move(node));
  }

  void attach(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
    } else {
      stack_.back().node.children.push_back(std::move(node));
    }
  }

  YamlNode root_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, Anchored> anchors_;
  std::size_t nodes_ = 0;
};

std::string scalar_json(const YamlNode& node) {
  if (!node.plain) return json_string(node.text);
  std::string word = lower(node.text);
  if (word == "true" || word == "false") return word;
  // JSON knows no "+1", "01", "1." or ".5": such scalars stay text.
  const bool starts_like_one =
      !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
  if (starts_like_one && nlohmann::json::accept(word) && parse_float(word).ok()) return word;
  return json_string(node.text);
}

}  // namespace

Result<YamlNode> parse_yaml(const std::string& text) {
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Builder builder;
    if (!parser.HandleNextDocument(builder)) {
      YamlNode empty;
      empty.kind = YamlNode::Kind::kMap;
      return empty;
    }
    Builder rest;
    if (parser.HandleNextDocument(rest))
      return invalid_argument("1:1: more than one YAML document");
    YamlNode root = builder.take();
    if (root.kind == YamlNode::Kind::kNull) root.kind = YamlNode::Kind::kMap;
    return root;
  } catch (const Refused& error) {
    return invalid_argument(error.what());
  } catch (const YAML::Exception& error) {
    return invalid_argument(place(error.mark) + ": " + shown(error.msg));
  } catch (const std::exception& error) {
    return invalid_argument(std::string("1:1: not readable as YAML: ") + shown(error.what()));
  }
}

std::string yaml_to_json(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "null";
    case YamlNode::Kind::kScalar:
      return scalar_json(node);
    case YamlNode::Kind::kSequence: {
      std::string out = "[";
      for (const YamlNode& child : node.children)
        out += (out.size() > 1 ? ", " : "") + yaml_to_json(child);
      return out + "]";
    }
    case YamlNode::Kind::kMap:
      break;
  }
  std::string out = "{";
  for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
    const YamlNode& key = node.children[i];
    out += (out.size() > 1 ? ", " : "") +
           json_string(key.kind == YamlNode::Kind::kScalar ? key.text : "null");
    out += ": " + yaml_to_json(node.children[i + 1]);
  }
  return out + "}";
}

}  // namespace tandem::args

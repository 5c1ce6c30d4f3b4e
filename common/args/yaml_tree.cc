#include "common/args/yaml_tree.h"

#include "common/args/field.h"
#include "common/args/spec.h"
#include "common/args/text.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <nlohmann/json.hpp>

#include <algorithm>
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
  /// Borrows the text that is parsed.
  explicit Builder(std::string_view text) : text_(text) {}

  YamlNode take() { return std::move(root_); }

  /// Of a map that reading stopped in: the pairs before that place. The last one may go on there
  /// ("a: 1" before "   b: 2"), unless a key has followed it.
  YamlNode take_begun() {
    if (stack_.empty()) return take();
    YamlNode root = std::move(stack_.front().node);
    if (root.kind != YamlNode::Kind::kMap) return root;
    const bool has_key = root.children.size() % 2 == 1;
    const std::size_t surely = has_key ? 1 : 2;
    root.children.resize(root.children.size() - std::min(surely, root.children.size()));
    return root;
  }

  std::vector<std::string>& complaints() { return complaints_; }

  [[nodiscard]] const std::string& start() const { return start_; }

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = place(mark); }

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
    // yaml-cpp takes the end of the text for the end of a quote, with all keys that stand between.
    if (tag == "!" && !quote_is_closed(static_cast<std::size_t>(mark.pos)))
      throw Refused(place(mark) + ": a quote is opened and never closed");
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

  /// Of the quoted scalar that begins at `at`, behind its anchor and tag if it has them.
  [[nodiscard]] bool quote_is_closed(std::size_t at) const {
    constexpr std::string_view kBlank = " \t\r\n";
    if (text_.starts_with("\xef\xbb\xbf")) at += 3;  // not counted by yaml-cpp
    while (at < text_.size() && (text_[at] == '&' || text_[at] == '!'))
      at = text_.find_first_not_of(kBlank, text_.find_first_of(kBlank, at));
    if (at >= text_.size() || (text_[at] != '"' && text_[at] != '\'')) return true;
    const char quote = text_[at];
    for (++at; at < text_.size(); ++at) {
      const char after = at + 1 < text_.size() ? text_[at + 1] : ' ';
      if (quote == '"' ? text_[at] == '\\' : text_[at] == quote && after == quote) {
        ++at;
      } else if (text_[at] == quote) {
        return true;
      }
    }
    return false;
  }

  void count(std::size_t nodes, const YAML::Mark& mark) {
    nodes_ += nodes;
    if (nodes_ > kNodesMax)
      throw Refused(place(mark) + ": more than " + std::to_string(kNodesMax) + " values");
  }

  YamlNode make(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    if (!tag.empty() && tag != "?" && tag != "!")
      complaints_.push_back(place(mark) + ": the tag " + shown(tag) + " is not allowed here");
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
    if (!stack_.empty() && done.node.kind == YamlNode::Kind::kMap) tell_twins(done.node);
    const std::size_t nodes = nodes_ - done.nodes_before + 1;
    if (done.anchor != 0) anchors_[done.anchor] = {done.node, nodes};
    attach(std::move(done.node));
  }

  /// The first of them stays, so that its reader has nothing to say about the same.
  void tell_twins(YamlNode& map) {
    std::map<std::string, std::string> seen;
    std::vector<YamlNode> kept;
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2) {
      YamlNode& key = map.children[i];
      const std::string here = std::to_string(key.line) + ":" + std::to_string(key.column);
      if (key.kind == YamlNode::Kind::kScalar) {
        const auto [first, is_new] = seen.emplace(key.text, here);
        if (!is_new) {
          complaints_.push_back(here + ": the key " + shown(key.text) +
                                " is given twice, first at " + first->second);
          continue;
        }
      }
      kept.push_back(std::move(key));
      kept.push_back(std::move(map.children[i + 1]));
    }
    map.children = std::move(kept);
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

  std::string_view text_;
  YamlNode root_;
  std::string start_;
  std::vector<std::string> complaints_;
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

YamlDocument parse_yaml(const std::string& text) {
  Builder builder(text);
  YamlDocument document;
  std::string stopped;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Builder rest(text);
    if (parser.HandleNextDocument(builder) && parser.HandleNextDocument(rest))
      stopped = rest.start() + ": more than one YAML document";
  } catch (const Refused& error) {
    stopped = error.what();
  } catch (const YAML::Exception& error) {
    stopped = place(error.mark) + ": " + shown(error.msg);
  } catch (const std::exception& error) {
    stopped = std::string("1:1: not readable as YAML: ") + shown(error.what());
  }
  document.whole = stopped.empty();
  document.root = builder.take_begun();
  if (document.root.kind == YamlNode::Kind::kNull) document.root.kind = YamlNode::Kind::kMap;
  document.complaints = std::move(builder.complaints());
  if (!document.whole) document.complaints.push_back(std::move(stopped));
  return document;
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

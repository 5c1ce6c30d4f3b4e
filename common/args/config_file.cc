// The YAML --config file: one flat mapping of long flag names. Every program can read the same
// file.
#include "common/args/input.h"
#include "common/args/text.h"
#include "common/args/yaml_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

namespace tandem::args {
namespace {

constexpr std::size_t kFileBytesMax = 1U << 20U;

Result<std::string> read_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file(path);
  if (!std::filesystem::exists(file, error)) return not_found("file not found");
  const std::string extension = file.extension().string();
  if (extension != ".yaml" && extension != ".yml") return invalid_argument("not a .yaml/.yml file");
  // A FIFO or device would block or never end.
  if (!std::filesystem::is_regular_file(file, error)) return invalid_argument("not a regular file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return invalid_argument("cannot be opened for reading");
  std::string text(kFileBytesMax + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kFileBytesMax) return invalid_argument("larger than 1 MiB");
  return text;
}

/// "3:7" of a byte; columns count bytes, as in all other places.
std::string place_in(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return std::to_string(lines + 1) + ":" + std::to_string(at - line_begin + 1);
}

class FileReader {
 public:
  FileReader(const Registry& registry, Program program, std::string path, Errors& errors)
      : registry_(registry), program_(program), path_(std::move(path)), errors_(errors) {}

  std::vector<Given> read(const YamlNode& root) {
    for (std::size_t i = 0; i + 1 < root.children.size(); i += 2)
      take(root.children[i], root.children[i + 1]);
    return std::move(given_);
  }

 private:
  [[nodiscard]] std::string place(const YamlNode& node) const {
    return path_ + ":" + std::to_string(node.line) + ":" + std::to_string(node.column);
  }

  void take(const YamlNode& key, const YamlNode& value) {
    if (key.kind != YamlNode::Kind::kScalar) {
      errors_.add(place(key) + ": a key must be the long name of an argument");
      return;
    }
    const Entry* entry = key.text.size() > 1 ? registry_.find(key.text) : nullptr;
    if (entry == nullptr) {
      tell_unrecognized(registry_, program_, place(key) + ": ", key.text, errors_);
      return;
    }
    if (entry->spec.command) {
      errors_.add(place(key) + ": " + entry->flag() +
                  " belongs on the command line, not in a config file");
      return;
    }
    const auto [seen, is_new] = places_.emplace(entry->dest, place(key));
    if (!is_new) {
      errors_.add(*entry, "given twice, at " + seen->second + " and at " + place(key));
      return;
    }
    Given given{entry, Origin::kFile, place(value), {}};
    if (read_value(*entry, value, given)) given_.push_back(std::move(given));
  }

  /// Told when the value is used: a key of another program is ignored, whatever stands behind it.
  bool misshapen(Given& given, const YamlNode& value, std::string text) {
    given.misshapen = std::move(text);
    given.where = place(value);
    given.occurrences.assign(1, Words());
    return true;
  }

  /// False when there is nothing to give: the key is unset.
  bool read_value(const Entry& entry, const YamlNode& value, Given& given) {
    switch (value.kind) {
      case YamlNode::Kind::kNull:
        // An unquoted null is a choice of --disaggregation-mode and "unset" everywhere else.
        for (std::string_view choice : split_list(entry.spec.choices)) {
          if (choice == "null") given.occurrences = {{"null"}};
        }
        return !given.occurrences.empty();
      case YamlNode::Kind::kScalar:
        given.occurrences = {scalar_words(entry, value.text)};
        return true;
      case YamlNode::Kind::kMap:
        break;
      case YamlNode::Kind::kSequence:
        if (entry.type.starts_with("json")) break;
        return read_list(entry, value, given);
    }
    if (entry.type.starts_with("json")) {
      given.occurrences = {{yaml_to_json(value)}};
      return true;
    }
    return misshapen(given, value, "expected one value, found a mapping");
  }

  bool read_list(const Entry& entry, const YamlNode& value, Given& given) {
    if (!entry.type.starts_with("list") && value.children.size() != 1) {
      return misshapen(
          given,
          value,
          "expected one value, found a list of " + std::to_string(value.children.size()));
    }
    Words words;
    for (const YamlNode& item : value.children) {
      Words each;
      if (item.kind == YamlNode::Kind::kScalar) each = scalar_words(entry, item.text);
      if (item.kind == YamlNode::Kind::kSequence) each = pair_words(entry, item);
      if (item.kind == YamlNode::Kind::kMap && entry.type.find("json") != std::string::npos) {
        each = {yaml_to_json(item)};
      }
      if (each.empty()) {
        return misshapen(given, item, "a list of this argument holds plain values only");
      }
      if (entry.spec.repeatable) {
        given.occurrences.push_back(std::move(each));
      } else {
        words.insert(words.end(), each.begin(), each.end());
      }
    }
    if (!words.empty()) given.occurrences = {std::move(words)};
    return !given.occurrences.empty();
  }

  /// "URL PORT" may be one scalar where the command line takes two words.
  static Words scalar_words(const Entry& entry, const std::string& text) {
    const std::size_t space = entry.arity == "1..2" ? text.find(' ') : std::string::npos;
    const std::size_t second =
        space == std::string::npos ? space : text.find_first_not_of(' ', space);
    if (second == std::string::npos) return {text.substr(0, space)};
    return {text.substr(0, space), text.substr(second)};
  }

  /// [URL, PORT], only where two words are legal.
  static Words pair_words(const Entry& entry, const YamlNode& item) {
    Words words;
    if (entry.arity != "1..2" || item.children.empty() || item.children.size() > 2) return words;
    for (const YamlNode& word : item.children) {
      if (word.kind != YamlNode::Kind::kScalar && word.kind != YamlNode::Kind::kNull) return {};
      words.push_back(word.kind == YamlNode::Kind::kNull ? "none" : word.text);
    }
    return words;
  }

  const Registry& registry_;
  Program program_;
  std::string path_;
  Errors& errors_;
  std::vector<Given> given_;
  std::map<std::string, std::string> places_;
};

}  // namespace

std::vector<Given> read_config_file(const Registry& registry,
                                    Program program,
                                    const std::string& path,
                                    Errors& errors) {
  const std::string name = shown(path);
  const auto refuse = [&errors](const std::string& text) {
    errors.add(text);
    errors.remember_gap();
    return std::vector<Given>{};
  };
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return refuse("config " + name + ": " + text.status().message());
  if (const std::size_t nul = text->find('\0'); nul != std::string::npos) {
    return refuse("config " + name + ":" + place_in(*text, nul) +
                  ": holds a NUL byte, so it is not text");
  }
  if (const std::size_t good = utf8_prefix(*text); good < text->size())
    return refuse("config " + name + ":" + place_in(*text, good) + ": not valid UTF-8");
  const YamlDocument document = parse_yaml(text.value());
  for (const std::string& complaint : document.complaints)
    errors.add("config " + name + ":" + complaint);
  if (!document.whole) errors.remember_gap();
  if (document.root.kind != YamlNode::Kind::kMap) {
    if (document.whole) return refuse("config " + name + ": root is not a mapping");
    return {};
  }
  return FileReader(registry, program, name, errors).read(document.root);
}

}  // namespace tandem::args

// tojson: Python's json.dumps as transformers calls it.
#include "common/chat/builtins.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::chat {
namespace {

class JsonWriter {
 public:
  bool ensure_ascii = false;
  bool sort_keys = false;
  /// Text of one level; no line breaks when not set.
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";

  void write(std::string& out, const Value& v, int level = 0) {
    if (level > kValueDepthMax) fail("values are nested too deeply");
    switch (v.type) {
      case Type::kNone:
        out += "null";
        return;
      case Type::kBool:
        out += v.b ? "true" : "false";
        return;
      case Type::kInt:
        out += int_to_string(v.i);
        return;
      case Type::kFloat:
        write_float(out, v.d);
        return;
      case Type::kString:
        write_string(out, v.str());
        return;
      case Type::kDict:
        write_dict(out, v.dict(), level);
        return;
      case Type::kSeq:
        if (v.seq().style == Seq::kList || v.seq().style == Seq::kTuple ||
            v.seq().style == Seq::kGroup) {
          write_list(out, v.seq().items, level);
          return;
        }
        [[fallthrough]];
      default:
        fail(fmt::format("Object of type {} is not JSON serializable", type_name(v)));
    }
  }

 private:
  static void write_float(std::string& out, double d) {
    if (d != d) {
      out += "NaN";
    } else if (d > 1.7976931348623157e308 || d < -1.7976931348623157e308) {
      out += d > 0 ? "Infinity" : "-Infinity";
    } else {
      out += float_repr(d);
    }
  }

  void write_string(std::string& out, std::string_view text) const {
    out += '"';
    for (std::size_t pos = 0; pos < text.size();) {
      const json::Utf8Step step = json::decode_utf8(text.substr(pos));
      const char32_t c = step.code_point;
      constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
      constexpr std::string_view kNames = "\"\\nrtbf";
      const std::size_t which =
          c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (which != std::string_view::npos) {
        out += '\\';
        out += kNames[which];
      } else if (c < 0x20 || (ensure_ascii && c > 0x7E)) {
        write_escape(out, c);
      } else {
        out += text.substr(pos, step.byte_count);
      }
      pos += step.byte_count;
    }
    out += '"';
  }

  static void write_escape(std::string& out, char32_t c) {
    if (c == 0x7F) {
      out += '\x7F';
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
    } else {
      const auto offset = static_cast<std::uint32_t>(c - 0x10000);
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
    }
  }

  void break_line(std::string& out, int level) const {
    if (!indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) {
      out += *indent;
    }
  }

  void write_list(std::string& out, const std::vector<Value>& items, int level) {
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += item_separator;
      break_line(out, level + 1);
      write(out, items[i], level + 1);
    }
    if (!items.empty()) break_line(out, level);
    out += ']';
  }

  static std::string key_text(const Value& key) {
    switch (key.type) {
      case Type::kString:
        return std::string(key.str());
      case Type::kNone:
        return "null";
      case Type::kBool:
        return key.b ? "true" : "false";
      case Type::kInt:
      case Type::kFloat:
        return to_str(key);
      default:
        fail(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void write_dict(std::string& out, const Dict& dict, int level) {
    std::vector<std::pair<Value, Value>> items = dict.items;
    if (sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
        return compare(a.first, b.first) < 0;
      });
    }
    out += '{';
    bool first = true;
    for (const auto& [key, value] : items) {
      if (!first) out += item_separator;
      first = false;
      break_line(out, level + 1);
      write_string(out, key_text(key));
      out += key_separator;
      write(out, value, level + 1);
    }
    if (!first) break_line(out, level);
    out += '}';
  }
};

}  // namespace

Value filter_tojson(Interp& in, const Value& v, Args& args) {
  const Bound b("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonWriter writer;
  // transformers' tojson takes these by name; a plain number is jinja's own first parameter.
  writer.ensure_ascii = b[0] != nullptr && truth(*b[0]);
  if (b[1] != nullptr && !b[1]->is(Type::kNone)) {
    if (b[1]->is(Type::kString)) {
      writer.indent = std::string(b[1]->str());
    } else {
      const std::int64_t width = std::clamp<std::int64_t>(to_index(*b[1], "indent"), 0, 64);
      writer.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
    writer.item_separator = ",";
  }
  if (b[2] != nullptr && !b[2]->is(Type::kNone)) {
    const std::vector<Value> parts = in.iterate(*b[2]);
    if (parts.size() != 2 || !parts[0].is(Type::kString) || !parts[1].is(Type::kString)) {
      fail("tojson(): separators must be two strings");
    }
    writer.item_separator = parts[0].str();
    writer.key_separator = parts[1].str();
  }
  writer.sort_keys = b[3] != nullptr && truth(*b[3]);
  std::string out;
  writer.write(out, v);
  in.charge(out.size() / 64);
  return in.make_string(std::move(out));
}

}  // namespace tandem::chat

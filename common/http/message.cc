#include "common/http/message.h"

#include <algorithm>

namespace tandem::http {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "internal_server_error" : "invalid_request_error";
  }
}

}  // namespace

Headers::Headers(std::initializer_list<Item> items) {
  for (const Item& item : items)
    add(item.first, item.second);
}

void Headers::add(std::string_view name, std::string value) {
  items_.emplace_back(to_lower(name), std::move(value));
}

void Headers::set(std::string_view name, std::string value) {
  for (Item& item : items_) {
    if (equals_ignoring_case(item.first, name)) {
      item.second = std::move(value);
      return;
    }
  }
  add(name, std::move(value));
}

std::optional<std::string_view> Headers::find(std::string_view name) const {
  for (const Item& item : items_) {
    if (item.first.size() == name.size() && equals_ignoring_case(item.first, name))
      return std::string_view(item.second);
  }
  return std::nullopt;
}

std::size_t Headers::count(std::string_view name) const {
  return static_cast<std::size_t>(std::count_if(items_.begin(), items_.end(), [&](const Item& i) {
    return i.first.size() == name.size() && equals_ignoring_case(i.first, name);
  }));
}

std::string_view reason_phrase(int status) {
  struct Row {
    int status;
    std::string_view phrase;
  };

  constexpr Row kRows[] = {{100, "Continue"},
                           {200, "OK"},
                           {204, "No Content"},
                           {400, "Bad Request"},
                           {401, "Unauthorized"},
                           {403, "Forbidden"},
                           {404, "Not Found"},
                           {405, "Method Not Allowed"},
                           {408, "Request Timeout"},
                           {409, "Conflict"},
                           {413, "Content Too Large"},
                           {414, "URI Too Long"},
                           {415, "Unsupported Media Type"},
                           {417, "Expectation Failed"},
                           {422, "Unprocessable Content"},
                           {429, "Too Many Requests"},
                           {431, "Request Header Fields Too Large"},
                           {500, "Internal Server Error"},
                           {501, "Not Implemented"},
                           {503, "Service Unavailable"},
                           {504, "Gateway Timeout"},
                           {505, "HTTP Version Not Supported"}};
  for (const Row& row : kRows) {
    if (row.status == status) return row.phrase;
  }
  return "Unknown";
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  // Mostly they are the same, or differ in the first letter.
  return a.size() == b.size() &&
         (a == b || std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
            return lower(x) == lower(y);
          }));
}

std::optional<std::string> percent_decode(std::string_view text) {
  const auto is_forbidden = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20U || byte == 0x7FU;
  };
  std::string out;
  out.reserve(text.size());
  while (true) {
    const std::string_view plain = text.substr(0, text.find('%'));
    if (std::any_of(plain.begin(), plain.end(), is_forbidden)) return std::nullopt;
    out += plain;
    text.remove_prefix(plain.size());
    if (text.empty()) return out;
    if (text.size() < 3) return std::nullopt;
    const int high = hex_value(text[1]);
    const int low = hex_value(text[2]);
    if (high < 0 || low < 0) return std::nullopt;
    const char c = static_cast<char>(high * 16 + low);
    if (is_forbidden(c)) return std::nullopt;
    out.push_back(c);
    text.remove_prefix(3);
  }
}

std::optional<std::string> query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    const auto name = percent_decode(pair.substr(0, equals));
    if (!name || *name != key) continue;
    if (equals == std::string_view::npos) return std::string();
    std::string raw(pair.substr(equals + 1));
    std::replace(raw.begin(), raw.end(), '+', ' ');
    return percent_decode(raw);
  }
  return std::nullopt;
}

std::string ascii_json_string(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20U) {
      out.append("\\u00");
      out.push_back(kHex[byte >> 4U]);
      out.push_back(kHex[byte & 15U]);
    } else {
      out.push_back(byte < 0x7FU ? c : '?');
    }
  }
  out.push_back('"');
  return out;
}

std::string error_json(int status, std::string_view message) {
  const std::string text = ascii_json_string(message);
  const std::string type = ascii_json_string(error_type(status));
  const std::string code = std::to_string(status);
  return R"({"object":"error","message":)" + text + R"(,"type":)" + type +
         R"(,"param":null,"code":)" + code + R"(,"error":{"message":)" + text + R"(,"type":)" +
         type + R"(,"param":null,"code":)" + code + "}}";
}

}  // namespace tandem::http

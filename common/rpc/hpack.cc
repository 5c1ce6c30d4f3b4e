#include "common/rpc/internal/hpack.h"

#include <algorithm>
#include <array>
#include <optional>

namespace tandem::rpc::internal {

namespace {

struct StaticField {
  std::string_view name;
  std::string_view value;
};

// RFC 7541, appendix A; the first one has index 1.
constexpr std::array<StaticField, 61> kStatic = {{
    {":authority", ""},
    {":method", "GET"},
    {":method", "POST"},
    {":path", "/"},
    {":path", "/index.html"},
    {":scheme", "http"},
    {":scheme", "https"},
    {":status", "200"},
    {":status", "204"},
    {":status", "206"},
    {":status", "304"},
    {":status", "400"},
    {":status", "404"},
    {":status", "500"},
    {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"},
    {"accept-language", ""},
    {"accept-ranges", ""},
    {"accept", ""},
    {"access-control-allow-origin", ""},
    {"age", ""},
    {"allow", ""},
    {"authorization", ""},
    {"cache-control", ""},
    {"content-disposition", ""},
    {"content-encoding", ""},
    {"content-language", ""},
    {"content-length", ""},
    {"content-location", ""},
    {"content-range", ""},
    {"content-type", ""},
    {"cookie", ""},
    {"date", ""},
    {"etag", ""},
    {"expect", ""},
    {"expires", ""},
    {"from", ""},
    {"host", ""},
    {"if-match", ""},
    {"if-modified-since", ""},
    {"if-none-match", ""},
    {"if-range", ""},
    {"if-unmodified-since", ""},
    {"last-modified", ""},
    {"link", ""},
    {"location", ""},
    {"max-forwards", ""},
    {"proxy-authenticate", ""},
    {"proxy-authorization", ""},
    {"range", ""},
    {"referer", ""},
    {"refresh", ""},
    {"retry-after", ""},
    {"server", ""},
    {"set-cookie", ""},
    {"strict-transport-security", ""},
    {"transfer-encoding", ""},
    {"user-agent", ""},
    {"vary", ""},
    {"via", ""},
    {"www-authenticate", ""},
}};

// RFC 7541, appendix B: bits of each symbol's code, the last one is EOS. Within one length codes
// follow each other in the order of symbols, and lengths follow each other likewise: the code is
// canonical, and the lengths say it all.
// clang-format off: twenty a line
constexpr std::array<std::uint8_t, 257> kCodeBits = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,
    5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10, 13, 6,  7,  7,  7,  7,  7,  7,
    7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,
    15, 5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,  5,  6,  7,  7,
    7,  7,  7,  15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};
// clang-format on
constexpr int kBitsMax = 30;
constexpr std::uint16_t kEos = 256;

struct HuffmanTable {
  std::array<std::uint16_t, 257> symbols{};          // by length, then symbol
  std::array<std::uint32_t, kBitsMax + 1> first{};   // code of the first symbol of each length
  std::array<std::uint16_t, kBitsMax + 1> offset{};  // its place in `symbols`
  std::array<std::uint16_t, kBitsMax + 1> count{};

  constexpr HuffmanTable() {
    for (const std::uint8_t bits : kCodeBits)
      ++count.at(bits);
    std::uint32_t code = 0;
    std::uint16_t place = 0;
    for (std::size_t bits = 1; bits <= kBitsMax; ++bits) {
      code <<= 1U;
      first.at(bits) = code;
      offset.at(bits) = place;
      for (std::uint16_t symbol = 0; symbol < kCodeBits.size(); ++symbol) {
        if (kCodeBits.at(symbol) == bits) symbols.at(place++) = symbol;
      }
      code += count.at(bits);
    }
  }
};

constexpr HuffmanTable kHuffman;

Status broken(std::string_view what) {
  return data_loss("a header block is not HPACK: " + std::string(what));
}

/// Takes bytes off the front of a header block.
class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }

  [[nodiscard]] std::uint8_t peek() const { return static_cast<std::uint8_t>(rest_.front()); }

  /// RFC 7541, 5.1: the low `bits` of the next byte, and more bytes when these are all ones.
  Result<std::uint64_t> integer(int bits) {
    if (rest_.empty()) return broken("it ends early");
    const std::uint64_t mask = (1U << static_cast<unsigned>(bits)) - 1;
    std::uint64_t value = take() & mask;
    if (value < mask) return value;
    for (unsigned shift = 0; shift <= 28; shift += 7) {
      if (rest_.empty()) return broken("it ends early");
      const std::uint64_t byte = take();
      value += (byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) return value;
    }
    return broken("a number is too large");
  }

  /// RFC 7541, 5.2.
  Result<std::string> text() {
    if (rest_.empty()) return broken("it ends early");
    const bool coded = (peek() & 0x80U) != 0;
    TANDEM_TRY(const std::uint64_t size, integer(7));
    if (size > rest_.size()) return broken("a string is longer than the block");
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (coded) return huffman_decode(bytes);
    return std::string(bytes);
  }

 private:
  std::uint8_t take() {
    const auto byte = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }

  std::string_view rest_;
};

std::size_t table_bytes_of(const HeaderField& field) {
  return field.first.size() + field.second.size() + 32;
}

void append_text(std::string& out, std::string_view text) {
  std::size_t size = text.size();
  if (size < 127) {
    out.push_back(static_cast<char>(size));
  } else {
    out.push_back(127);
    for (size -= 127; size >= 128; size >>= 7U)
      out.push_back(static_cast<char>(0x80U | (size & 0x7FU)));
    out.push_back(static_cast<char>(size));
  }
  out.append(text);
}

}  // namespace

Result<std::string> huffman_decode(std::string_view coded) {
  std::string out;
  std::uint32_t code = 0;
  std::size_t bits = 0;
  for (const char each : coded) {
    for (int bit = 7; bit >= 0; --bit) {
      code = (code << 1U) | ((static_cast<std::uint8_t>(each) >> static_cast<unsigned>(bit)) & 1U);
      if (++bits > kBitsMax) return broken("an unknown code");
      const std::uint32_t place = code - kHuffman.first.at(bits);
      if (code < kHuffman.first.at(bits) || place >= kHuffman.count.at(bits)) continue;
      const std::uint16_t symbol = kHuffman.symbols.at(kHuffman.offset.at(bits) + place);
      if (symbol == kEos) return broken("a string contains its end");
      out.push_back(static_cast<char>(symbol));
      code = 0;
      bits = 0;
    }
  }
  // The rest of the last byte is the beginning of EOS, which is all ones.
  if (bits > 7 || code != (1U << bits) - 1) return broken("a string is padded wrongly");
  return out;
}

Result<HeaderField> HpackDecoder::lookup(std::uint64_t index) const {
  if (index == 0) return broken("index 0");
  if (index <= kStatic.size()) {
    const StaticField& field = kStatic.at(index - 1);
    return HeaderField(field.name, field.value);
  }
  if (index - kStatic.size() > table_.size()) return broken("an index beyond the table");
  return table_[index - kStatic.size() - 1];
}

void HpackDecoder::shrink(std::size_t bytes_max) {
  while (table_bytes_ > bytes_max) {
    table_bytes_ -= table_bytes_of(table_.back());
    table_.pop_back();
  }
}

void HpackDecoder::remember(const HeaderField& field) {
  const std::size_t bytes = table_bytes_of(field);
  shrink(table_bytes_max_ - std::min(bytes, table_bytes_max_));
  if (bytes > table_bytes_max_) return;
  table_.push_front(field);
  table_bytes_ += bytes;
}

Result<std::vector<HeaderField>> HpackDecoder::decode(std::string_view block) {
  Reader reader(block);
  std::vector<HeaderField> fields;
  std::size_t bytes = 0;
  while (!reader.empty()) {
    const std::uint8_t first = reader.peek();
    if ((first & 0xE0U) == 0x20) {  // 6.3: another size of the table
      TANDEM_TRY(const std::uint64_t size, reader.integer(5));
      if (size > kTableBytesMax) return broken("a table larger than agreed");
      table_bytes_max_ = size;
      shrink(size);
      continue;
    }
    HeaderField field;
    if ((first & 0x80U) != 0) {  // 6.1: all of it is known
      TANDEM_TRY(const std::uint64_t index, reader.integer(7));
      TANDEM_TRY(field, lookup(index));
    } else {  // 6.2: a literal, remembered or not
      const bool kept = (first & 0x40U) != 0;
      TANDEM_TRY(const std::uint64_t index, reader.integer(kept ? 6 : 4));
      if (index == 0) {
        TANDEM_TRY(field.first, reader.text());
      } else {
        TANDEM_TRY(HeaderField named, lookup(index));
        field.first = std::move(named.first);
      }
      TANDEM_TRY(field.second, reader.text());
      if (kept) remember(field);
    }
    bytes += table_bytes_of(field);
    if (bytes > kFieldBytesMax) return broken("more than 64 KiB of fields");
    fields.push_back(std::move(field));
  }
  return fields;
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.push_back(0);
  append_text(out, name);
  append_text(out, value);
}

}  // namespace tandem::rpc::internal

// HPACK (RFC 7541), as much of it as a client of one call needs: a whole decoder, and an encoder
// that only writes literals.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::rpc::internal {

using HeaderField = std::pair<std::string, std::string>;

/// One per connection and direction: header blocks refer to what earlier ones said. After an error
/// the connection cannot go on (RFC 9113, 4.3).
class HpackDecoder {
 public:
  /// Fields of one whole header block, in order. kDataLoss: not HPACK, or more than
  /// kFieldBytesMax in all.
  Result<std::vector<HeaderField>> decode(std::string_view block);

  static constexpr std::size_t kFieldBytesMax = 64 << 10;
  /// SETTINGS_HEADER_TABLE_SIZE, which is not changed here.
  static constexpr std::size_t kTableBytesMax = 4096;

 private:
  [[nodiscard]] Result<HeaderField> lookup(std::uint64_t index) const;
  void remember(const HeaderField& field);
  void shrink(std::size_t bytes_max);

  std::deque<HeaderField> table_;  // newest first
  std::size_t table_bytes_ = 0;
  std::size_t table_bytes_max_ = kTableBytesMax;
};

/// Appends one field: a literal without indexing, with a name of its own, no Huffman code.
void append_header(std::string& out, std::string_view name, std::string_view value);

/// Undoes the Huffman code of RFC 7541, appendix B. kDataLoss: a code that does not exist, or
/// padding that is not.
Result<std::string> huffman_decode(std::string_view coded);

}  // namespace tandem::rpc::internal

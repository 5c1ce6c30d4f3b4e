#include "common/weights/safetensors.h"

#include "common/json/field.h"
#include "common/json/parse.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace tandem::weights {
namespace {

constexpr std::size_t kLengthBytes = 8;

Result<ElementType> parse_type(const json::Field& field) {
  TANDEM_TRY(const std::string_view type_name, field.as_string());
  if (const auto type = parse_element_type(type_name)) return *type;
  return field.mismatch(fmt::format("one of {}", element_type_names()));
}

/// product(shape) * size, or nothing when it does not fit 64 bits.
std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> shape, std::size_t size) {
  std::uint64_t total = size;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(total, static_cast<std::uint64_t>(extent), &total)) {
      return std::nullopt;
    }
  }
  return total;
}

Result<std::vector<std::int64_t>> parse_shape(const json::Field& field) {
  TANDEM_TRY(std::vector<std::int64_t> shape, field.as_ints(0));
  if (shape.size() > kRankMax) {
    return field.error(
        fmt::format("has {} dimensions, at most {} are allowed", shape.size(), kRankMax));
  }
  return shape;
}

/// One member of the header. `data_start` and `data_bytes` place the data in the file.
Result<TensorEntry> parse_entry(std::string_view tensor_name,
                                const json::Field& field,
                                std::uint64_t data_start,
                                std::uint64_t data_bytes) {
  if (tensor_name.empty() || tensor_name.size() > kNameBytesMax) {
    return field.error(fmt::format(
        "tensor name of {} bytes, expected 1 to {}", tensor_name.size(), kNameBytesMax));
  }
  TensorEntry entry;
  entry.name = tensor_name;
  TANDEM_TRY(const json::Field dtype, field.at("dtype"));
  TANDEM_TRY(entry.type, parse_type(dtype));
  TANDEM_TRY(const json::Field shape, field.at("shape"));
  TANDEM_TRY(entry.shape, parse_shape(shape));
  TANDEM_TRY(const json::Field offsets, field.at("data_offsets"));
  TANDEM_TRY(const std::vector<std::int64_t> span, offsets.as_ints(0));
  if (span.size() != 2 || span[0] > span[1]) return offsets.mismatch("[begin, end], begin <= end");
  const auto begin = static_cast<std::uint64_t>(span[0]);
  const auto end = static_cast<std::uint64_t>(span[1]);
  if (end > data_bytes) {
    return offsets.error(fmt::format(
        "ends at byte {} of the data, but the file holds {} bytes of data", end, data_bytes));
  }
  const auto wanted = checked_bytes(entry.shape, byte_size(entry.type));
  if (!wanted || *wanted != end - begin) {
    return field.error(
        fmt::format("shape {} of {} takes {} bytes, but data_offsets [{}, {}] span {}",
                    shape_text(entry.shape),
                    name(entry.type),
                    wanted ? std::to_string(*wanted) : "more than 2^64",
                    begin,
                    end,
                    end - begin));
  }
  entry.offset = data_start + begin;
  entry.byte_count = end - begin;
  return entry;
}

/// The tensors, sorted by offset, must cover the data exactly.
Status check_tiling(const std::vector<TensorEntry>& entries,
                    std::uint64_t data_start,
                    std::uint64_t file_bytes,
                    const std::string& file_name) {
  std::uint64_t at = data_start;
  std::string_view before = "the header";
  for (const TensorEntry& entry : entries) {
    if (entry.offset != at) {
      return invalid_argument(fmt::format(
          "{}: tensor '{}' starts at byte {} of the data, expected {} (the end of {}): {}",
          file_name,
          entry.name,
          entry.offset - data_start,
          at - data_start,
          before,
          entry.offset < at ? "tensors overlap" : "there is a gap"));
    }
    at += entry.byte_count;
    before = entry.name;
  }
  if (at != file_bytes) {
    return invalid_argument(fmt::format("{}: has {} bytes after the last tensor ('{}'), expected 0",
                                        file_name,
                                        file_bytes - at,
                                        before));
  }
  return {};
}

Result<std::string_view> header_text(std::span<const std::byte> file,
                                     const std::string& file_name) {
  if (file.size() < kLengthBytes) {
    return invalid_argument(
        fmt::format("{}: has {} bytes, expected a safetensors file of at least {}: it is truncated",
                    file_name,
                    file.size(),
                    kLengthBytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kHeaderBytesMax) {
    return invalid_argument(
        fmt::format("{}: header length is {} bytes, the limit of the format is {}: not a "
                    "safetensors file, or corrupt",
                    file_name,
                    length,
                    kHeaderBytesMax));
  }
  if (length > file.size() - kLengthBytes) {
    return invalid_argument(
        fmt::format("{}: header length is {} bytes, but only {} follow: the file is truncated",
                    file_name,
                    length,
                    file.size() - kLengthBytes));
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                   const std::string& file_name) {
  TANDEM_TRY(const std::string_view text, header_text(file, file_name));
  if (!text.starts_with('{')) {
    return invalid_argument(fmt::format("{}: header does not begin with '{{'", file_name));
  }
  auto parsed = json::parse(text,
                            {.max_bytes = kHeaderBytesMax,
                             .max_depth = 4,
                             .max_values = kTensorCountMax * (5 + kRankMax),
                             .reject_duplicate_keys = true});
  if (!parsed.ok()) return parsed.status().with_context(file_name + ": header");
  const json::Value& header = *parsed;
  const std::uint64_t data_start = kLengthBytes + text.size();
  std::vector<TensorEntry> entries;
  for (const json::Member& member : *header.if_object()) {
    if (member.key == "__metadata__") {
      if (!member.value.is_object()) {
        return json::Field(member.value, file_name + ": __metadata__").mismatch("an object");
      }
      continue;
    }
    if (entries.size() == kTensorCountMax) {
      return invalid_argument(
          fmt::format("{}: names more than {} tensors", file_name, kTensorCountMax));
    }
    const std::string_view short_name = std::string_view(member.key).substr(0, kNameBytesMax);
    const json::Field field(member.value, fmt::format("{}: tensor '{}'", file_name, short_name));
    TANDEM_TRY(TensorEntry entry,
               parse_entry(member.key, field, data_start, file.size() - data_start));
    entries.push_back(std::move(entry));
  }
  // Empty tensors share their offset with a neighbour: they sort before it.
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.offset, a.byte_count) < std::pair(b.offset, b.byte_count);
  });
  TANDEM_TRY(check_tiling(entries, data_start, file.size(), file_name));
  return entries;
}

}  // namespace tandem::weights

#include "common/transfer/landing_table.h"

#include "common/base/check.h"

#include <algorithm>

namespace tandem::transfer {

namespace {

std::uint16_t part_mask(std::uint32_t first_part, std::uint32_t part_count) {
  return static_cast<std::uint16_t>(((1U << part_count) - 1U) << first_part);
}

}  // namespace

LandingTable::LandingTable(LandingLimits limits) : limits_(std::move(limits)) {
  TANDEM_CHECK(limits_.part_offsets.size() >= 2 && limits_.part_offsets.size() <= 17,
               "1 to 16 parts");
  TANDEM_CHECK(std::is_sorted(limits_.part_offsets.begin(), limits_.part_offsets.end()),
               "part_offsets ascend");
}

std::map<TransferName, LandingTable::Entry>::iterator LandingTable::find(const TransferName& name) {
  if (!limits_.planted_skip_generation_check) return landings_.find(name);
  auto found = landings_.end();
  for (auto it = landings_.begin(); it != landings_.end(); ++it)
    if (it->first.slot == name.slot && !it->second.closing) found = it;
  return found;
}

void LandingTable::open(const TransferName& name,
                        std::uint32_t first_page,
                        std::span<const std::uint32_t> pages) {
  const auto [it, is_new] = landings_.try_emplace(name);
  Entry& entry = it->second;
  TANDEM_CHECK(!entry.closing, "a landing that is being closed cannot be opened");
  if (is_new) entry.first_page = first_page;
  TANDEM_CHECK(first_page == entry.first_page + entry.pages.size(), "landing pages have a gap");
  for (const std::uint32_t page : pages) {
    TANDEM_CHECK(page < limits_.pool_pages, "landing page outside the pool");
    entry.pages.push_back({.page = page, .landed = 0, .landing = 0});
  }
}

LandingVerdict LandingTable::begin(const UnitHeader& header, Landing* landing) {
  const auto it = find(header.name);
  if (it == landings_.end() || it->second.closing) return LandingVerdict::kStaleName;
  Entry& entry = it->second;
  const std::size_t parts = limits_.part_offsets.size() - 1;
  const std::uint64_t end = std::uint64_t{header.first_page} + header.page_count;
  const std::uint32_t part_end = std::uint32_t{header.first_part} + header.part_count;
  if (header.page_count == 0 || header.first_page < entry.first_page ||
      end > entry.first_page + entry.pages.size() || header.part_count == 0 || part_end > parts ||
      header.page_offset != limits_.part_offsets[header.first_part] ||
      header.page_offset + std::uint64_t{header.page_length} != limits_.part_offsets[part_end]) {
    return LandingVerdict::kOutOfRange;
  }
  const std::uint16_t mask = part_mask(header.first_part, header.part_count);
  const std::span<Page> pages =
      std::span(entry.pages).subspan(header.first_page - entry.first_page, header.page_count);
  for (const Page& page : pages)
    if (((page.landed | page.landing) & mask) != 0) return LandingVerdict::kDuplicate;
  landing->name = it->first;
  landing->header = header;
  landing->pages.clear();
  landing->pages.reserve(pages.size());
  for (Page& page : pages) {
    page.landing = static_cast<std::uint16_t>(page.landing | mask);
    landing->pages.push_back(page.page);
  }
  ++entry.in_flight;
  return LandingVerdict::kLand;
}

bool LandingTable::finish(const Landing& landing, bool landed_well) {
  const auto it = landings_.find(landing.name);
  TANDEM_CHECK(it != landings_.end() && it->second.in_flight > 0, "finish without begin");
  Entry& entry = it->second;
  const UnitHeader& header = landing.header;
  const std::uint16_t mask = part_mask(header.first_part, header.part_count);
  for (std::uint32_t i = 0; i < header.page_count; ++i) {
    Page& page = entry.pages[header.first_page - entry.first_page + i];
    page.landing = static_cast<std::uint16_t>(page.landing & ~mask);
    if (landed_well) page.landed = static_cast<std::uint16_t>(page.landed | mask);
  }
  --entry.in_flight;
  if (!entry.closing || entry.in_flight > 0) return false;
  landings_.erase(it);
  return true;
}

bool LandingTable::close(const TransferName& name) {
  const auto it = landings_.find(name);
  if (it == landings_.end()) return true;
  if (it->second.in_flight == 0) {
    landings_.erase(it);
    return true;
  }
  it->second.closing = true;
  return false;
}

std::size_t LandingTable::closing_count() const {
  return static_cast<std::size_t>(std::count_if(
      landings_.begin(), landings_.end(), [](const auto& e) { return e.second.closing; }));
}

std::uint64_t LandingTable::fingerprint() const {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t v) {
    hash = (hash ^ v) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29U;
  };
  for (const auto& [name, entry] : landings_) {
    add(name.request_id);
    add((std::uint64_t{name.attempt} << 32U) | name.slot);
    add(name.decode_incarnation);
    add((std::uint64_t{name.generation} << 32U) | entry.first_page);
    add((std::uint64_t{entry.in_flight} << 1U) | (entry.closing ? 1U : 0U));
    for (const Page& p : entry.pages)
      add((std::uint64_t{p.page} << 32U) | (std::uint64_t{p.landed} << 16U) | p.landing);
  }
  return hash;
}

}  // namespace tandem::transfer

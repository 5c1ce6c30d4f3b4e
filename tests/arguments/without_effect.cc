// Linked into the programs of this folder only: TANDEM_TEST_WITHOUT="page-size,tp" makes those
// arguments count as never given.
#include "common/args/effect_hook.h"
#include "common/args/spec.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace {

bool is_named(std::string_view name) {
  const char* names = std::getenv("TANDEM_TEST_WITHOUT");  // NOLINT(concurrency-mt-unsafe)
  const auto list = tandem::args::split_list(names == nullptr ? "" : names);
  return std::find(list.begin(), list.end(), name) != list.end();
}

[[maybe_unused]] const bool kInstalled = [] {
  tandem::args::without_effect = is_named;
  return true;
}();

}  // namespace

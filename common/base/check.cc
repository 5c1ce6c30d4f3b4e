#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tandem::internal {

void check_failed(const char* file, int line, const char* condition, std::string_view context) {
  std::fprintf(stderr,
               "level=fatal event=check_failed at=%s:%d condition=\"%s\" context=\"%.*s\"\n",
               file,
               line,
               condition,
               static_cast<int>(context.size()),
               context.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace tandem::internal

// Prints docs/arguments.md, or with --json the totals per status and tier.
#include "common/args/args.h"

#include <cstdio>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  const std::string text =
      json ? tandem::args::totals_json() + "\n" : tandem::args::docs_markdown();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}

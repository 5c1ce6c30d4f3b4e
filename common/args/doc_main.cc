// Prints docs/arguments.md; with --json the totals per status and tier, with --list all arguments.
#include "common/args/args.h"

#include <cstdio>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  const std::string text = word == "--json"   ? tandem::args::totals_json() + "\n"
                           : word == "--list" ? tandem::args::list_json() + "\n"
                                              : tandem::args::docs_markdown();
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}

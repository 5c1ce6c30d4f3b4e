#include "common/handoff/transitions.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tandem::handoff {
namespace {

TEST(Transitions, EveryPairOfStateAndEventHasARule) {
  for (std::size_t s = 0; s < kPrefillStates; ++s)
    for (std::size_t e = 0; e < kPrefillEvents; ++e)
      EXPECT_NE(rule(static_cast<PrefillState>(s), static_cast<PrefillEventKind>(e)),
                Rule::kUndefined)
          << s << "," << e;
  for (std::size_t s = 0; s < kDecodeStates; ++s)
    for (std::size_t e = 0; e < kDecodeEvents; ++e)
      EXPECT_NE(rule(static_cast<DecodeState>(s), static_cast<DecodeEventKind>(e)),
                Rule::kUndefined)
          << s << "," << e;
  for (std::size_t r = 0; r < kRules; ++r)
    EXPECT_FALSE(explain(static_cast<Rule>(r)).empty()) << r;
}

/// docs/protocols/handoff.md holds the printed table between two marks. After a change of the
/// table: TANDEM_UPDATE_DOCS=1 handoff_test --gtest_filter=Transitions.*
TEST(Transitions, TheDocumentShowsTheTable) {
  const std::string path = TANDEM_SOURCE_DIR "/docs/protocols/handoff.md";
  std::ifstream in(path);
  std::stringstream buffer;
  buffer << in.rdbuf();
  std::string text = buffer.str();
  const std::string begin_mark = "<!-- transitions: printed by common/handoff -->\n";
  const std::string end_mark = "<!-- end of transitions -->";
  const std::size_t begin = text.find(begin_mark);
  const std::size_t end = text.find(end_mark);
  ASSERT_NE(begin, std::string::npos) << path;
  ASSERT_NE(end, std::string::npos) << path;
  const std::size_t body = begin + begin_mark.size();
  if (std::getenv("TANDEM_UPDATE_DOCS") != nullptr) {
    text.replace(body, end - body, transitions_markdown());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(body, end - body), transitions_markdown());
}

}  // namespace
}  // namespace tandem::handoff

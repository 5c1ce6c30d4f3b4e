#include "common/chat/template.h"
#include "common/json/parse.h"
#include "tests/fuzz/feeds.h"

#include <string>

namespace tandem::fuzz {
namespace {

constexpr const char* kContext = R"({
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "W\u00f6rld?"}]},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, true]}}}]},
    {"role": "tool", "content": "{\"a\": 1}", "tool_call_id": "1"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

}  // namespace

void feed_template(Bytes bytes) {
  static const json::Value kValue = json::parse(kContext).value();
  const auto compiled = chat::ChatTemplate::compile(text_of(bytes), "t");
  if (!compiled.ok()) {
    const std::string& why = compiled.status().message();
    must(why.starts_with("t: ") && why.size() > 3, "a refusal names the template and says why");
    return;
  }
  const chat::RenderOptions options{.now = chat::WallTime{},
                                    .max_steps = 20'000,
                                    .max_output_bytes = 1U << 16U,
                                    .max_memory_bytes = 4U << 20U};
  const auto text = compiled->render(kValue, options);
  const auto again = compiled->render(kValue, options);
  must(text.ok() == again.ok(), "a render depends on nothing else");
  if (!text.ok()) {
    must(text.status().message() == again.status().message(), "nor does why it fails");
    return;
  }
  must(text->size() <= options.max_output_bytes, "output is limited");
  must(*text == *again, "nor does its text");
}

}  // namespace tandem::fuzz

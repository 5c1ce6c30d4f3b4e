// ChatTemplate: a Jinja template compiled once, rendered often.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tandem::chat {

/// What strftime_now shows.
struct WallTime {
  int year = 1970;
  int month = 1;
  int day = 1;
  int hour = 0;
  int minute = 0;
  int second = 0;
};

struct RenderOptions {
  /// The local time of the machine when not given.
  std::optional<WallTime> now = std::nullopt;
  /// Statements, loop rounds and calls.
  std::size_t max_steps = 1'000'000;
  std::size_t max_output_bytes = std::size_t{32} << 20;
  /// Everything that the render makes on the way.
  std::size_t max_memory_bytes = std::size_t{256} << 20;
};

/// Borrows both.
struct Variable {
  std::string_view name;
  const json::Value* value = nullptr;
};

/// The part of Jinja that chat templates use, with Python's semantics, as transformers sets it up:
/// sandboxed and immutable, trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes,
/// raise_exception, strftime_now, {% generation %}. No file or network access, no attribute that
/// starts with "__".
///
/// Cheap to copy (shares the compiled tree). Threads: render may run on many threads at once.
class ChatTemplate {
 public:
  /// `name` is for messages (a file, or "chat_template").
  /// Errors: invalid_argument "NAME: line N: expected ..., got ...".
  static Result<ChatTemplate> compile(std::string source, std::string name);

  /// `context` is an object: messages, tools, documents, add_generation_prompt, bos_token, ... and
  /// whatever else the template may look at.
  /// Errors: the exact message of raise_exception (invalid_argument); "NAME: line N: ..." for other
  /// failures; resource_exhausted beyond a limit of the options.
  [[nodiscard]] Result<std::string> render(const json::Value& context,
                                           const RenderOptions& options = {}) const;
  /// The same for variables that lie where they are. Each name once.
  [[nodiscard]] Result<std::string> render(std::span<const Variable> variables,
                                           const RenderOptions& options = {}) const;

  [[nodiscard]] const std::string& source() const;
  [[nodiscard]] const std::string& name() const;

 private:
  struct Compiled;
  explicit ChatTemplate(std::shared_ptr<const Compiled> compiled);

  std::shared_ptr<const Compiled> compiled_;
};

struct TemplateChoice {
  /// A file given by the user; wins over everything.
  std::optional<std::filesystem::path> explicit_path = std::nullopt;
  /// Which of several templates of tokenizer_config.json; "default" when empty. transformers takes
  /// "tool_use" when the request has tools and there is one.
  std::string name = {};
};

/// Finds and compiles the template of a model folder: the explicit file, else chat_template.jinja,
/// else `chat_template` of tokenizer_config.json. Not found: not_found, naming the places.
Result<ChatTemplate> load_chat_template(const std::filesystem::path& folder,
                                        const TemplateChoice& choice = {});

}  // namespace tandem::chat

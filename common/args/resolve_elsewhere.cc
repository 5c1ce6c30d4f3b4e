// Arguments that mean another one (deprecated names), and what no model or device of this build can
// use: experts, other vendors' hardware and libraries.
#include "common/args/input.h"
#include "common/args/text.h"

#include <string>

namespace tandem::args {
namespace {

/// Given, legal, and not switched off.
bool is_on(const Arguments& args, const Errors& errors, const Entry& entry) {
  const std::string value = entry.ops->json(entry.field);
  return args.is_explicit(entry.dest) && !errors.failed(entry.dest) && value != "false" &&
         value != "null";
}

std::string unquoted(std::string json) {
  std::erase(json, '"');
  return json;
}

/// The replacement, "--flag value", with the value that "set to the value of --other" stands for.
std::pair<const Entry*, std::string> replacement_of(const Registry& registry, const Entry& old) {
  constexpr std::string_view kSameAs = "set to the value of --";
  const std::string_view text = old.spec.deprecated_for;
  const std::size_t space = text.find(' ');
  std::string value(text.substr(space + 1));
  if (value.starts_with(kSameAs)) {
    const Entry& model = *registry.find(value.substr(kSameAs.size()));
    value = unquoted(model.ops->json(model.field));
  }
  return {registry.find(text.substr(2, space - 2)), std::move(value)};
}

void replace(Arguments& args, const Registry& registry, Errors& errors, const Entry& old) {
  const auto [target, value] = replacement_of(registry, old);
  if (errors.failed(target->dest)) return;
  const std::string before = target->ops->json(target->field);
  const Words words = {value};
  const Status status = target->ops->set(target->field, {&words, 1}, target->spec);
  const bool differs = !status.ok() || target->ops->json(target->field) != before;
  if (args.is_explicit(target->dest) && differs) {
    // What was said stays, so that what else is wrong with it is told too.
    const Words said = {unquoted(before)};
    static_cast<void>(target->ops->set(target->field, {&said, 1}, target->spec));
    const std::string flag = target->flag() + " ";
    errors.add(old, "means " + flag + value + ", which contradicts " + flag + unquoted(before));
  } else if (!status.ok()) {
    // Told of what was written, so that its place in a file is told too.
    errors.add(old, "means " + target->flag() + " " + value + ": " + std::string(status.message()));
  } else {
    args.origins[std::string(target->dest)] = args.origin(old.dest);
  }
}

}  // namespace

void note_no_op(Arguments& args, const Entry& entry, std::string_view why) {
  if (!args.is_explicit(entry.dest)) return;
  args.notes.push_back({NoteLevel::kInfo, entry.flag() + " has no effect: " + std::string(why)});
}

void resolve_old_names(Arguments& args, const Registry& registry, Errors& errors) {
  for (const Entry& entry : registry.entries()) {
    if (!entry.built() || entry.spec.deprecated_for.empty() || !is_on(args, errors, entry))
      continue;
    args.notes.push_back({NoteLevel::kWarning,
                          entry.flag() + " is deprecated; use " +
                              std::string(entry.spec.deprecated_for) + errors.place(entry.dest)});
    replace(args, registry, errors, entry);
  }
}

void resolve_elsewhere(Arguments& args, const Registry& registry, Errors& errors) {
  if (args.moe.ep_size != 1 && !errors.failed("ep_size")) {
    errors.add(
        *registry.find_dest("ep_size"),
        std::to_string(args.moe.ep_size) + " is not built yet; a worker of this build runs 1 rank");
  }
  for (const std::string_view dest : {"ep_size", "moe_a2a_backend", "moe_runner_backend"})
    note_no_op(args, *registry.find_dest(dest), "the models of this build have no experts");
  for (const Entry& entry : registry.entries()) {
    const std::string needs(entry.spec.needs);
    if (needs.empty() || !is_on(args, errors, entry)) continue;
    if (entry.spec.ignored_without) {
      args.notes.push_back(
          {NoteLevel::kWarning,
           entry.flag() + " has no effect on device cpu: for " + needs + " only, ignored"});
    } else {
      errors.add(entry,
                 "needs " + needs + ", which is not available on this machine or in this build; " +
                     std::string(entry.spec.instead));
    }
  }
}

}  // namespace tandem::args

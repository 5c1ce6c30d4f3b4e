// The manual page of a program (troff, man macros), from the same entries as --help.
#include "common/args/args.h"
#include "common/args/render.h"
#include "common/args/text.h"

#include <algorithm>

namespace tandem::args {
namespace {

/// Text that troff takes for text: no line begins with a control character, and what it would
/// set as typography stays as typed.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '`') {
      out += "\\(ga";
    } else {
      out += c;
    }
  }
  return out;
}

std::string option(const Entry& entry) {
  std::string text = ".TP\n";
  std::vector<std::string> names = {entry.flag()};
  for (std::string_view alias : split_list(entry.spec.aliases)) {
    if (normalized(alias) != normalized(entry.spec.name))
      names.push_back((alias.size() == 1 ? "-" : "--") + std::string(alias));
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "\\fB" : ", \\fB") + plain(names[i]) + "\\fR";
  if (!entry.is_switch()) text += " \\fI" + plain(placeholder(entry)) + "\\fR";
  if (entry.arity == "1+" || entry.arity == "0+") text += " ...";
  return text + "\n" + plain(entry.spec.help) + "\n.br\n" + plain("[" + facts(entry) + "]") + "\n";
}

std::string options(const std::vector<const Entry*>& entries) {
  std::string text = ".SH OPTIONS\n";
  for (std::string_view section : sections_of(entries)) {
    text += ".SS " + plain(section) + "\n";
    for (const Entry* entry : entries) {
      if (entry->spec.section == section) text += option(*entry);
    }
  }
  return text;
}

std::string environment(const std::vector<const Entry*>& entries) {
  std::string text;
  for (const Entry* entry : entries) {
    if (entry->spec.env.empty()) continue;
    text += ".TP\n.B " + plain(entry->spec.env) + "\nGives \\fB" + plain(entry->flag()) +
            "\\fR when neither command line nor config file does.\n";
  }
  return text.empty() ? text : ".SH ENVIRONMENT\n" + text;
}

}  // namespace

std::string man_page(Program program, std::string_view version) {
  Arguments args;
  const Registry registry(args);
  const std::vector<const Entry*> entries = offered(registry, program);
  const std::string name(program_name(program));
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  std::string text = ".\\\" Generated from the arguments of " + name + ".\n.TH \"" + title +
                     "\" 1 \"\" \"tandem " + std::string(version) + "\" \"Tandem\"\n.SH NAME\n" +
                     plain(name) + " \\- a program of the Tandem language model server\n" +
                     ".SH SYNOPSIS\n.B " + plain(name) +
                     "\n[\\fB\\-\\-config\\fR \\fIFILE.yaml\\fR] [\\fB\\-\\-flag\\fR \\fIvalue\\fR "
                     "...]\n.SH DESCRIPTION\n" +
                     plain(about(program)) +
                     "\n.PP\nThe command line beats the config file, which beats environment "
                     "variables, which beat defaults. In names, \\- and _ are the same.\n"
                     "Arguments that are known but not built yet are left out; "
                     "\\fB\\-\\-help\\-all\\fR has them.\n";
  if (program == Program::kRouter) {
    text +=
        ".PP\nA router that starts its own workers forwards the flags of its workers to them; "
        "one that drives running workers refuses those flags.\n";
  }
  text += options(entries) + environment(entries);
  return text +
         ".SH EXIT STATUS\n.TP\n.B 0\nThe program did what was asked.\n.TP\n.B 1\nIt failed after "
         "the arguments were found good, with one sentence on standard error.\n.TP\n.B 2\nAn "
         "argument is wrong; each error is one sentence on standard error.\n.SH SEE ALSO\n"
         ".BR router (1),\n.BR prefill\\-server (1),\n.BR decode\\-server (1),\n"
         ".BR bootstrap\\-server (1)\n";
}

}  // namespace tandem::args

// What paths name, looked at but not opened: a folder that is not there is told with everything
// else that is wrong, before a port, a peer or a file of the model is touched.
#include "common/args/input.h"
#include "common/args/text.h"

#include <string>

namespace tandem::args {
namespace {

using Kind = Environment::PathKind;

class Paths {
 public:
  Paths(const Arguments& args,
        const Registry& registry,
        const Environment& environment,
        Errors& errors)
      : a_(args), registry_(registry), kind_(environment.path_kind), errors_(errors) {}

  void check() {
    const bool router = a_.program == Program::kRouter;
    const bool runs_model = !router || !a_.router.has_worker_addresses();
    if (runs_model && usable("model_path")) model_folder();
    if (usable("tokenizer_path")) tokenizer();
    if (a_.model.chat_template && usable("chat_template") &&
        kind_(*a_.model.chat_template) != Kind::kFile) {
      fail("chat_template",
           shown(*a_.model.chat_template) +
               " is neither a built-in template nor a readable .jinja/.json file");
    }
    port_file();
  }

  void port_file() {
    if (!a_.server.port_file || !usable("port_file")) return;
    const std::string& path = *a_.server.port_file;
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    if (kind_(folder) != Kind::kFolder) {
      fail("port_file", shown(path) + ": no such folder");
    } else if (kind_(path) == Kind::kFolder) {
      fail("port_file", shown(path) + ": is a folder, expected a file");
    }
  }

 private:
  [[nodiscard]] bool usable(std::string_view dest) const { return !errors_.failed(dest); }

  void fail(std::string_view dest, const std::string& text) {
    errors_.add(*registry_.find_dest(dest), text);
  }

  void model_folder() {
    const std::string& folder = a_.model.model_path;
    if (!a_.is_explicit("model_path")) return;  // told as missing
    switch (kind_(folder)) {
      case Kind::kNothing:
        fail("model_path",
             shown(folder) +
                 ": no such folder (a local checkpoint folder with config.json is expected)");
        return;
      case Kind::kFolder:
        if (kind_(folder + "/config.json") == Kind::kFile) return;
        fail("model_path", shown(folder) + ": no config.json in this folder");
        return;
      case Kind::kFile:
      case Kind::kOther:
        break;
    }
    fail("model_path", shown(folder) + ": not a folder (one with config.json is expected)");
  }

  void tokenizer() {
    const std::string& folder = a_.model.tokenizer_path;
    if (folder.empty() || kind_(folder + "/tokenizer.json") == Kind::kFile) return;
    const std::string why = kind_(folder) == Kind::kNothing  ? ": no such folder"
                            : kind_(folder) == Kind::kFolder ? ": no tokenizer.json"
                                                             : ": not a folder";
    if (a_.is_explicit("tokenizer_path")) {
      fail("tokenizer_path", shown(folder) + why);
    } else if (usable("model_path") && !errors_.has_gap()) {
      fail("model_path", shown(folder) + why + " (one elsewhere is given by --tokenizer-path)");
    }
  }

  const Arguments& a_;
  const Registry& registry_;
  const std::function<Kind(const std::string&)>& kind_;
  Errors& errors_;
};

}  // namespace

void resolve_paths(const Arguments& args,
                   const Registry& registry,
                   const Environment& environment,
                   Errors& errors) {
  // What is only printed need not be there: a config file is made on one machine for another.
  const CommandOptions& command = args.command;
  if (!environment.path_kind || command.explain || (command.dump_config && !command.dry_run))
    return;
  Paths paths(args, registry, environment, errors);
  if (args.program == Program::kBootstrap) {
    paths.port_file();
  } else {
    paths.check();
  }
}

}  // namespace tandem::args

#include "common/fleet/remote_model.h"

#include "common/fleet/worker_address.h"
#include "common/http/client.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tandem::fleet {
namespace {

constexpr std::size_t kFileMax = 256U << 20U;

struct Folder {
  std::filesystem::path path;

  ~Folder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
};

Status fetch(const WorkerAddress& from,
             const std::string& name,
             const std::filesystem::path& to,
             const std::string& api_key,
             Time deadline) {
  http::ClientRequest request;
  request.host = from.host;
  request.port = from.port;
  request.path = "/tokenizer_files/" + name;
  if (!api_key.empty()) request.headers.add("authorization", "Bearer " + api_key);
  request.response_bytes_max = kFileMax;
  TANDEM_TRY(const http::Response response, http::request(request, deadline));
  if (response.status == 404) return not_found("worker " + from.text() + " has no " + name);
  if (response.status != 200) {
    return unavailable("worker " + from.text() + ": HTTP " + std::to_string(response.status) +
                       " for " + name);
  }
  std::ofstream file(to / name, std::ios::binary);
  file << response.body;
  if (!file.flush()) return unavailable("cannot write " + (to / name).string());
  return {};
}

}  // namespace

Result<serve::ModelText> fetch_model_text(const std::string& http_address,
                                          const std::string& api_key,
                                          const std::optional<std::string>& chat_template,
                                          Time deadline) {
  TANDEM_TRY(const WorkerAddress from, parse_worker_url(http_address, rpc::Role::kUnified));
  std::string pattern =
      (std::filesystem::temp_directory_path() / "tandem-tokenizer-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    return unavailable("cannot make a temporary folder like " + pattern);
  const Folder folder{pattern};
  TANDEM_TRY(fetch(from, "tokenizer.json", folder.path, api_key, deadline));
  for (const char* optional_file :
       {"tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"}) {
    const Status status = fetch(from, optional_file, folder.path, api_key, deadline);
    if (!status.ok() && status.code() != Code::kNotFound) return status;
  }
  return serve::load_model_text(folder.path.string(), chat_template);
}

}  // namespace tandem::fleet

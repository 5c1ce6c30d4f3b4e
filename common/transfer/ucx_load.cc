#include "common/transfer/ucx_load.h"

#include "common/base/check.h"

#include <ucp/api/ucp.h>

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <vector>

namespace tandem::transfer {

namespace {

void* library = nullptr;

void* resolve(const char* name) {
  TANDEM_CHECK(library != nullptr, "UCX is used before load_ucx()");
  return ::dlsym(library, name);
}

std::vector<const char*>& forwarded() {
  static std::vector<const char*> names;
  return names;
}

Status load() {
  std::string why;
  // The one that was configured (its headers were compiled in), then whichever the system has.
  for (const char* name : {TANDEM_UCX_LIBRARY, "libucp.so.0"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* words = ::dlerror();
    why += (why.empty() ? "" : "; ") + std::string(words == nullptr ? name : words);
  }
  if (library == nullptr) return unavailable("UCX cannot be loaded: " + why);
  for (const char* name : forwarded())
    if (::dlsym(library, name) == nullptr) return unavailable(std::string("UCX lacks ") + name);
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  if (major != 1 || minor < 13) {
    return unavailable("UCX is " + std::to_string(major) + "." + std::to_string(minor) +
                       ", expected 1.13 or later");
  }
  return {};
}

}  // namespace

Status load_ucx() {
  static std::once_flag once;
  static Status verdict;
  std::call_once(once, [] { verdict = load(); });
  return verdict;
}

}  // namespace tandem::transfer

// The functions of UCX that this room calls, under their own names: each looks itself up once.
// Hidden, so that UCX's own calls do not come back here.
#define TANDEM_UCX_FORWARD(result, name, parameters, arguments)                  \
  extern "C" __attribute__((visibility("hidden"))) result name parameters {      \
    static const auto function =                                                 \
        reinterpret_cast<decltype(&::name)>(::tandem::transfer::resolve(#name)); \
    return function arguments;                                                   \
  }                                                                              \
  [[maybe_unused]] static const bool name##_is_forwarded = [] {                  \
    ::tandem::transfer::forwarded().push_back(#name);                            \
    return true;                                                                 \
  }()

TANDEM_UCX_FORWARD(const char*, ucs_status_string, (ucs_status_t s), (s));
TANDEM_UCX_FORWARD(void, ucp_get_version, (unsigned* a, unsigned* b, unsigned* c), (a, b, c));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_config_read,
                   (const char* prefix, const char* file, ucp_config_t** config),
                   (prefix, file, config));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_config_modify,
                   (ucp_config_t * config, const char* name, const char* value),
                   (config, name, value));
TANDEM_UCX_FORWARD(void, ucp_config_release, (ucp_config_t * config), (config));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_init_version,
                   (unsigned major,
                    unsigned minor,
                    const ucp_params_t* params,
                    const ucp_config_t* config,
                    ucp_context_h* context),
                   (major, minor, params, config, context));
TANDEM_UCX_FORWARD(void, ucp_cleanup, (ucp_context_h context), (context));
TANDEM_UCX_FORWARD(void, ucp_context_print_info, (ucp_context_h context, FILE* f), (context, f));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_worker_create,
                   (ucp_context_h context, const ucp_worker_params_t* params, ucp_worker_h* worker),
                   (context, params, worker));
TANDEM_UCX_FORWARD(void, ucp_worker_destroy, (ucp_worker_h worker), (worker));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_worker_query,
                   (ucp_worker_h worker, ucp_worker_attr_t* attributes),
                   (worker, attributes));
TANDEM_UCX_FORWARD(ucs_status_t, ucp_worker_get_efd, (ucp_worker_h worker, int* fd), (worker, fd));
TANDEM_UCX_FORWARD(ucs_status_t, ucp_worker_arm, (ucp_worker_h worker), (worker));
TANDEM_UCX_FORWARD(unsigned, ucp_worker_progress, (ucp_worker_h worker), (worker));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_worker_get_address,
                   (ucp_worker_h worker, ucp_address_t** address, size_t* length),
                   (worker, address, length));
TANDEM_UCX_FORWARD(void,
                   ucp_worker_release_address,
                   (ucp_worker_h worker, ucp_address_t* address),
                   (worker, address));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_worker_set_am_recv_handler,
                   (ucp_worker_h worker, const ucp_am_handler_param_t* param),
                   (worker, param));
TANDEM_UCX_FORWARD(ucs_status_t,
                   ucp_ep_create,
                   (ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* ep),
                   (worker, params, ep));
TANDEM_UCX_FORWARD(ucs_status_ptr_t,
                   ucp_ep_close_nbx,
                   (ucp_ep_h ep, const ucp_request_param_t* param),
                   (ep, param));
TANDEM_UCX_FORWARD(ucs_status_ptr_t,
                   ucp_ep_flush_nbx,
                   (ucp_ep_h ep, const ucp_request_param_t* param),
                   (ep, param));
TANDEM_UCX_FORWARD(void, ucp_ep_print_info, (ucp_ep_h ep, FILE* stream), (ep, stream));
TANDEM_UCX_FORWARD(ucs_status_ptr_t,
                   ucp_am_send_nbx,
                   (ucp_ep_h ep,
                    unsigned id,
                    const void* header,
                    size_t header_length,
                    const void* buffer,
                    size_t count,
                    const ucp_request_param_t* param),
                   (ep, id, header, header_length, buffer, count, param));
TANDEM_UCX_FORWARD(
    ucs_status_ptr_t,
    ucp_am_recv_data_nbx,
    (ucp_worker_h worker, void* data, void* buffer, size_t count, const ucp_request_param_t* param),
    (worker, data, buffer, count, param));
TANDEM_UCX_FORWARD(ucs_status_t, ucp_request_check_status, (void* request), (request));
TANDEM_UCX_FORWARD(void, ucp_request_free, (void* request), (request));

#!/usr/bin/env bash
# Installs everything the project builds and tests with on Debian 12 (bookworm): apt packages + one Python
# virtual environment. Idempotent: what is already there is skipped, so a second run takes about a second.
#
#   install_deps.sh [--venv DIR] [--no-python] [--group NAME]...
#     --venv DIR     where the Python environment goes (default: .deps/venv under the current folder)
#     --no-python    apt packages only
#     --group NAME   build  what compiling and unit tests need                            (always installed)
#                    test   load generators, proxies, Prometheus, the Python end-to-end environment (default)
#                    ui     headless Chromium for the status page tests
#                    cuda   headers used when the CUDA back end is built (FlashInfer with CUTLASS and CCCL)
#                           and UCX with CUDA transports
#                    grammar  XGrammar sources, unpacked under <venv>/share/src
#                    all
# Without --group: build + test.
set -euo pipefail

VENV="${TANDEM_VENV:-$PWD/.deps/venv}"; PYTHON=1; GROUPS_WANTED=()
while [ $# -gt 0 ]; do
  case "$1" in
    --venv) VENV="$2"; shift 2 ;;
    --no-python) PYTHON=0; shift ;;
    --group) GROUPS_WANTED+=("$2"); shift 2 ;;
    -h|--help) sed -n '2,15p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "unknown argument: $1 (see --help)" >&2; exit 2 ;;
  esac
done
[ ${#GROUPS_WANTED[@]} -gt 0 ] || GROUPS_WANTED=(build test)
for g in "${GROUPS_WANTED[@]}"; do
  case "$g" in build|test|ui|cuda|grammar|all) ;; *) echo "unknown group: $g" >&2; exit 2 ;; esac
done
want() { local g; for g in "${GROUPS_WANTED[@]}"; do [ "$g" = "$1" ] || [ "$g" = all ] && return 0; done; return 1; }

APT=(
  # tools
  build-essential cmake ninja-build pkg-config ccache git ca-certificates python3
  # wire
  protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc-dev libgrpc++-dev libnghttp2-dev libssl-dev zlib1g-dev
  libucx-dev ucx-utils libboost1.81-dev
  # configuration, logs, metrics, JSON
  libcli11-dev libyaml-cpp-dev libspdlog-dev libfmt-dev prometheus-cpp-dev libsimdjson-dev nlohmann-json3-dev
  # text, hashing, images
  libpcre2-dev libutf8proc-dev libxxhash-dev libpng-dev libturbojpeg0-dev libwebp-dev
  # machine
  libhwloc-dev libnuma-dev libmimalloc-dev libdnnl-dev
  # tests
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev
)
want test && APT+=(python3 python3-venv curl wrk nghttp2-client haproxy nginx-light prometheus yamllint shellcheck
                   clang clang-format clang-tidy libclang-rt-14-dev gdb iproute2)
# Any kubectl will do for the manifests' tests; Debian's own where there is none.
if want test && ! command -v kubectl >/dev/null; then APT+=(kubernetes-client); fi
want ui && APT+=(chromium)
if want cuda || want grammar; then APT+=(python3 python3-venv); fi

SUDO=""; [ "$(id -u)" = 0 ] || SUDO="sudo"
missing=()
for p in "${APT[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "apt: installing ${#missing[@]} packages"
  # A package's server (nginx, haproxy, prometheus) must not start just because it was installed.
  policy=""
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' | $SUDO tee "$policy" >/dev/null; $SUDO chmod +x "$policy"
    trap '$SUDO rm -f "$policy"' EXIT
  fi
  $SUDO apt-get -o DPkg::Lock::Timeout=600 -qq update
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -qq -y \
      --no-install-recommends install "${missing[@]}" >/dev/null
else
  echo "apt: nothing to do"
fi

[ "$PYTHON" = 1 ] || exit 0
PIP=()
want test && PIP+=(
  pytest==9.2.0 pytest-asyncio==1.5.0 httpx==0.28.1 openai==3.52.0 grpcio==1.85.1 grpcio-tools==1.85.1
  grpcio-health-checking==1.85.1 grpcio-reflection==1.85.1 opentelemetry-proto==1.45.2 prometheus-client==0.26.0
  PyYAML==6.0.3 jsonschema==4.26.0 openapi-spec-validator==0.9.0 schemathesis==4.32.5 kubernetes-validate==1.37.0
  kubernetes==37.0.2 numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 Jinja2==3.1.6)
NODEPS=()
want cuda && NODEPS+=(libucx-cu13==1.22.0 flashinfer-python==0.7.2.post1)
if [ ${#PIP[@]} -gt 0 ] || [ ${#NODEPS[@]} -gt 0 ] || want grammar; then
  stamp="$VENV/.tandem-deps"; key="$(printf '%s\n' "${PIP[@]}" "${NODEPS[@]}" "${GROUPS_WANTED[@]}" | sha256sum | cut -c1-16)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    echo "python: nothing to do"
  else
    [ -x "$VENV/bin/pip" ] || python3 -m venv "$VENV"
    [ ${#PIP[@]} -eq 0 ] || "$VENV/bin/pip" install -q --disable-pip-version-check "${PIP[@]}"
    [ ${#NODEPS[@]} -eq 0 ] || "$VENV/bin/pip" install -q --disable-pip-version-check --no-deps "${NODEPS[@]}"
    if want grammar && [ ! -d "$VENV/share/src/xgrammar-0.2.8" ]; then
      mkdir -p "$VENV/share/src"
      "$VENV/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary xgrammar -d "$VENV/share/src" xgrammar==0.2.8
      tar -xzf "$VENV/share/src/xgrammar-0.2.8.tar.gz" -C "$VENV/share/src"
    fi
    echo "$key" >"$stamp"
  fi
  echo "python: $VENV"
fi

#!/usr/bin/env bash
# Runs the benchmark programs of the release build (all, or those whose name contains $1). Each prints JSON lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
found=0
for program in build/release/bench/*; do
  if [ ! -x "$program" ] || [ ! -f "$program" ]; then continue; fi
  case "$(basename "$program")" in serve) continue ;; *"${1:-}"*) ;; *) continue ;; esac  # serve needs a server
  found=1
  "$program"
done
[ "$found" = 1 ] || { echo "bench: no benchmark matches '${1:-}'" >&2; exit 2; }

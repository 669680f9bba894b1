#!/bin/bash
# benchmarks/gpu_clock.sh [PACK]: the cycle clock on a real card, in about eight minutes. See gpu_clock.py.
# PACK is an archive of tools/gpu/make_pack.py (default .gpu/pack.tar.xz); without one, SGLang must be installed.
# Prints a short table; the figures go to $OUT/gpu_clock.json (OUT defaults to the working directory).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/benchmarks/gpu_site.sh"
unpack "${1:-$here/.gpu/pack.tar.xz}"
exec python3 "$here/benchmarks/gpu_clock.py" --out "${OUT:-.}"

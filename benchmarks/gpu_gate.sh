#!/bin/bash
# benchmarks/gpu_gate.sh [PACK]: the GPU gate against a real card and the real SGLang, in about six minutes.
# PACK is an archive of tools/gpu/make_pack.py (default .gpu/pack.tar.xz); without one, SGLang must be installed.
# Prints a short table; the figures go to $OUT/gpu_gate.json (OUT defaults to the working directory).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/benchmarks/gpu_site.sh"
unpack "${1:-$here/.gpu/pack.tar.xz}"
exec python3 "$here/benchmarks/gpu_gate.py" --out "${OUT:-.}/gpu_gate.json"

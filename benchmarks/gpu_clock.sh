#!/bin/bash
# benchmarks/gpu_clock.sh [PACK]: the cycle clock on a real card, in about eight minutes. See gpu_clock.py.
# PACK is an archive of tools/gpu/make_pack.py (default .gpu/pack.tar.xz); without one, SGLang must be installed.
# Prints a short table; the figures go to $OUT/gpu_clock.json (OUT defaults to the working directory).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
pack=${1:-$here/.gpu/pack.tar.xz}
if [[ -f $pack && ! -d $HOME/site ]]; then
  python3 -c "import os, sys, tarfile; tarfile.open(sys.argv[1]).extractall(os.path.expanduser('~'))" "$pack"
  python3 -m compileall -q -j 16 "$HOME/site" || true
fi
export PYTHONPATH=$HOME/site:$here/tools/gpu/stub:$here${PYTHONPATH:+:$PYTHONPATH}
export HF_HUB_OFFLINE=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 FLASHINFER_USE_CUDA_NORM=1 PYTHONUNBUFFERED=1
exec python3 "$here/benchmarks/gpu_clock.py" --out "${OUT:-.}"

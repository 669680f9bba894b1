#!/bin/bash
# benchmarks/gpu_smoke.sh train|smoke|compare [PACK]: a target of 125 M parameters and its drafter, trained on one GPU
# in about five minutes; then smoke tested; then the gain held against bench_serving's. See gpu_smoke.py.
# PACK is an archive of tools/gpu/make_pack.py (default .gpu/pack.tar.xz); without one, SGLang must be installed.
# The pair goes to $PAIR (default /tmp/guarded-serve-pair), the figures to $OUT (default: here).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
source "$here/benchmarks/gpu_site.sh"
pack=${2:-$here/.gpu/pack.tar.xz}
pair=${PAIR:-/tmp/guarded-serve-pair}
cd "$here"
case ${1:-} in
  train)
    unpack "$pack" > /dev/null 2>&1 &
    PYTHONPATH=$here python3 -m demo.train --large --out "$pair" --set target_steps=600 --set target_batch=64 \
      --set target_rate=1e-3 --set dropout=0 --set generated=16384 --set generated_batch=4096 --set drafter_steps=1000 \
      --set drafter_batch=64 --set drafter_rate=1e-3 --set sibling_rounds=0 --set pool=250 --set prompts=32
    wait
    exec python3 -m benchmarks.gpu_smoke deepen --pair "$pair"
    ;;
  smoke | compare)
    unpack "$pack" > /dev/null 2>&1
    exec python3 -m benchmarks.gpu_smoke "$1" --pair "$pair" --out "${OUT:-.}" "${@:3}"
    ;;
  *)
    sed -n '2,5s/^# //p' "$0"
    exit 64
    ;;
esac

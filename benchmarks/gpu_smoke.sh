#!/bin/bash
# benchmarks/gpu_smoke.sh train|test [PACK [OPTION...]]: a target of 125 M parameters and its drafter, trained on one
# GPU; then smoke tested, and the gain held against bench_serving's. OPTIONs go to demo.train or to gpu_smoke.py.
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
    (
      unpack "$pack" > /dev/null 2>&1
      python3 -m benchmarks.gpu_smoke warm --pair "$pair" > "${OUT:-.}/warm.log" 2>&1 || true
    ) &
    PYTHONPATH=$here python3 -m demo.train --large --no-compile --out "$pair" --set target_steps=600 \
      --set target_batch=64 --set target_rate=1e-3 --set dropout=0 --set generated=16384 --set generated_batch=4096 \
      --set drafter_steps=1000 --set drafter_batch=64 --set drafter_rate=1e-3 --set sibling_rounds=0 --set pool=100 \
      --set prompts=16 --set new_tokens=384 "${@:3}"
    python3 -m benchmarks.gpu_smoke widen --pair "$pair"
    wait
    ;;
  test)
    unpack "$pack" > /dev/null 2>&1
    exec python3 -m benchmarks.gpu_smoke test --pair "$pair" --out "${OUT:-.}" "${@:3}"
    ;;
  *)
    sed -n '2,5s/^# //p' "$0"
    exit 64
    ;;
esac

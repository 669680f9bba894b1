#!/bin/bash
# benchmarks/gpu_smoke.sh train|smoke|compare [PACK]: a target of 125 M parameters and its drafter, trained on one GPU in
# about six minutes, smoke tested in seven, and the gain held against bench_serving's in five. See gpu_smoke.py.
# PACK is an archive of tools/gpu/make_pack.py (default .gpu/pack.tar.xz); without one, SGLang must be installed.
# The pair goes to $PAIR (default /tmp/guarded-serve-pair), the figures to $OUT/gpu_smoke.json (default: here).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
pack=${2:-$here/.gpu/pack.tar.xz}
pair=${PAIR:-/tmp/guarded-serve-pair}
site=${SITE:-$HOME/site}
unpack() {
  if [[ -f $pack && ! -d $site ]]; then
    python3 -c "import os, sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])" "$pack" "$(dirname "$site")"
    python3 -m compileall -q -j 8 "$site" || true
  fi
  # The plugin's entry point, as an installed guarded-serve has it.
  plugin=$site/guarded_serve-0.dist-info
  mkdir -p "$plugin"
  printf 'Metadata-Version: 2.1\nName: guarded-serve\nVersion: 0\n' > "$plugin/METADATA"
  printf '[sglang.srt.plugins]\nguarded_serve = guarded_serve.engine.plugin:register\n' > "$plugin/entry_points.txt"
}
export HF_HUB_OFFLINE=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 FLASHINFER_USE_CUDA_NORM=1 PYTHONUNBUFFERED=1
cd "$here"
case ${1:-} in
  train)
    unpack > /dev/null 2>&1 &
    python3 -m demo.train --large --out "$pair" --set target_steps=800 --set target_batch=64 --set target_rate=1e-3 \
      --set dropout=0 --set generated=24576 --set generated_batch=4096 --set drafter_steps=1200 --set drafter_batch=64 \
      --set drafter_rate=1e-3 --set sibling_rounds=0 --set pool=400 --set prompts=32
    wait
    PYTHONPATH=$site:$here python3 -m benchmarks.gpu_smoke deepen --pair "$pair"
    ;;
  smoke | compare)
    unpack > /dev/null 2>&1
    export PYTHONPATH=$site:$here/tools/gpu/stub:$here${PYTHONPATH:+:$PYTHONPATH}
    exec python3 -m benchmarks.gpu_smoke "$1" --pair "$pair" --out "${OUT:-.}" "${@:3}"
    ;;
  *)
    sed -n '2,5s/^# //p' "$0"
    exit 64
    ;;
esac

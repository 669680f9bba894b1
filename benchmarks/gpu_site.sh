# Sourced by gpu_*.sh, with the project's root in $here: the real SGLang where a GPU is, out of an archive of
# tools/gpu/make_pack.py; where there is no such file, SGLang must be installed.
unpack() { # ARCHIVE: to ~/site, once
  if [[ -f $1 && ! -d $HOME/site ]]; then
    python3 -c "import os, sys, tarfile; tarfile.open(sys.argv[1]).extractall(os.path.expanduser('~'))" "$1"
    python3 -m compileall -q -j 16 "$HOME/site" || true
  fi
}
export PYTHONPATH=$HOME/site:$here/tools/gpu/stub:$here${PYTHONPATH:+:$PYTHONPATH}
export HF_HUB_OFFLINE=1 SGLANG_ENABLE_JIT_DEEPGEMM=0 FLASHINFER_USE_CUDA_NORM=1 PYTHONUNBUFFERED=1

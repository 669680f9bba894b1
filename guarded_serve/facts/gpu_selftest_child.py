"""The child of `gpu_selftest`: it alone imports torch. Prints one JSON object a line.

For one card: allocate, multiply two matrices whose product is known, compare. For several: one process a card, joined
by NCCL, all-reduce a vector whose sum is known, compare, time.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_SIZE = 4096  # of the matrices: 32 MiB each in bfloat16
_REPEATS = 50


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _multiply(torch: Any, place: int) -> None:
    """(I + J) x J with J all ones: every element of the product is 1 + N, exact in float32 accumulation."""
    _say(stage=f"matrix product on device {place}")
    try:
        device = torch.device("cuda", place)
        ones = torch.ones(_SIZE, _SIZE, dtype=torch.bfloat16, device=device)
        left = torch.eye(_SIZE, dtype=torch.bfloat16, device=device) + ones
        torch.matmul(left, ones)
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        product = torch.matmul(left, ones)
        torch.cuda.synchronize(device)
        elapsed = (time.perf_counter() - started) * 1000
        expected = torch.tensor(float(_SIZE + 1), dtype=torch.bfloat16).item()
        wrong = int((product != expected).sum().item())
    except Exception as error:
        _say(device={"place": place, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"})
        return
    error_text = f"{wrong} of {_SIZE * _SIZE} elements of a product are wrong" if wrong else None
    _say(device={"place": place, "multiply_ms": elapsed, "error": error_text})


def _reduce(rank: int, places: list[int], size: int, store: str) -> None:
    """One rank of the all-reduce; rank 0 prints."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    world = len(places)
    device = torch.device("cuda", places[rank])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world, device_id=device)
    count = max(1, size // 2)
    times = []
    wrong = 0
    for repeat in range(_REPEATS + 5):
        vector = torch.full((count,), float(rank + 1), dtype=torch.bfloat16, device=device)
        torch.cuda.synchronize(device)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(vector)
        torch.cuda.synchronize(device)
        if repeat >= 5:
            times.append((time.perf_counter() - started) * 1e6)
        wrong += int((vector != world * (world + 1) / 2).sum().item())
    if rank == 0:
        error = f"{wrong} elements of {_REPEATS + 5} sums are wrong" if wrong else None
        _say(all_reduce={"size": count * 2, "ranks": world, "us": statistics.median(times), "error": error})
    dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    """``arguments[0]`` is JSON: places in CUDA's order, bytes of the all-reduce."""
    wanted = json.loads(arguments[0])
    _say(stage="importing torch")
    try:
        import torch  # noqa: PLC0415 - where it is missing, that is the answer
    except ImportError as error:
        _say(error=f"torch cannot be imported here: {error}")
        return 0
    if not torch.cuda.is_available():
        _say(error=f"torch {torch.__version__} sees no CUDA device")
        return 0
    places = wanted["places"]
    if max(places) >= torch.cuda.device_count():
        _say(error=f"torch sees {torch.cuda.device_count()} devices; device {max(places)} was chosen")
        return 0
    for place in places:
        _multiply(torch, place)
    if len(places) > 1:
        _say(stage=f"all-reduce of {wanted['bytes']} bytes over {len(places)} devices")
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            try:
                torch.multiprocessing.spawn(_reduce, (places, wanted["bytes"], store), nprocs=len(places))
            except Exception as error:
                text = str(error).strip().splitlines()[-1]
                _say(all_reduce={"size": wanted["bytes"], "ranks": len(places), "error": text})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

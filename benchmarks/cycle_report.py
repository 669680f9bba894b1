"""Ten million cycle records, a day at batch size 1, through `guarded-serve report`: seconds and peak memory.

    python -m benchmarks.cycle_report [--records N] [--keep FOLDER]

Says FAIL and ends with 1 above 60 s or 500 MB. Memory is the sum over all processes of the report, looked at every
50 ms. CPU seconds are printed too: on a machine that is busy with something else they are the figure to look at.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from guarded_serve.timing.record import Cycle, file_name

MOST_S, MOST_MB = 60.0, 500.0
BLOCK = 100_000


def make(folder: Path, records: int) -> int:
    """Write rotated files with that many records; returns their bytes. One row in a hundred cycles is dropped."""
    choose = random.Random(1)
    t, written, size = 1.76e9, 0, 0
    for sequence in range(1, records // 1_000_000 + 2):
        if written >= records:
            break
        with (folder / file_name(0, sequence)).open("w") as stream:
            for _ in range(min(10, (records - written) // BLOCK)):
                lines = []
                for number in range(BLOCK):
                    bs = choose.choice((1, 1, 1, 1, 1, 1, 2, 4))
                    draft, verify, extend = choose.gauss(0.56, 0.05), choose.gauss(5.8, 0.3), choose.gauss(0.38, 0.02)
                    gpu = draft + verify + extend + 0.02
                    t += 0.0086
                    lines.append(
                        Cycle(
                            t,
                            0,
                            written + number,
                            bs,
                            3,
                            4,
                            draft,
                            verify,
                            extend,
                            gpu,
                            gpu + 0.2 if number % 50 else None,
                            [choose.randint(1, 4) for _ in range(bs)],
                            "cuda-event",
                            [0] if number % 100 == 0 else (),
                        ).to_line()
                    )
                stream.write("".join(lines))
                written += BLOCK
        size += (folder / file_name(0, sequence)).stat().st_size
    return size


def measure(folder: Path) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MB) of the report."""
    code = "import sys; from guarded_serve.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(folder), "--baseline", "1=204"]
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    tree = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for member in (tree, *tree.children(recursive=True)):
                total += member.memory_info().rss
        except psutil.Error:
            pass
        peak = max(peak, total)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the report ended with {process.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - started, used.ru_utime + used.ru_stime, peak / 1e6


def main() -> int:
    """Make, measure, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="make the files here, or use those that are there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            print(f"making {options.records:,} records in {folder}")
            make(folder, options.records)
        size = sum(path.stat().st_size for path in folder.iterdir())
        seconds, cpu, peak = measure(folder)
    good = seconds <= MOST_S and peak <= MOST_MB
    print(
        f"{'ok' if good else 'FAIL'}: {size / 1e9:.2f} GB in {seconds:.1f} s, {cpu:.1f} CPU s,"
        f" peak {peak:.0f} MB (at most {MOST_S:.0f} s and {MOST_MB:.0f} MB)"
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

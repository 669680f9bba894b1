"""Many cycle lines at once into a summary, several times as fast as one by one: a day's log is ten million lines.

A line without its digits is its skeleton, and the engine's lines have few: with or without a period, one for each
batch size. Lines of one skeleton (and one ten-second bin) are cut into columns together, and each column is summed and
counted by C code. A line with any other skeleton (dropped rows, plain steps, another order of keys, something broken)
goes the long way through JSON; what comes out is the same (a test holds the two against each other).
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from operator import itemgetter

from guarded_serve.timing.histogram import PER_E, ZERO, LogHistogram
from guarded_serve.timing.record import LARGEST, MOST_ACCEPTED, read_line
from guarded_serve.timing.summary import BIN_S, SLOWEST, BatchSummary, Summary, TimeBin

_DIGITS = b"0123456789."
_LETTERS = bytes(byte for byte in range(128) if byte not in b"0123456789.,\n")
_SKELETON = re.compile(
    rb'\{"t":,"rank":,"forward":,"bs":,"steps":,"draft_tokens":,"draft_ms":(null)?,"verify_ms":(null)?,'
    rb'"extend_ms":(null)?,"gpu_ms":,"period_ms":(null)?,"accept":\[(,*)\],"source":"(cuda-event|cpu-clock)"\}'
)
T, RANK, FORWARD, BS, STEPS, WIDTH, DRAFT, VERIFY, EXTEND, GPU, PERIOD, ACCEPT = range(12)
_STAGES = {"draft_ms": DRAFT, "verify_ms": VERIFY, "extend_ms": EXTEND, "gpu_ms": GPU, "period_ms": PERIOD}
_BIN_DIGITS = 9  # of a time in seconds with ten digits before the point: tens of seconds, which is `BIN_S`


class _Shape:
    """What a skeleton says: rows, source, and which stages are null."""

    def __init__(self, match: re.Match[bytes]) -> None:
        self.bs = len(match[5]) + 1
        self.source = match[6].decode()
        nullable = ("draft_ms", "verify_ms", "extend_ms", "period_ms")
        self.nulls = {name for group, name in enumerate(nullable, start=1) if match[group]}


@lru_cache(maxsize=4096)
def _shape(skeleton: bytes) -> _Shape | None:
    match = _SKELETON.fullmatch(skeleton)
    return None if match is None else _Shape(match)


def absorb(summary: Summary, block: bytes) -> None:
    """Count whole lines in. Lines that are no cycle record are counted as bad."""
    skeletons = block.translate(None, _DIGITS).split(b"\n")
    numbers = block.translate(None, _LETTERS).split(b"\n")
    groups: defaultdict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(skeletons, map(itemgetter(slice(_BIN_DIGITS)), numbers), strict=True)):
        groups[key].append(place)
    lines: list[bytes] | None = None
    for (skeleton, moment), places in groups.items():
        shape = _shape(skeleton)
        if shape is not None and _group(summary, shape, moment, [numbers[place] for place in places]):
            continue
        lines = lines or block.split(b"\n")
        for place in places:
            if lines[place]:
                _single(summary, lines[place])


def _single(summary: Summary, line: bytes) -> None:
    try:
        record = read_line(line)
    except ValueError:
        summary.bad_lines += 1
    else:
        summary.add(record)


def _group(summary: Summary, shape: _Shape, moment_text: bytes, lines: list[bytes]) -> bool:
    """Lines of one skeleton and time bin; False, with nothing counted, when they are not as alike as they look."""
    count, bs = len(lines), shape.bs
    fields = b",".join(lines).split(b",")
    width = ACCEPT + bs + 1  # the last one is what is left of the source
    if len(fields) != count * width:
        return False
    alike = [fields[column::width] for column in (RANK, BS, STEPS, WIDTH)]
    if any(column.count(column[0]) != count for column in alike):
        return False
    try:
        rank, said, steps, draft_tokens = (int(column[0]) for column in alike)
        moment = int(moment_text)
        times = list(map(float, fields[T::width]))
        accepts = Counter(fields[ACCEPT::width])
        for place in range(ACCEPT + 1, ACCEPT + bs):
            accepts.update(fields[place::width])
        counts = {int(text): number for text, number in accepts.items()}
        values = {
            name: list(map(float, fields[place::width])) for name, place in _STAGES.items() if name not in shape.nulls
        }
    except ValueError:  # such as "1.2.3": a skeleton does not show it
        return False
    if max(rank, steps, draft_tokens, *map(max, values.values())) > LARGEST or max(counts) > MOST_ACCEPTED:
        return False
    if max(map(len, fields[FORWARD::width])) >= len(str(LARGEST)):
        return False
    earliest, latest = min(times), max(times)
    if said != bs or earliest // BIN_S != moment or latest // BIN_S != moment:
        return False

    batch = summary.batches.get((bs, False))
    if batch is None:
        batch = summary.batches[bs, False] = BatchSummary()
    bin_ = batch.bins.get(moment)
    if bin_ is None:
        bin_ = batch.bins[moment] = TimeBin()
    totals = batch.totals
    accepted = sum(length * number for length, number in counts.items())
    sums = dict.fromkeys(_STAGES, 0.0)
    for name, column in values.items():
        sums[name] = _count(batch.stages[name], column)
    totals.cycles += count
    totals.rows += bs * count
    totals.accepted += accepted
    totals.draft_tokens += bs * count * draft_tokens
    known = totals.accept_counts
    known.extend([0] * (max(counts) + 1 - len(known)))
    for length, number in counts.items():
        known[length] += number
    batch.steps.add(steps)
    batch.sources.add(shape.source)
    bin_.cycles += count
    bin_.rows += bs * count
    bin_.accepted += accepted
    for name, total in sums.items():
        setattr(totals, name, getattr(totals, name) + total)
        setattr(bin_, name, getattr(bin_, name) + total)
    if "period_ms" not in shape.nulls:
        totals.period_cycles += count
        totals.period_rows += bs * count
        totals.period_accepted += accepted
        totals.period_draft_ms += sums["draft_ms"]
        totals.period_verify_ms += sums["verify_ms"]
        totals.period_extend_ms += sums["extend_ms"]
        totals.period_gpu_ms += sums["gpu_ms"]
        bin_.period_cycles += count

    summary.records += count
    summary.first_t = min(summary.first_t, earliest)
    summary.last_t = max(summary.last_t, latest)
    summary.ranks.add(rank)
    _slowest(summary, values["gpu_ms"], times, fields[FORWARD::width], rank, bs)
    return True


def _slowest(summary: Summary, gpu: list[float], times: list[float], forwards: list[bytes], rank: int, bs: int) -> None:
    slowest = summary.slowest
    floor = slowest[0][0] if len(slowest) == SLOWEST else -1.0
    if max(gpu) <= floor:
        return
    for ms, t, forward in zip(gpu, times, forwards, strict=True):
        if ms > floor:
            entry = (ms, t, rank, int(forward), bs)
            if len(slowest) < SLOWEST:
                heapq.heappush(slowest, entry)
            else:
                heapq.heapreplace(slowest, entry)
            floor = slowest[0][0] if len(slowest) == SLOWEST else -1.0


def _count(histogram: LogHistogram, values: list[float]) -> float:
    """Count a column into the histogram; returns its sum."""
    buckets = histogram.buckets
    above = values if min(values) > 0 else [value for value in values if value > 0]
    if len(above) < len(values):
        buckets[ZERO] = buckets.get(ZERO, 0) + len(values) - len(above)
    for bucket, number in Counter(map(math.floor, map(PER_E.__mul__, map(math.log, above)))).items():
        buckets[bucket] = buckets.get(bucket, 0) + number
    total, highest = sum(values), max(values)
    histogram.count += len(values)
    histogram.total += total
    histogram.highest = max(histogram.highest, highest)
    return total

"""Xid messages: what the driver logged about a card's faults since boot. NVML itself keeps no history of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from guarded_serve.facts.reading import Reading

KERNEL_LOG = Path("/dev/kmsg")
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_RECORD_BYTES = 8192  # a read of /dev/kmsg returns one record, at most CONSOLE_EXT_LOG_MAX bytes


@dataclass(frozen=True)
class Xid:
    """One fault. ``seconds`` is the time since boot; ``pci`` has no domain longer than four digits."""

    pci: str
    number: int
    seconds: float
    text: str


def read_xids(log: Path = KERNEL_LOG) -> Reading[tuple[Xid, ...]]:
    """All of the kernel's ring buffer; mostly root alone may read it."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return Reading.not_supported(f"{log}: {error.strerror}", error.errno)
    records = []
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # overwritten while we read: the next one is there
            except (BlockingIOError, OSError):
                break
            if not record:
                break
            records.append(record.decode(errors="replace"))
    finally:
        os.close(descriptor)
    return Reading.of(parse_xids("".join(records)))


def parse_xids(text: str) -> tuple[Xid, ...]:
    """From lines of the form `level,sequence,microseconds,flags;NVRM: Xid (PCI:0000:3b:00): 79, ...`."""
    found = []
    for line in text.splitlines():
        match = _LINE.search(line)
        if match:
            head = line.partition(";")[0].split(",")
            seconds = int(head[2]) / 1e6 if len(head) > 2 and head[2].isdigit() else 0.0
            found.append(Xid(short_pci(match.group(1)), int(match.group(2)), seconds, (match.group(3) or "").strip()))
    return tuple(found)


def short_pci(address: str) -> str:
    """`00000000:3B:00.0` and `0000:3b:00` both as `0000:3b:00`: domain, bus and device."""
    domain, bus, device = address.lower().split(".")[0].rsplit(":", 2)
    return f"{int(domain or '0', 16):04x}:{bus}:{device}"

"""A scripted libnvidia-ml.so.1 (`fake_nvml/fake_nvml.c`), built with cc, that the real pynvml loads in the probe."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"

HEALTHY = {
    "compute_mode": "0",
    "mig": "0 0",
    "ecc": "1 1",
    "ecc_volatile": "0",
    "ecc_aggregate": "0",
    "remapped": "0 0 0 0",
    "recovery": "0",
    "clocks": "1",
    "temperature": "34",
    "pcie_width": "16",
    "pcie_width_max": "16",
    "pcie_generation": "1",
    "pcie_generation_max": "5",
    "persistence": "1",
    "fabric": "3 0",
    "p2p.read": "0",
    "p2p.nvlink": "0",
    "ancestor": "50",
}
"""An idle H200 as it answers: the link's generation has dropped, 645 MiB are reserved, none used."""


@functools.cache
def library(old: bool = False) -> Path:
    """The folder that holds the built library; ``old`` is a driver from before R510 (no v2 memory, no v3 lists)."""
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-DOLD_DRIVER"] if old else []
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *flags]
    subprocess.run([*command, "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def gpu_uuid(index: int) -> str:
    """The UUID that the fake gives a card unless the script says otherwise."""
    return f"GPU-{0xA0000000 + index * 0x01000000:08x}-0000-4000-8000-{index:012x}"


def environment(
    folder: Path,
    gpus: int = 1,
    system: Mapping[str, str] | None = None,
    old: bool = False,
    **sections: Mapping[str, str | None],
) -> dict[str, str]:
    """Write the script to ``folder``; variables for a process that shall see it. ``gpu3={...}`` scripts one card.

    ``every={...}`` is for all cards; a value of None there takes a field away (Not Supported).
    """
    every = {**HEALTHY, **sections.pop("every", {})}
    lines = ["[system]", f"count = {gpus}", *(f"{key} = {value}" for key, value in (system or {}).items())]
    lines += ["[gpu *]", *(f"{key} = {value}" for key, value in every.items() if value is not None)]
    for name, values in sections.items():
        lines += [f"[gpu {name.removeprefix('gpu')}]", *(f"{key} = {value}" for key, value in values.items())]
    script = folder / "nvml.ini"
    script.write_text("\n".join(lines) + "\n")
    paths = [str(library(old)), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"FAKE_NVML": str(script), "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}

"""The entry point that an installed guarded_serve has, for a SGLang beside which it is not installed."""

from __future__ import annotations

from pathlib import Path


def write_plugin(folder: Path) -> Path:
    """Make `folder`, to go on PYTHONPATH; returns it."""
    described = folder / "guarded_serve-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: guarded-serve\nVersion: 0\n")
    entry = "[sglang.srt.plugins]\nguarded_serve = guarded_serve.engine.plugin:register\n"
    (described / "entry_points.txt").write_text(entry)
    return folder

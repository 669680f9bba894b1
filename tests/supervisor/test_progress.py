"""The stages of a start-up, from the lines that SGLang logs: as recorded, and as its source has them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from guarded_serve.supervisor.progress import FIRED_UP, stage_of

_SGLANG = importlib.util.find_spec("sglang")
_GRAPHS = re.compile(r'"(Capture [^"]*cuda graph (?:begin|end)[^"]*)"', re.IGNORECASE)


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[2026-12-02 06:34:30] Load weight begin. avail mem=20.11 GB", "loading weights"),
        ("Load weight end. elapsed=1.2 s", "weights loaded"),
        ("Capture target verify CUDA graph begin. This can take up to several minutes.", "capturing graphs"),
        ("Capture cuda graph end. Time elapsed: 3.1 s", "graphs captured"),
        ("Capture draft decode CUDA graph begin. backend=x", "capturing draft graphs"),
        ("Capture draft cuda graph end.", "draft graphs captured"),
        ("Decode batch, #running-req: 1, cuda graph: True", None),
        ("a prompt about how to load a weight", None),
    ],
)
def test_lines_of_a_start(line: str, stage: str | None) -> None:
    assert stage_of(line.encode()) == stage


@pytest.mark.skipif(_SGLANG is None, reason="SGLang is not installed")
def test_the_installed_sglang_logs_what_is_looked_for() -> None:
    assert _SGLANG is not None
    assert _SGLANG.origin is not None
    sources = [path.read_text() for path in (Path(_SGLANG.origin).parent / "srt").rglob("*.py")]
    captures = [re.sub(r"{[^}]*}", "decode", found) for text in sources for found in _GRAPHS.findall(text)]
    assert len(captures) >= 4
    assert [line for line in captures if stage_of(line.encode()) is None] == []
    drafts = [line for line in captures if " draft " in line.lower()]
    assert drafts
    assert all("draft graphs" in str(stage_of(line.encode())) for line in drafts)
    whole = "\n".join(sources)
    for words in ("Load weight begin", "Load weight end", FIRED_UP.decode()):
        assert words in whole

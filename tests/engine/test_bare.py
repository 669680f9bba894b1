"""A bare SGLang in an environment where the guard is installed: the plugin is loaded, and does nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY
from tests.support.bare_sglang import eagle3_flags, serve
from tests.support.toy import ToyPair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_without_the_mark_a_server_stays_bare(tmp_path: Path, toy: ToyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang loads plugins before it sets up its log, so what it says of them is shown by a log of our own."""
    monkeypatch.delenv(ENVIRONMENT_KEY, raising=False)
    early, work = tmp_path / "early", tmp_path / "work"
    early.mkdir()
    work.mkdir()
    (early / "sitecustomize.py").write_text("import logging\nlogging.basicConfig(level=logging.INFO)\n")
    flags = eagle3_flags(toy.drafter, 3, 1, 4)
    with serve(toy.target, flags, work / "log", {"PYTHONPATH": str(early)}) as server:
        meta = server.generate(list(range(24)), 20)["meta_info"]
        time.sleep(1.5)
        log = (work / "log").read_text()
    assert meta["spec_verify_ct"] > 0
    assert log.count("Executed general plugin: guarded_serve") >= 3, "main, scheduler and detokenizer loaded it"
    applied = [line for line in log.splitlines() if "hook(s) to" in line]  # names whose plugin each hook came from
    assert not [line for line in applied if "plugin=guarded_serve" in line], "it registered no hook"
    assert [path.name for path in work.iterdir()] == ["log"], "it wrote no file"

"""A drafter whose d2t holds absolute ids: refused by the guard; bare SGLang serves it, at accept length about 1."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from guarded_serve.facts.ports import free_port
from tests.support.bare_sglang import eagle3_flags, serve
from tests.support.guarded import DEMO_PROFILE, ROOT

PROMPTS = [json.loads(line) for line in (ROOT / "demo/prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def wrong_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("absolute") / "drafter"
    shutil.copytree(ROOT / "demo/drafter", folder, copy_function=shutil.copyfile)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    save_file(tensors, weights)
    return folder


def test_the_guard_refuses_it(wrong_drafter: Path) -> None:
    command = [sys.executable, "-m", "guarded_serve.launch_server", "--profile", str(DEMO_PROFILE)]
    command += ["--speculative-draft-model-path", str(wrong_drafter), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 65
    assert "absolute" in done.stdout + done.stderr
    assert "state=starting" not in done.stdout + done.stderr


def test_the_right_one_is_not_refused() -> None:
    command = [sys.executable, "-m", "guarded_serve.cli", "check", "--profile", str(DEMO_PROFILE)]
    done = subprocess.run(
        [*command, "--only", "profile,drafter,target"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.engine
def test_bare_sglang_does_not_notice(wrong_drafter: Path, tmp_path: Path) -> None:
    """Without the guard it serves correct text and accepts next to nothing, or dies without naming the map."""
    log = tmp_path / "server.log"
    try:
        with serve(ROOT / "demo/target", eagle3_flags(wrong_drafter, 3, 1, 4), log) as server:
            tokens = verifies = 0
            for prompt in PROMPTS[:5]:
                body = {"text": prompt["text"], "sampling_params": {"temperature": 0, "max_new_tokens": 48}}
                information = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()["meta_info"]
                tokens += information["completion_tokens"]
                verifies += information["spec_verify_ct"]
            assert tokens / verifies < 1.15
    except (RuntimeError, httpx.HTTPError):
        text = log.read_text(errors="replace")
        assert "index" in text.lower()
        assert "d2t" not in text

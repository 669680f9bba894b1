"""The unit file under a real systemd with the real engine: SGLang on the CPU and a tiny pair."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from guarded_serve.facts.ports import free_port
from tests.support.supervised import ROOT
from tests.support.systemd import Systemd, why_not
from tests.support.toy import ToyPair, make_pair

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
UNIT = "guarded-serve@engine.service"
READY_S = 300.0


@pytest.fixture(scope="module")
def systemd() -> Iterator[Systemd]:
    system = Systemd()
    system.install("guarded-serve@.service", (ROOT / "systemd/guarded-serve@.service").read_text())
    yield system
    system.run("systemctl", "kill", "--signal=KILL", UNIT)
    system.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ToyPair:
    return make_pair(tmp_path_factory.mktemp("toy"))


def configure(systemd: Systemd, pair: ToyPair, port: int, *lines: str) -> None:
    """The unit as shipped, but for the Python, the profile's place and the user."""
    flags = {
        "model_path": str(pair.target),
        "speculative_draft_model_path": str(pair.drafter),
        "port": port,
        "host": "127.0.0.1",
        "device": "cpu",
        "dtype": "float32",
        "prefill_attention_backend": "intel_amx",
        "decode_attention_backend": "intel_amx",
        "mem_fraction_static": 0.05,
        "max_total_tokens": 20000,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_attention_backend": "intel_amx",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    text = "[engine]\ncpu_kernels = true\n[probe]\nenabled = false\n[gpus]\nwait_s = 20\n[supervise]\ndrain_s = 30\n"
    text += '[timing]\ndirectory = "/var/log/guarded-serve/engine"\n[server]\n'
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in flags.items())
    profile = "/run/engine.toml"
    systemd.run("sh", "-c", 'printf %s "$1" >"$2"', "sh", text, profile)
    command = shlex.join([sys.executable, "-m", "guarded_serve.launch_server", "--profile", profile])
    own = ["[Service]", "ExecStart=", f"ExecStart={command}", "User=root", "Group=root", "PrivateTmp=no"]
    systemd.install(f"{UNIT}.d/test.conf", "\n".join([*own, f"Environment=PYTHONPATH={ROOT}", *lines, ""]))


def test_watchdog_restart_and_stop(systemd: Systemd, pair: ToyPair) -> None:
    port = free_port()
    configure(systemd, pair, port, "WatchdogSec=12", "RestartSec=1")
    systemd.run("systemctl", "start", "--no-block", UNIT)
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] in ("active", "failed"), READY_S)
    assert found["ActiveState"] == "active", systemd.journal(UNIT)[-4000:]
    assert found["StatusText"].startswith("serving")
    answer = httpx.post(
        f"http://127.0.0.1:{port}/generate",
        json={"text": "a", "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}},
        timeout=60,
    )
    assert answer.json()["meta_info"]["completion_tokens"] == 20

    (scheduler,) = systemd.run("pgrep", "-f", "^sglang::scheduler").output.split()
    systemd.run("kill", "-STOP", scheduler)
    found = systemd.wait(UNIT, lambda unit: unit["NRestarts"] == "1", 30)
    assert found["NRestarts"] == "1"
    assert "Watchdog timeout" in systemd.run("journalctl", "--no-pager", "--output=cat").output

    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] in ("active", "failed"), READY_S)
    assert found["ActiveState"] == "active", systemd.journal(UNIT)[-4000:]
    asked = time.monotonic()
    systemd.run("systemctl", "stop", UNIT)
    assert time.monotonic() - asked < 60
    found = systemd.show(UNIT, "ActiveState", "Result", "ExecMainStatus")
    assert found == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert systemd.processes(UNIT) == []
    assert systemd.run("pgrep", "-f", "sglang::").output == ""


def test_a_drafter_that_is_refused_stays_down(systemd: Systemd, pair: ToyPair, tmp_path: Path) -> None:
    wrong = tmp_path / "drafter"
    wrong.mkdir()
    for file in pair.drafter.iterdir():
        (wrong / file.name).write_bytes(file.read_bytes())
    weights = load_file(wrong / "model.safetensors")
    weights["d2t"] = weights["d2t"] + weights["d2t"].new_tensor(range(len(weights["d2t"])))  # absolute ids
    save_file(weights, wrong / "model.safetensors")
    configure(systemd, ToyPair(pair.target, wrong), free_port(), "RestartSec=1")
    systemd.run("systemctl", "start", UNIT)
    time.sleep(3)
    found = systemd.wait(UNIT, lambda unit: unit["ActiveState"] == "failed", 20)
    assert (found["ActiveState"], found["ExecMainStatus"]) == ("failed", "65"), systemd.journal(UNIT)[-3000:]
    assert "absolute" in systemd.journal(UNIT)

"""The fault matrix on the real engine: SGLang on the CPU with a tiny pair, under the real launcher.

One start serves several faults where a restart brings the engine back; the rest need a start each, so they are soak
tests but for one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from guarded_serve.facts.ports import free_port
from guarded_serve.facts.py_spy import find_py_spy
from tests.support.engine_launcher import READY_S, flags_of, launched
from tests.support.supervised import ROOT, wait_until
from tests.support.toy import ToyPair, make_pair

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ToyPair:
    return make_pair(tmp_path_factory.mktemp("toy"))


def test_a_killed_scheduler_and_a_stop_while_it_starts_again(tmp_path: Path, pair: ToyPair) -> None:
    """The quick one: a death is noticed within two seconds, the restart stops when asked to, nothing is left."""
    with launched(tmp_path, pair, restarts=1) as launcher:
        launcher.wait_for("state=serving")
        assert launcher.generate() == 20
        killed = time.monotonic()
        os.kill(launcher.processes()["scheduler"], signal.SIGKILL)
        launcher.wait_for("state=failed", 2.0)
        took_s = time.monotonic() - killed
        print(f"\nscheduler, SIGKILL: noticed after {took_s:.2f} s")  # docs/operations.md
        assert took_s < 2.0
        launcher.wait_for("state=starting", 30, count=2)
        launcher.processes()
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(15) == 0
        assert "state=stopped" in launcher.text()
        assert launcher.left() == []
        assert len(list((tmp_path / "cycles/crashes").iterdir())) == 1


@pytest.mark.soak
def test_deaths_are_noticed_within_two_seconds_and_mended(tmp_path: Path, pair: ToyPair) -> None:
    with launched(tmp_path, pair, restarts=2, drain_s=20) as launcher:
        for number, role in enumerate(("scheduler", "main"), 1):
            launcher.wait_for("state=serving", count=number)
            assert launcher.generate() == 20
            killed = time.monotonic()
            os.kill(launcher.processes()[role], signal.SIGKILL)
            launcher.wait_for("state=failed", 2.0, count=number)
            took_s = time.monotonic() - killed
            print(f"\n{role}, SIGKILL: noticed after {took_s:.2f} s")
            assert took_s < 2.0
        launcher.wait_for("state=serving", count=3)
        assert launcher.generate() == 20
        launcher.processes()
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(30) == 0
        assert launcher.left() == []
        assert launcher.text().count("state=preflight") == 3  # the gates ran before each start


@pytest.mark.soak
@pytest.mark.parametrize("role", ["scheduler", "main"])
def test_a_stopped_process_is_a_hang(tmp_path: Path, pair: ToyPair, role: str) -> None:
    with launched(tmp_path, pair, hang_s=8, probe_interval_s=3) as launcher:
        launcher.wait_for("state=serving")
        assert launcher.generate() == 20
        time.sleep(2)
        stopped = time.monotonic()
        os.kill(launcher.processes()[role], signal.SIGSTOP)
        launcher.wait_for("state=failed", 12)
        took_s = time.monotonic() - stopped
        print(f"\n{role}, SIGSTOP, hang_s 8: noticed after {took_s:.2f} s")  # docs/operations.md
        assert 2 < took_s < 8 + 2
        assert launcher.process.wait(60) == 69
        assert launcher.left() == []
        (folder,) = (tmp_path / "cycles/crashes").iterdir()
        stacks = {path.name.split("-")[1]: path.read_text() for path in folder.glob("stack-*")}
        assert set(stacks) == {"main", "scheduler", "detokenizer"}
        spied = stacks["scheduler"].partition("[py-spy]")[2]
        assert ("is not installed" if find_py_spy() is None else "event_loop") in spied, spied


@pytest.mark.soak
def test_a_killed_launcher_takes_the_engine_with_it(tmp_path: Path, pair: ToyPair) -> None:
    with launched(tmp_path, pair) as launcher:
        launcher.wait_for("state=serving")
        assert set(launcher.processes()) == {"main", "scheduler", "detokenizer"}
        launcher.process.kill()
        launcher.process.wait()
        assert wait_until(lambda: launcher.left() == [], 5), launcher.left()


@pytest.mark.soak
def test_a_stopped_launcher_goes_on_where_it_was(tmp_path: Path, pair: ToyPair) -> None:
    with launched(tmp_path, pair, hang_s=6, probe_interval_s=2) as launcher:
        launcher.wait_for("state=serving")
        launcher.processes()
        launcher.process.send_signal(signal.SIGSTOP)
        assert launcher.generate(200) == 200  # the engine does not wait for the launcher
        time.sleep(8)
        launcher.process.send_signal(signal.SIGCONT)
        time.sleep(4)
        assert launcher.process.poll() is None
        assert "state=failed" not in launcher.text()
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(60) == 0
        assert launcher.left() == []


@pytest.mark.soak
@pytest.mark.parametrize("stage", ["state=starting", "loading weights"])
def test_sigterm_while_it_starts(tmp_path: Path, pair: ToyPair, stage: str) -> None:
    with launched(tmp_path, pair) as launcher:
        launcher.wait_for(stage)
        time.sleep(0.5)
        launcher.processes()
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.process.wait(15) == 0
        assert "state=stopped" in launcher.text()
        assert launcher.left() == []


@pytest.mark.soak
def test_sigterm_under_traffic_lets_the_request_end(tmp_path: Path, pair: ToyPair) -> None:
    with launched(tmp_path, pair, drain_s=60) as launcher:
        launcher.wait_for("state=serving")
        launcher.processes()
        request = subprocess.Popen(
            [
                *(sys.executable, "-c"),
                "import httpx,sys;r=httpx.post(sys.argv[1]+'/generate',timeout=120,json={'text':'a','sampling_params':"
                "{'max_new_tokens':400,'temperature':0,'ignore_eos':True}});"
                "print(r.json()['meta_info']['completion_tokens'])",
                f"http://127.0.0.1:{launcher.port}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: "Prefill batch" in launcher.text().rpartition("state=serving")[2], 20)
        launcher.process.send_signal(signal.SIGTERM)
        assert request.communicate(timeout=60)[0].strip() == "400"
        assert launcher.process.wait(60) == 0
        assert launcher.left() == []


@pytest.mark.soak
def test_a_drafter_swapped_between_restarts_is_refused(tmp_path: Path, pair: ToyPair) -> None:
    own = tmp_path / "drafter"
    shutil.copytree(pair.drafter, own)
    with launched(tmp_path, ToyPair(pair.target, own), restarts=3) as launcher:
        launcher.wait_for("state=serving")
        launcher.processes()
        weights = load_file(own / "model.safetensors")
        weights["d2t"] = weights["d2t"] + weights["d2t"].new_tensor(range(len(weights["d2t"])))  # absolute ids
        save_file(weights, own / "model.safetensors")
        os.kill(launcher.processes()["scheduler"], signal.SIGKILL)
        assert launcher.process.wait(60) == 65
        assert launcher.text().rstrip().rpartition("\n")[2].count("state=refused") == 1
        assert launcher.left() == []


@pytest.mark.soak
def test_the_port_is_stolen_between_check_and_start(tmp_path: Path, pair: ToyPair) -> None:
    with launched(tmp_path, pair) as launcher:
        launcher.wait_for("state=starting")
        with socket.socket() as thief:
            thief.bind(("127.0.0.1", launcher.port))
            thief.listen()
            assert launcher.process.wait(READY_S) == 69
        assert "cause=port" in launcher.text()
        assert launcher.left() == []


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
@pytest.mark.parametrize("full", ["/dev/shm", "cycles"])
def test_a_full_file_system(tmp_path: Path, pair: ToyPair, full: str) -> None:
    """In a mount namespace of the launcher's own: what is full is full for it alone."""
    cycles = tmp_path / "cycles"
    cycles.mkdir()
    place = "/dev/shm" if full == "/dev/shm" else str(cycles)
    port = free_port()
    flags = [*flags_of(pair, port), "--guard-cpu-kernels", "--guard-cycles", str(cycles)]
    script = f'mount -t tmpfs -o size=64k tmpfs {place} && head -c 65536 /dev/zero > {place}/full; exec "$@"'
    log = tmp_path / "log"
    profile = tmp_path / "profile.toml"
    profile.write_text("[probe]\nenabled = false\n[gpus]\nwait_s = 0\n")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "sh", "-c", script, "sh"),
                *(sys.executable, "-m", "guarded_serve.launch_server", "--profile", str(profile), *flags),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        if full == "/dev/shm":
            assert process.wait(60) in (71, 75)  # refused before anything starts
            assert "/dev/shm" in log.read_text()
            assert "state=starting" not in log.read_text()
            return
        wait_until(lambda: "state=serving" in log.read_text() or process.poll() is not None, READY_S)
        answer = httpx.post(
            f"http://127.0.0.1:{port}/generate",
            json={"text": "a", "sampling_params": {"max_new_tokens": 50, "temperature": 0, "ignore_eos": True}},
            timeout=60,
        )
        assert answer.json()["meta_info"]["completion_tokens"] == 50
        process.terminate()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()

"""After a stop the driver is asked whether the GPUs are empty: the real NVML binding over a scripted driver."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guarded_serve.supervisor.gpu_release import still_held
from tests.support.fake_driver import environment
from tests.support.gpu_deployments import deployment
from tests.support.supervised import Supervised, wait_until

HELD = {"used": "101000", "compute": "4000001:100900"}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    return monkeypatch


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, **cards: dict[str, str]) -> None:
    for name, value in environment(folder, gpus=2, **cards).items():
        monkeypatch.setenv(name, value)


def test_empty_gpus_are_empty_and_anothers_gpu_is_none_of_ours(tmp_path: Path, driver: pytest.MonkeyPatch) -> None:
    script(tmp_path, driver, gpu1=HELD)
    assert still_held(deployment(device="cuda"), 1) == ()


def test_memory_that_stays_is_said_with_its_holder(tmp_path: Path, driver: pytest.MonkeyPatch) -> None:
    script(tmp_path, driver, gpu1=HELD)
    memory, process = still_held(deployment(device="cuda", tp_size=2), 1)
    assert "GPU 1" in memory
    assert "is not empty" in memory
    assert "4000001" in process


def test_a_driver_that_does_not_answer_is_no_proof(tmp_path: Path, driver: pytest.MonkeyPatch) -> None:
    script(tmp_path, driver, gpu0={"nvmlDeviceGetMemoryInfo": "hang", "nvmlDeviceGetMemoryInfo_v2": "hang"})
    began = time.monotonic()
    (trouble,) = still_held(deployment(device="cuda"), 2)
    assert time.monotonic() - began < 10
    assert "nvmlDeviceGetMemoryInfo" in trouble or "driver" in trouble


@contextlib.contextmanager
def serving_on_a_held_gpu(folder: Path, **scenario: bool) -> Iterator[Supervised]:
    own = folder / "driver"
    own.mkdir()
    seen = environment(own, gpus=1, gpu0=HELD)
    with Supervised(folder, scenario, environment=seen, server={"device": "cuda"}, gpus=1) as server:
        server.wait_for("state=serving")
        yield server


@pytest.mark.parametrize("freed", [True, False])
def test_a_stop_waits_for_the_memory(tmp_path: Path, freed: bool) -> None:
    with serving_on_a_held_gpu(tmp_path) as server:
        began = time.monotonic()
        server.send(signal.SIGTERM)
        server.wait_for("state=draining")
        assert not wait_until(lambda: server.process.poll() is not None, 2)
        if freed:
            environment(tmp_path / "driver", gpus=1)
        assert server.end() == 0
        assert server.states()[-2:] == ["draining", "stopped"]
        assert server.left() == []
        if freed:
            assert "nothing of the server is left, its GPU is empty" in server.text()
        else:
            assert time.monotonic() - began > 8
            assert "level=warning" in server.text()
            assert "is not empty" in server.text()
            assert "not known to be empty" in server.text()
        assert server.text().count("is not empty") == int(not freed)


def test_a_second_signal_does_not_wait_for_the_memory(tmp_path: Path) -> None:
    with serving_on_a_held_gpu(tmp_path) as server:
        server.send(signal.SIGTERM)
        server.wait_for("its GPUs are waited for")
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert "SIGTERM again: nothing of the server is left, its GPUs were not waited for" in server.text()


def test_a_second_signal_in_the_drain_does_not_wait_for_the_memory_either(tmp_path: Path) -> None:
    with serving_on_a_held_gpu(tmp_path, children_ignore_sigterm=True, ignore_sigterm=True) as server:
        server.send(signal.SIGTERM)
        server.wait_for("state=draining")
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert "nothing of the server is left, its GPUs were not waited for" in server.text()
        assert "its GPUs are waited for" not in server.text()

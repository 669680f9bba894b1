"""The self-test: its child on a machine with no GPU, deadlines and deaths with stand-in children, and the judge."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.checks import gate
from guarded_serve.checks.gpu_fit import selftest as check
from guarded_serve.checks.runner import run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts import own_module
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.gpu import Driver
from guarded_serve.facts.gpu_choice import Device, GpuChoice, Rank
from guarded_serve.facts.gpu_selftest import AllReduce, DeviceTest, SelfTest, read_results, run_selftest, verify_bytes
from guarded_serve.facts.gpus import GpuFacts
from guarded_serve.findings import Finding, Outcome, Severity, Status
from tests.support.gpu_deployments import deployment

TWO = (Device("GPU-a", 0), Device("GPU-b", 3))
CHOICE = GpuChoice(
    TWO, tuple(Rank(device, rank, 0) for rank, device in enumerate(TWO)), {"CUDA_VISIBLE_DEVICES": "0,3"}
)


def _judge(test: SelfTest | None, *, asked: bool = True) -> Outcome:
    plain = replace(check, needs=())
    facts = Facts(deployment({"selftest": asked}, tp_size=2), gpus=GpuFacts(Driver(), CHOICE, selftest=test))
    (outcome,) = run_checks([plain], facts).outcomes
    return outcome


def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Another module in the child's place."""
    package = tmp_path / "guarded_serve" / "facts"
    package.mkdir(parents=True)
    (tmp_path / "guarded_serve" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "gpu_selftest_child.py").write_text(code)
    monkeypatch.setattr(own_module.guarded_serve, "__file__", str(tmp_path / "guarded_serve" / "__init__.py"))


def test_without_a_gpu_the_real_child_refuses_in_a_sentence() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    test = run_selftest(deployment(), CHOICE, dict(os.environ))
    assert test.error is not None
    assert "sees no CUDA device" in test.error
    outcome = _judge(test)
    assert outcome.status is Status.FAIL
    assert outcome.findings[0].exit_code == ExitCode.UNFIT


def test_a_child_that_hangs_is_killed_with_its_group_and_says_where_it_stood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'device': {'place': 0, 'multiply_ms': 1.5, 'error': None}}))\n"
        "print(json.dumps({'stage': 'all-reduce of 57344 bytes over 2 devices'}), flush=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    _stand_in(monkeypatch, tmp_path, code)
    started = time.monotonic()
    test = run_selftest(deployment(), CHOICE, dict(os.environ), deadline_s=2.0)
    assert time.monotonic() - started < 10
    assert test.error == "no result within 2 s, in: all-reduce of 57344 bytes over 2 devices"
    assert test.devices == (DeviceTest(0, 1.5),)
    grandchild = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{grandchild}/cmdline").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{grandchild}").exists()


def test_a_child_that_dies_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _stand_in(
        monkeypatch,
        tmp_path,
        'import os\nprint(\'{"stage": "importing torch"}\', flush=True)\nos.kill(os.getpid(), 11)',
    )
    test = run_selftest(deployment(), CHOICE, dict(os.environ))
    assert test.error == "the test ended with signal 11, in: importing torch"


def test_the_child_gets_the_chosen_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import json, os, sys\nasked = json.loads(sys.argv[1])\n"
        "print(json.dumps({'error': f\"{asked['places']} {asked['bytes']} {os.environ['CUDA_VISIBLE_DEVICES']}\"}))\n"
    )
    _stand_in(monkeypatch, tmp_path, code)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 7168, "num_hidden_layers": 61}))
    asked = deployment(model_path=str(tmp_path), speculative_num_draft_tokens=4, tp_size=2)
    assert run_selftest(asked, CHOICE, dict(os.environ)).error == "[0, 1] 57344 0,3"


@pytest.mark.parametrize(
    ("config", "tokens", "expected"),
    [
        ({"hidden_size": 7168, "num_hidden_layers": 61}, 4, (57344, 61)),
        ({"text_config": {"hidden_size": 4096, "num_hidden_layers": 32}}, 8, (65536, 32)),
        ({}, None, (16384, None)),
    ],
)
def test_the_size_is_what_a_verify_step_sends(
    tmp_path: Path, config: dict[str, Any], tokens: int | None, expected: tuple[int, int | None]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = deployment(model_path=str(tmp_path), speculative_num_draft_tokens=tokens)
    assert verify_bytes(asked) == expected


def test_results_are_read_as_they_were_said() -> None:
    said: list[dict[str, Any]] = [
        {"stage": "x"},
        {"device": {"place": 0, "multiply_ms": 0.3, "error": None}},
        {"all_reduce": {"size": 57344, "ranks": 2, "us": 35.0, "error": None}},
    ]
    test = read_results(said, 61, None, 12.0)
    assert test.error is None
    assert test.verify_ms == pytest.approx(4.27)


def test_a_right_result_passes_with_its_time() -> None:
    outcome = _judge(SelfTest((DeviceTest(0, 0.3), DeviceTest(1, 0.3)), AllReduce(57344, 2, 35.0), layers=61))
    assert outcome.status is Status.PASS
    assert outcome.findings[0].message == (
        "all-reduce of 57344 bytes over 2 GPUs takes 35 µs; 4.27 ms of a verify step of 61 layers"
    )


@pytest.mark.parametrize(
    "test",
    [
        SelfTest((DeviceTest(0, 0.3), DeviceTest(1, 0.3, "7 of 16777216 elements of a product are wrong"))),
        SelfTest((DeviceTest(0, 0.3),), AllReduce(57344, 2, error="NCCL error")),
        SelfTest((), AllReduce(57344, 2, us=9.0, error="3 elements of 55 sums are wrong")),
        SelfTest(error="no result within 120 s"),
    ],
)
def test_a_wrong_or_missing_result_is_unfit(test: SelfTest) -> None:
    outcome = _judge(test)
    assert outcome.status is Status.FAIL
    assert {finding.exit_code for finding in outcome.findings} == {ExitCode.UNFIT}


def test_not_asked_for_is_skipped() -> None:
    assert "not asked for" in (_judge(None, asked=False).reason or "")
    assert "other checks did not pass" in (_judge(None).reason or "")


@pytest.mark.parametrize(("fault", "runs"), [(None, 1), (Severity.WARNING, 1), (Severity.ERROR, 0)])
def test_it_runs_once_and_only_when_all_else_passed(
    fault: Severity | None, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def stub(facts: GpuFacts, asked: Any) -> GpuFacts:
        ran.append(1)
        return replace(facts, selftest=SelfTest((DeviceTest(0, 0.3),)))

    def judge(self: Facts) -> tuple[Finding, ...]:
        return () if fault is None else (Finding("gpu.selftest", fault, "x"),)

    asked = deployment({"selftest": True})
    monkeypatch.setattr(gate, "gather", lambda *_: Facts(asked, gpus=GpuFacts(Driver(), CHOICE)))
    monkeypatch.setattr(gate, "checks_of", lambda _: (replace(check, needs=(), judge=judge),))
    monkeypatch.setattr(gate, "with_selftest", stub)
    facts, _ = gate.judge(asked, ("gpu",))
    assert len(ran) == runs
    assert (facts.gpus is not None and facts.gpus.selftest is not None) is bool(runs)


def test_torch_is_not_imported_here() -> None:
    """The gate's own modules are free of torch; only the child imports it."""
    code = "import guarded_serve.checks.gpu, guarded_serve.facts.gpus, sys; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0

"""The command from end to end over a scripted server: verdicts, exit codes, reports, records, and every interruption.

The gates, the process tree, HTTP, statistics and files are real. No verdict here hangs on a narrow timing: the scripted
server takes twice as long without its drafter.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from demo.broken import make
from tests.support.smoked import pids, start
from tests.support.supervised import alive, wait_until

ROOT = Path(__file__).resolve().parents[2]
GOOD: dict[str, Any] = {
    "accept": {"drafter": [10, 15, 25, 50], "shifted-layers": [90, 9, 1, 0]},
    "ms_per_token": {"": 2.0, "drafter": 0.5, "shifted-layers": 2.0},
}
NEEDS_DEMO = pytest.mark.skipif(
    not (ROOT / "demo/drafter/model.safetensors").is_file(), reason="the demo pair is not in this checkout"
)
pytestmark = NEEDS_DEMO


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    lines = [{"name": f"p{number}", "kind": "code", "text": f"def f{number}():\n"} for number in range(6)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def smoke(tmp_path: Path, prompts: Path, *arguments: str, scenario: dict[str, Any] | None = None) -> tuple[int, str]:
    """Exit code and output; nothing of a server is left."""
    fast = ("--prompts", str(prompts), "--new-tokens", "60", "--repeats", "2", "--batch-sizes", "1,3")
    process = start(tmp_path, scenario or GOOD, *fast, *arguments)
    out, err = process.communicate(timeout=120)
    assert not [pid for pid in pids(tmp_path) if alive(pid)]
    return process.returncode, out + err


def test_a_good_drafter(tmp_path: Path, prompts: Path) -> None:
    """Passes with its gain stated; five reports that other programs read; a record that the watch reads."""
    from guarded_serve.timing.reference import read_references  # noqa: PLC0415

    report, record = tmp_path / "report", tmp_path / "record.json"
    code, said = smoke(tmp_path, prompts, "--report", str(report), "--record", str(record))
    assert code == 0, said
    assert re.search(r"gain over no drafter at batch size 1 is [2-5]\.\d\d", said)
    assert re.search(r"baseline_tok_s = \{ 1 = \d+\.\d, 3 = \d+\.\d \}", said)
    result = json.loads((report / "result.json").read_text())
    assert (result["verdict"], result["exit_code"]) == ("pass", 0)
    assert result["drafters"][0]["gain"]["1"]["low"] > 1.05
    assert len(result["drafters"][0]["run"]["cells"][0]["repeats"][0]) == 6
    suites = Xml.parse(report / "junit.xml").getroot()
    assert not suites.findall(".//failure")
    assert suites.findall("./testsuite[@name='drafter.smoke']/testcase[@name='gain_bs1']")
    assert (report / "result.md").read_text().startswith("## Smoke test of demo-cpu: pass")
    page = (report / "result.html").read_text()
    assert page.count("<svg") == 3
    references = read_references(record)
    assert references.baseline_tok_s.keys() == {1, 3}
    assert not list(tmp_path.rglob("*.part"))


def test_a_bad_drafter_ends_early_and_still_writes_everything(tmp_path: Path, prompts: Path) -> None:
    drafter = make(ROOT / "demo/drafter", tmp_path, "shifted-layers")
    report = tmp_path / "report"
    code, said = smoke(
        tmp_path, prompts, "--drafter", str(drafter), "--report", str(report), "--record", str(tmp_path / "record.json")
    )
    assert code == 65, said
    assert "the aux layers are shifted by +1" in said
    assert "ended early" in said
    assert "baseline: " not in said, "a drafter that acceptance refuses needs none"
    assert not (tmp_path / "record.json").exists()
    assert {path.name for path in report.iterdir()} >= {"result.json", "junit.xml", "result.md", "result.html"}
    failed = Xml.parse(report / "junit.xml").getroot().findall(".//testcase[failure]")
    assert "first_position" in {case.get("name") for case in failed}


@pytest.mark.parametrize(
    ("kind", "flags", "cause"),
    [
        ("shuffled-map", (), "does not rise"),
        (None, ("--speculative-algorithm", "EAGLE"), "EAGLE3"),
    ],
)
def test_gate_1_ends_it_before_any_server(
    tmp_path: Path, prompts: Path, kind: str | None, flags: tuple[str, ...], cause: str
) -> None:
    drafter = make(ROOT / "demo/drafter", tmp_path, kind) if kind else ROOT / "demo/drafter"
    report = tmp_path / "report"
    code, said = smoke(tmp_path, prompts, "--drafter", str(drafter), "--report", str(report), *flags)
    assert code == 65, said
    assert cause in said
    assert not pids(tmp_path)
    assert json.loads((report / "result.json").read_text())["exit_code"] == 65


def test_comparison_does_not_change_the_exit_code(tmp_path: Path, prompts: Path) -> None:
    other = make(ROOT / "demo/drafter", tmp_path, "shifted-layers")
    code, said = smoke(tmp_path, prompts, "--compare", str(other))
    assert code == 0, said
    assert "shifted-layers: fail (exit 65)" in said


def test_a_record_and_a_worse_drafter(tmp_path: Path, prompts: Path) -> None:
    """Compared by prompt with what was recorded; with other prompts it is said and not compared."""
    record = tmp_path / "record.json"
    better = {**GOOD, "accept": {"drafter": [2, 4, 14, 80]}}
    code, said = smoke(tmp_path, prompts, "--record", str(record), scenario=better)
    assert code == 0, said
    worse = GOOD  # still above the demo profile's floor
    code, said = smoke(tmp_path, prompts, "--against", str(record), scenario=worse)
    assert code == 65, said
    assert "accept length against the recorded drafter is 0.8" in said
    prompts.write_text(prompts.read_text().replace("def f5", "def g5"))
    report = tmp_path / "report"
    code, said = smoke(tmp_path, prompts, "--against", str(record), "--report", str(report), scenario=worse)
    assert code == 0, said
    outcomes = json.loads((report / "result.json").read_text())["drafters"][0]["outcomes"]
    regression = next(one for one in outcomes if one["check"] == "smoke.regression")
    assert regression["status"] == "skipped"
    assert "other prompts" in regression["reason"]


def test_a_sweep_recommends_the_fastest(tmp_path: Path, prompts: Path) -> None:
    code, said = smoke(tmp_path, prompts, "--sweep", "1/1/2,3/1/4")
    assert code == 0, said
    assert re.search(r"recommended: steps/topk/draft tokens [13]/1/[24]", said)


def test_a_server_that_dies(tmp_path: Path, prompts: Path) -> None:
    report = tmp_path / "report"
    code, said = smoke(tmp_path, prompts, "--report", str(report), scenario={**GOOD, "die_at": 9})
    assert code == 69, said
    assert "the server ended" in said
    assert json.loads((report / "result.json").read_text())["exit_code"] == 69


def test_a_server_that_never_starts(tmp_path: Path, prompts: Path) -> None:
    scenario = {**GOOD, "exit_at_start": 1, "say": ["torch.OutOfMemoryError: CUDA out of memory"]}
    code, said = smoke(tmp_path, prompts, scenario=scenario)
    assert code == 69, said
    assert "ran out of memory" in said


def test_a_server_that_fails_without_its_drafter_alone(tmp_path: Path, prompts: Path) -> None:
    """The drafter cannot be judged then, and it is said whose fault it is; no other one is started."""
    other = make(ROOT / "demo/drafter", tmp_path, "shifted-layers")
    scenario = {**GOOD, "die_at": 12, "dies_plain_only": True}
    code, said = smoke(tmp_path, prompts, "--compare", str(other), scenario=scenario)
    assert code == 69, said
    assert "the server without any drafter failed: " in said
    assert "not measured, since the server without any drafter failed" in said
    assert "shifted-layers: loading" not in said
    assert "shifted-layers: batch size" not in said


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("--prompts", "/nowhere.jsonl"), 66, "there is no prompts file /nowhere.jsonl"),
        (("--batch-sizes", "none"), 64, "expected batch sizes"),
        (("--sweep", "3-1-4"), 64, "STEPS/TOPK/DRAFT_TOKENS"),
        (("--sweep", "1/1/2", "--compare", "/x"), 64, "leave --compare out"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, flags: tuple[str, ...], code: int, text: str) -> None:
    process = start(tmp_path, GOOD, *flags)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert text in err
    assert "Traceback" not in out + err


STAGES = ("drafter: checking", "baseline: batch size 1, repeat 1", "drafter: batch size 3, repeat 1")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(tmp_path: Path, prompts: Path, stage: str, number: signal.Signals) -> None:
    """No process of a server, no report, no part of one, and the end that the signal means."""
    report = tmp_path / "report"
    slow = {**GOOD, "ms_per_token": {"": 20.0, "drafter": 10.0}}
    process = start(
        tmp_path, slow, "--prompts", str(prompts), "--new-tokens", "24", "--batch-sizes", "1,3", "--report", str(report)
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.strip() == stage:
                break
        else:
            pytest.fail("".join(said))
        process.send_signal(number)
        process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == -number
    assert wait_until(lambda: not [pid for pid in pids(tmp_path) if alive(pid)], 10)
    left = {path.name for path in report.iterdir()} if report.is_dir() else set()
    assert not {name for name in left if not name.startswith("server-")}


def test_an_interruption_between_two_writes_leaves_whole_files(tmp_path: Path) -> None:
    """A writer killed at any moment: what stands under the name is the old content or the new, never a part."""
    target = tmp_path / "report.json"
    script = (
        "import sys; from pathlib import Path; from guarded_serve.smoke.writing import write_whole\n"
        "for n in range(100000): write_whole(Path(sys.argv[1]), str(n % 10) * 200000)"
    )
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", script, str(target)], cwd=ROOT)
        assert wait_until(target.exists, 10)
        time.sleep(0.05)
        process.kill()
        process.wait()
        text = target.read_text()
        assert len(text) == 200000
        assert len(set(text)) == 1

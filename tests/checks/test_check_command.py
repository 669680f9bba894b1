"""`guarded-serve check`: exit codes, formats, speed, and what it does not import."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from guarded_serve import cli
from guarded_serve.checks.formats.as_json import SCHEMA
from guarded_serve.exit_codes import ExitCode
from tests.support.checkpoints import Data, drafter, kept_ids, target

PROGRAM = [sys.executable, "-c", "from guarded_serve.cli import run; run()", "check"]


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def flags(folder: Path, drafter_name: str = "good") -> list[str]:
    return [
        "--only", "target,drafter", "--model-path", str(folder / "target"), "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(folder / drafter_name),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    target().write(root / "target")
    drafter().write(root / "good")
    wrong = drafter()
    wrong.tensors["d2t"] = Data("I64", (40,), kept_ids())
    wrong.write(root / "absolute")
    return root


def test_right_and_refused(folder: Path) -> None:
    assert check(*flags(folder)).returncode == 0
    refused = check(*flags(folder, "absolute"))
    assert refused.returncode == 65
    assert "absolute token ids, not offsets" in refused.stdout
    assert refused.stderr == ""


def test_a_refusal_takes_under_a_second(folder: Path) -> None:
    """Of processor time, which is wall clock on a machine that does nothing else; the benchmark has the wall clock."""
    assert min(_seconds(flags(folder, "absolute")) for _ in range(3)) < 1.0


def _seconds(arguments: list[str]) -> float:
    child = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 65
    return usage.ru_utime + usage.ru_stime


def test_missing_paths_are_66(folder: Path) -> None:
    missing = check(*flags(folder, "nowhere"))
    assert missing.returncode == 66
    assert "nowhere does not exist" in missing.stdout


def test_strict_counts_warnings(folder: Path) -> None:
    arguments = [
        *flags(folder), "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", "8",
    ]  # fmt: skip
    assert check(*arguments).returncode == 0
    assert check("--strict", *arguments).returncode == 65


def test_ignored_errors_are_warnings_and_unknown_names_errors(folder: Path) -> None:
    ignored = check(*flags(folder, "absolute"), "--guard-ignore", "drafter.map_values")
    assert ignored.returncode == 0
    assert "ignored: drafter.map_values" in ignored.stdout
    arguments = [*flags(folder), "--guard-ignore", "drafter.map_valeus"]
    arguments[1] = "profile"
    assert check(*arguments).returncode == 64
    profile = folder / "typo.toml"
    profile.write_text(f'[server]\nmodel_path = "{folder / "target"}"\n[preflight]\nignore = ["drafter.map_valeus"]\n')
    unknown = check("--only", "profile", "--profile", profile)
    assert unknown.returncode == 78
    assert "drafter.map_values" in unknown.stdout


def test_json_keeps_its_schema(folder: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for name in ("good", "absolute", "nowhere"):
        done = check("--format", "json", *flags(folder, name))
        document = json.loads(done.stdout)
        jsonschema.validate(document, SCHEMA)
        assert document["exit_code"] == done.returncode
    document["outcomes"][0]["status"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_junit_and_github(folder: Path) -> None:
    suites = ElementTree.fromstring(check("--format", "junit", *flags(folder, "absolute")).stdout)
    (failure,) = suites.iter("failure")
    assert failure.get("type") == "drafter.map_values"
    assert suites.find("testsuite[@name='drafter']").get("failures") == "1"  # type: ignore[union-attr]
    lines = check("--format", "github", *flags(folder, "absolute")).stdout.splitlines()
    assert lines[0].startswith("::error title=drafter.map_values::d2t holds absolute token ids")
    assert "%0A" in lines[0]


def test_list_names_every_rule() -> None:
    listed = check("--list", "--only", "drafter")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.startswith("drafter.")]
    assert "drafter.map_values" in names
    assert len(names) == len(set(names)) > 20


def test_deep_reads_every_byte(folder: Path, tmp_path: Path) -> None:
    path = folder / "good" / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest not in check(*flags(folder)).stdout
    assert f"sha256 of model.safetensors: {digest}" in check("--deep", *flags(folder)).stdout
    spoilt = drafter()
    spoilt.tensors["fc.weight"] = Data("BF16", (32, 96), [float("nan"), *[0.5] * 3071])
    arguments = flags(folder, str(spoilt.write(tmp_path / "nan")))
    assert check(*arguments).returncode == 0
    done = check("--deep", *arguments)
    assert done.returncode == 65
    assert "fc.weight holds 1 NaN among 3072 numbers" in done.stdout


def test_an_unknown_family_is_a_usage_error() -> None:
    assert check("--only", "drafters").returncode == 64


def test_heavy_modules_are_not_imported(folder: Path) -> None:
    code = (
        "import sys; from guarded_serve.cli import main; main(sys.argv[1:]);"
        "print([n for n in ('torch','sglang','numpy','huggingface_hub','rich','safetensors') if n in sys.modules])"
    )
    command = [sys.executable, "-c", code, "check", *flags(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("flags", [[], ["--profile", "/nowhere.toml"]])
def test_without_a_model_only_the_configuration_is_judged(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A hub id "None" or a missing driver would bury what is wrong."""
    assert cli.main(["check", *flags]) == (ExitCode.MISSING if flags else ExitCode.USAGE)
    out = capsys.readouterr().out
    assert out.count("refused: ") == 1
    assert "None" not in out

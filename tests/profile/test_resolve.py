"""Where each setting comes from, the child's environment, the guard's own flags, and machines without SGLang."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Severity
from guarded_serve.profile import resolve as resolve_module
from guarded_serve.profile import sglang_parser as parser_module
from guarded_serve.profile.guard_options import GuardOptions
from guarded_serve.profile.resolve import CPU_KERNELS, resolve
from guarded_serve.profile.sglang_parser import snapshot


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    dump = replace(snapshot(), installed=True)
    monkeypatch.setattr(resolve_module, "sglang_parser", lambda: dump)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(text: str) -> Path:
    path = Path("x.toml")
    path.write_text(text)
    return path


def test_without_a_profile_the_flags_pass_untouched() -> None:
    flags = ["--model=m", "--tp", "2", "--log-level", "info"]
    deployment = resolve(None, flags, environ={}).deployment
    assert deployment.arguments == tuple(flags)
    assert (deployment.get("tp_size"), deployment.get("port"), deployment.is_set("port")) == (2, 30000, False)
    assert dict(deployment.environment) == {}
    assert deployment.notes == ()


def test_a_flag_takes_the_profile_s_place_and_only_its_own() -> None:
    path = profile('[server]\nmodel_path = "m"\ntp_size = 8\nport = 1234\nenable_metrics = true\n')
    deployment = resolve(path, ["--tensor-parallel=2"], environ={}).deployment
    assert deployment.arguments == ("--model-path", "m", "--port", "1234", "--enable-metrics", "--tensor-parallel=2")
    origins = {name: setting.origin for name, setting in deployment.server.items()}
    assert origins == {
        "model_path": "x.toml:2",
        "port": "x.toml:4",
        "enable_metrics": "x.toml:5",
        "tp_size": "--tensor-parallel-size on the command line",
    }


def test_a_config_file_named_in_the_profile_is_below_the_profile() -> None:
    Path("c.yaml").write_text("port: 1\ntp-size: 2\n")
    path = profile('[server]\nmodel_path = "m"\nconfig = "./c.yaml"\nport = 3\n')
    deployment = resolve(path, [], environ={}).deployment
    assert (deployment.get("port"), deployment.get("tp_size")) == (3, 2)
    assert deployment.server["tp_size"].origin.endswith("c.yaml:2 (--config)")
    assert "--config" in deployment.arguments
    Path("d.yaml").write_text("tp-size: 4\n")
    deployment = resolve(path, ["--config", "d.yaml"], environ={}).deployment
    assert deployment.get("tp_size") == 4
    assert deployment.arguments.count("--config") == 1


def test_a_config_file_s_faults_have_a_line() -> None:
    Path("c.yaml").write_text("port: 1\ntp-sise: 2\nload-format: zebra\n")
    findings = resolve(None, ["--model-path", "m", "--config", "c.yaml"], environ={}).findings
    assert [finding.where for finding in findings] == ["c.yaml:2", "c.yaml:3"]
    assert findings[0].remedy == "did you mean --tp-size for --tp-sise?"


@pytest.mark.parametrize("levels", [500, 20_000])
def test_a_config_file_that_is_nested_too_deeply(levels: int) -> None:
    Path("c.yaml").write_text("x: " + "[" * levels + "]" * levels)
    findings = resolve(None, ["--model-path", "m", "--config", "c.yaml"], environ={}).findings
    assert [(finding.check, finding.message) for finding in findings] == [
        ("profile.config", "nested too deeply to be read")
    ]


def test_an_equals_sign_hides_a_config_file_from_sglang_and_that_is_said() -> None:
    resolution = resolve(None, ["--model-path", "m", "--config=c.yaml"], environ={})
    (finding,) = resolution.findings
    assert (finding.severity, finding.remedy) == (Severity.WARNING, "write --config c.yaml")
    assert resolution.exit_code() is ExitCode.OK
    assert resolution.exit_code(strict=True) is ExitCode.USAGE


def test_errors_of_flags_and_of_the_profile_come_together_and_usage_wins() -> None:
    path = profile('[server]\nmodel_path = "m"\ntp_sise = 8\n')
    resolution = resolve(path, ["--tp-size", "two"], environ={})
    assert [finding.exit_code for finding in resolution.findings] == [ExitCode.USAGE, ExitCode.PROFILE]
    assert resolution.findings[0].message == "argument --tp-size/--tensor-parallel-size: invalid int value: 'two'"
    assert resolution.exit_code() is ExitCode.USAGE


@pytest.mark.parametrize(("text", "code"), [(None, ExitCode.USAGE), ("", ExitCode.PROFILE)])
def test_no_model_is_the_target_s_finding(text: str | None, code: ExitCode) -> None:
    resolution = resolve(None if text is None else profile(text), ["--tp-size", "2"], environ={})
    assert [(finding.check, finding.exit_code) for finding in resolution.findings] == [("target.model_path", code)]
    assert resolution.deployment.get("tp_size") == 2  # what is valid is there for checks of other families


def test_a_missing_profile_says_only_that() -> None:
    resolution = resolve(Path("none.toml"), [], environ={})
    assert resolution.exit_code() is ExitCode.MISSING
    assert [finding.check for finding in resolution.findings] == ["profile.file"]


def test_cpu_kernels_set_the_environment_and_say_so() -> None:
    path = profile('[server]\nmodel_path = "m"\n[engine]\ncpu_kernels = true\n')
    deployment = resolve(path, [], environ={"PYTHONPATH": "/mine"}).deployment
    assert {name: setting.value for name, setting in deployment.environment.items()} == {
        "PYTHONPATH": f"{CPU_KERNELS}{os.pathsep}/mine",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
    }
    assert len(deployment.notes) == 3
    assert all("x.toml:4" in note for note in deployment.notes)


def test_cpu_kernels_leave_what_is_set() -> None:
    path = profile('[server]\nmodel_path = "m"\n[env]\nTORCH_COMPILE_DISABLE = "0"\nPYTHONPATH = "/p"\n')
    guard = GuardOptions(cpu_kernels=True)
    deployment = resolve(path, [], guard, environ={"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": "/mine"}).deployment
    assert {name: setting.value for name, setting in deployment.environment.items()} == {
        "TORCH_COMPILE_DISABLE": "0",
        "PYTHONPATH": f"{CPU_KERNELS}{os.pathsep}/p",
    }
    assert deployment.environment["TORCH_COMPILE_DISABLE"].origin == "x.toml:4"
    assert deployment.profile.engine.cpu_kernels
    assert deployment.origins["engine.cpu_kernels"] == "--guard-cpu-kernels on the command line"
    assert len(deployment.notes) == 1


def test_a_flag_that_contradicts_cpu_kernels_is_seen() -> None:
    resolution = resolve(None, ["--model", "m", "--device", "cuda"], GuardOptions(cpu_kernels=True), environ={})
    assert [finding.check for finding in resolution.findings] == ["profile.combination"]
    assert resolve(None, ["--model", "m", "--device", "cpu"], GuardOptions(cpu_kernels=True), environ={}).findings == ()


def test_guard_flags_extend_the_profile() -> None:
    path = profile(
        '[server]\nmodel_path = "m"\n[preflight]\nignore = ["a.b"]\n[timing]\ndirectory = "/log"\nkeep = 3\n'
    )
    guard = GuardOptions(cycles=Path("here"), ignore=("c.d", "a.b"))
    deployment = resolve(path, [], guard, environ={}).deployment
    assert deployment.profile.timing.directory == Path("here")
    assert deployment.profile.timing.keep == 3
    assert deployment.profile.preflight.ignore == ("a.b", "c.d")
    assert deployment.origins == {
        "timing.directory": "--guard-cycles on the command line",
        "timing.keep": "x.toml:7",
        "preflight.ignore": "x.toml:4 and --guard-ignore on the command line",
    }


def test_unknown_names_to_ignore_are_errors_where_they_stand() -> None:
    path = profile('[server]\nmodel_path = "m"\n[preflight]\nignore = [\n  "drafter.rope",\n  "drafter.ropes",\n]\n')
    guard = GuardOptions(ignore=("gpu.memry",))
    resolution = resolve(path, [], guard, environ={}, known_checks={"drafter.rope", "gpu.memory"})
    assert [(finding.where, finding.remedy, finding.exit_code) for finding in resolution.findings] == [
        ("command line", "did you mean gpu.memory?", ExitCode.USAGE),
        ("x.toml:6", "did you mean drafter.rope?", ExitCode.PROFILE),
    ]


def test_faults_of_the_profile_itself_cannot_be_ignored() -> None:
    path = profile('[server]\nmodel_path = "m"\n[preflight]\nignore = ["drafter.rope", "profile.value"]\n')
    known = {"drafter.rope", "profile.value", "profile.type"}
    findings = resolve(path, [], GuardOptions(ignore=("profile.type",)), environ={}, known_checks=known).findings
    assert [(finding.where, finding.exit_code) for finding in findings] == [
        ("command line", ExitCode.USAGE),
        ("x.toml:4", ExitCode.PROFILE),
    ]
    assert all("cannot be ignored" in finding.message for finding in findings)


def test_without_sglang_the_snapshot_warns_and_lets_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "sglang_parser", parser_module.sglang_parser)
    monkeypatch.setattr(parser_module, "installed_version", lambda: None)
    path = profile('[server]\nmodel_path = "m"\ntp_size = 2\nbrand_new = [1, 2]\nother_new = true\n')
    resolution = resolve(path, ["--newer-still", "3"], environ={})
    assert {finding.severity for finding in resolution.findings} == {Severity.WARNING}
    assert [finding.where for finding in resolution.findings] == ["command line", "x.toml:4", "x.toml:5"]
    assert "snapshot" in resolution.findings[1].message
    deployment = resolution.deployment
    assert deployment.sglang_version is None
    assert deployment.get("tp_size") == 2
    assert deployment.arguments[-6:] == ("--brand-new", "1", "2", "--other-new", "--newer-still", "3")
    wrong = resolve(profile('[server]\nmodel_path = "m"\ntp_size = "two"\n'), [], environ={})
    assert wrong.exit_code() is ExitCode.PROFILE  # what it knows, it judges


def test_a_secret_that_is_no_string_is_not_shown(tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        '[server]\nmodel_path = "m"\napi_key = 123456789\nadmin_api_key = ["123456789"]\n'
        "[env]\nHF_TOKEN = 123456789\nMY_API_KEY = [123456789]\nNCCL_DEBUG = 5\n"
    )
    findings = resolve(profile, []).findings
    text = "\n".join(str(finding) for finding in findings)
    assert len(findings) == 5
    assert "123456789" not in text
    assert "server.api_key is ***; it must be a string" in text
    assert "env.HF_TOKEN is ***; it must be a string" in text
    assert "env.NCCL_DEBUG is 5" in text

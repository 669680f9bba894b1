"""`guarded-serve profile`: what it writes can be read again, and its schema agrees with the loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guarded_serve import cli
from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.resolve import resolve
from guarded_serve.profile.schema import profile_schema
from guarded_serve.profile.sglang_parser import snapshot

FLAGS = [
    "--model-path", "./m", "--tp", "2", "--cuda-graph-bs-decode", "1", "2", "--api-key=-x", "--no-dllm-fdfo",
    "--preferred-sampling-params", '{"temperature": 0.5, "stop": null}', "--context-length", "64k",
    "--lora-paths", '{"lora_name": "a\\"b", "lora_path": "c"}', "--trust-remote-code",
]  # fmt: skip


def test_a_new_profile_launches_as_the_flags_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "new.toml"
    assert cli.main(["profile", "new", "--name", "mine", "--output", str(path), *FLAGS]) == ExitCode.OK
    again = resolve(path, [], environ={})
    assert again.findings == ()
    wanted = {name: setting.value for name, setting in resolve(None, FLAGS, environ={}).deployment.server.items()}
    wanted["model_path"] = str(tmp_path / "m")  # relative to the working folder there, to the profile here
    assert {name: setting.value for name, setting in again.deployment.server.items()} == wanted
    assert again.deployment.profile.profile.name == "mine"


def test_a_new_profile_shows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "new", "--model-path", "m"]) == ExitCode.OK
    text = capsys.readouterr().out
    for line in ("# keep = 40", "# max_used_mib = 64", '# on_failure = "refuse"', "# cpu_kernels = false"):
        assert line in text


def test_nothing_is_written_for_flags_that_sglang_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new.toml"
    assert cli.main(["profile", "new", "--output", str(path), "--model-path", "m", "--tp", "x"]) == ExitCode.USAGE
    assert "invalid int value" in capsys.readouterr().err
    assert not path.exists()


def test_show_names_the_origin_of_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text('[server]\nmodel_path = "m"\n[timing]\nkeep = 3\n')
    argv = ["profile", "show", "--profile", "x.toml", "--format", "json", "--tp", "2", "--guard-cycles", "c"]
    assert cli.main(argv) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    settings = shown["settings"]
    assert settings["server.model_path"] == {"value": "m", "origin": "x.toml:2"}
    assert settings["server.tp_size"] == {"value": 2, "origin": "--tp-size on the command line"}
    assert settings["server.port"] == {"value": 30000, "origin": "default of SGLang"}
    assert settings["timing.keep"] == {"value": 3, "origin": "x.toml:4"}
    assert settings["timing.directory"] == {"value": "c", "origin": "--guard-cycles on the command line"}
    assert settings["timing.ranks"] == {"value": "first", "origin": "default"}
    assert shown["arguments"] == ["--model-path", "m", "--tp", "2"]
    assert cli.main(["profile", "show", "--profile", "x.toml"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "command: python -m sglang.launch_server --model-path m" in text


def test_show_masks_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        assert cli.main(["profile", "show", "--format", form, "--model-path", "m", "--api-key", "sk-verysecret"]) == 0
        assert "verysecret" not in capsys.readouterr().out


def test_show_of_a_broken_profile_prints_its_errors_and_ends_with_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[server]\nmodel_path = "m"\ntp_size = "x"\n[timing]\nkeep = 0\n')
    assert cli.main(["profile", "show", "--profile", str(path)]) == ExitCode.PROFILE
    error = capsys.readouterr().err
    assert f"{path}:3: error:" in error
    assert f"{path}:5: error:" in error


def test_the_schema_has_every_flag_and_every_section() -> None:
    dump = snapshot()
    schema = profile_schema(dump)
    server = schema["properties"]["server"]
    for action in dump.actions:
        assert action.keys[0] in server["properties"], action.flag
    assert server["properties"]["tp_size"]["type"] == "integer"
    assert server["properties"]["tensor_parallel_size"]["type"] == "integer"
    assert server["properties"]["trust_remote_code"]["type"] == "boolean"
    assert server["properties"]["load_format"]["enum"][0] == "auto"
    assert server["properties"]["cuda_graph_bs_decode"] == {
        "description": dump.by_key["cuda_graph_bs_decode"].help,
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 1,
    }
    assert "no_enable_tf32_matmul" not in server["properties"]
    assert schema["$defs"]["Timing"]["properties"]["rotate_mib"]["unit"] == "MiB"
    json.dumps(schema)


def test_a_profile_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.toml"
    path.write_text("# mine\n")
    for output in (path, tmp_path):
        assert cli.main(["profile", "new", "--output", str(output), *FLAGS]) == ExitCode.USAGE
        assert f"{output}: exists and is not written over" in capsys.readouterr().err
    assert path.read_text() == "# mine\n"
    assert cli.main(["profile", "schema", "--output", str(path)]) == ExitCode.OK  # made again and again
    assert cli.main(["profile", "show", "--output", str(path), *FLAGS]) == ExitCode.OK

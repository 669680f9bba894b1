"""Our reading of a command line against the installed SGLang's own parser, in one child process for all cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.flags import FlagParser, render
from guarded_serve.profile.resolve import Resolution, resolve
from guarded_serve.profile.sglang_parser import ParserDump, installed_parser, installed_version, snapshot
from tests.support.real_parser import real_answers

pytestmark = pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed")

M = ["--model-path", "m"]
RIGHT: dict[str, list[str]] = {
    "a space": [*M, "--tp-size", "8"],
    "an equals sign": ["--model-path=m", "--tp-size=8"],
    "an empty value": [*M, "--api-key="],
    "a value with an equals sign": [*M, "--chat-template=a=b"],
    "a value that starts with a dash": [*M, "--api-key=-x"],
    "a negative number": [*M, "--base-gpu-id", "-1"],
    "an alias": ["--model", "m", "--tensor-parallel-size", "4"],
    "a short alias": [*M, "--ep", "4"],
    "an abbreviation": [*M, "--tensor-par", "4"],
    "an abbreviation with an equals sign": [*M, "--speculative-num-st=3"],
    "an exact match that is also a prefix": [*M, "--device", "cpu", "--dp", "2"],
    "a repeated flag": [*M, "--port", "1", "--port", "2"],
    "an alias after the flag": [*M, "--tp-size", "2", "--tensor-parallel-size", "4"],
    "a repeated list": [*M, "--cuda-graph-bs-decode", "1", "2", "--cuda-graph-bs-decode", "4"],
    "a switch": [*M, "--trust-remote-code"],
    "a switch's alias": [*M, "--enable-hicache"],
    "a boolean on": [*M, "--enable-tf32-matmul"],
    "a boolean off": [*M, "--no-enable-tf32-matmul"],
    "a boolean whose default is on, off": [*M, "--no-dllm-fdfo"],
    "a boolean on and off": [*M, "--enable-tf32-matmul", "--no-enable-tf32-matmul"],
    "an abbreviated boolean": [*M, "--no-enable-tf32"],
    "a list before a flag": [*M, "--log-requests-target", "a", "b", "--tp-size", "2"],
    "a list of numbers": [*M, "--bucket-time-to-first-token", "0.1", "2", "3e1"],
    "a list with an equals sign": [*M, "--cuda-graph-bs-decode=8"],
    "an empty list": [*M, "--uvicorn-access-log-exclude-prefixes"],
    "a list with choices": [*M, "--lora-target-modules", "q_proj", "all"],
    "an optional value left out": [*M, "--model-checksum"],
    "an optional value": [*M, "--model-checksum", "abc"],
    "a plain size": [*M, "--context-length", "8192"],
    "a decimal size": [*M, "--context-length", "25.6k"],
    "a binary size": [*M, "--max-total-tokens=1Mi"],
    "a nullable string": [*M, "--quantization-param-path", "None"],
    "a JSON object": [*M, "--preferred-sampling-params", '{"temperature": 0.5, "stop": ["a"]}'],
    "a JSON object as text": [*M, "--json-model-override-args", '{"num_hidden_layers": 4}'],
    "a JSON list": [*M, "--forward-hooks", '[{"name": "x"}]'],
    "a CUDA graph config": [*M, "--cuda-graph-config", '{"decode": {"max_bs": 8}}'],
    "a CUDA graph backend": [*M, "--cuda-graph-backend-decode", "full"],
    "LoRA paths": [*M, "--lora-paths", "a=b", " c ", '{"lora_name": "x", "lora_path": "y", "pinned": true}'],
    "no LoRA paths": [*M, "--lora-paths"],
    "a deprecated switch": [*M, "--disable-cuda-graph"],
    "a deprecated value": [*M, "--monokernel-backend", "amd"],
    "numeric choices": [*M, "--log-requests", "--log-requests-level", "3"],
    "floats": [*M, "--mem-fraction-static", ".5", "--schedule-conservativeness", "1e-1"],
    "--config with a space": ["--config", "full.yaml"],
    "--config between others": ["--tp-size", "4", "--config", "full.yaml", "--port", "1"],
    "--config with an equals sign, which SGLang ignores": [*M, "--config=full.yaml"],
    "an abbreviated --config, which SGLang ignores": [*M, "--confi", "full.yaml"],
    "an empty --config": [*M, "--config", "empty.yaml"],
    "speculative decoding": [
        *M,
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-draft-model",
        "d",
        "--speculative-num-steps",
        "3",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "4",
    ],
}
WRONG: dict[str, list[str]] = {
    "an unknown flag": [*M, "--tp-sise", "8"],
    "a stray word": [*M, "stray"],
    "an ambiguous abbreviation": [*M, "--speculative-n", "3"],
    "a missing value": [*M, "--tp-size"],
    "a missing list": [*M, "--cuda-graph-bs-decode"],
    "a wrong number": [*M, "--tp-size", "two"],
    "a wrong size": [*M, "--context-length", "64q"],
    "a wrong binary size": [*M, "--context-length", "1.5Mi"],
    "wrong JSON": [*M, "--preferred-sampling-params", "{"],
    "a wrong JSON list": [*M, "--forward-hooks", "["],
    "a wrong CUDA graph config": [*M, "--cuda-graph-config", "[]"],
    "a value for a switch": [*M, "--trust-remote-code=yes"],
    "a flag of a switch's name with a word": [*M, "--trust-remote-code", "true"],
    "two config files": ["--config", "full.yaml", "--config", "full.yaml"],
    "no config file": [*M, "--config"],
    "a config file of another kind": [*M, "--config", "x.json"],
    "a config file that is not there": [*M, "--config", "missing.yaml"],
    "a config file that is a list": [*M, "--config", "list.yaml"],
    "a config file with an unsupported action": [*M, "--config", "unsupported.yaml"],
    "a config file with an unknown key": [*M, "--config", "unknown.yaml"],
}
FILES = {
    "full.yaml": """model-path: from-yaml
port: 31000
tp-size: 2
enable-metrics: true
trust-remote-code: false
bucket-time-to-first-token: [0.5, 2]
encoder-urls: []
preferred-sampling-params: {temperature: 0.25}
served-model-name: "x y"
""",
    "empty.yaml": "",
    "list.yaml": "- a\n",
    "unsupported.yaml": "port: 1\ndllm-fdfo: true\n",
    "unknown.yaml": "port: 1\ntp_size: 4\n",
}
PROFILE = """[server]
model_path = "m"
tensor_parallel_size = 4
trust_remote_code = true
enable_metrics = false
enable_tf32_matmul = false
context_length = "64k"
base_gpu_id = -1
api_key = "-dash"
cuda_graph_bs_decode = [1, 2]
uvicorn_access_log_exclude_prefixes = []
lora_paths = ["a=b", { lora_name = "c", lora_path = "d" }]
preferred_sampling_params = { temperature = 0.5 }
json_model_override_args = { a = [1, 2] }
forward_hooks = [{ name = "x" }]
cuda_graph_config = { decode = { max_bs = 8 } }
disable_cuda_graph = true
model_checksum = true
port = 32000
"""
LAYERED = ["--tp", "2", "--config", "full.yaml", "--no-dllm-fdfo"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("flags")
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "p.toml").write_text(PROFILE)
    return path


@pytest.fixture(scope="module")
def dump() -> ParserDump:
    found = installed_parser()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def sglang(folder: Path) -> dict[str, Any]:
    """SGLang's own answers, to the user's flags as well as to the arguments that we make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cases = {
            **RIGHT,
            **WRONG,
            "<profile>": list(resolve(Path("p.toml"), []).deployment.arguments),
            "<layers>": list(resolve(Path("p.toml"), LAYERED).deployment.arguments),
        }
        return dict(zip(cases, real_answers(list(cases.values()), folder), strict=True))


def effective(resolution: Resolution, dump: ParserDump) -> dict[str, Any]:
    """Every setting by dest, as SGLang's namespace has it."""
    settings = {name: setting.value for name, setting in resolution.deployment.server.items()}
    return json.loads(json.dumps({**dump.defaults, **settings}))  # type: ignore[no-any-return]


def same(resolution: Resolution, dump: ParserDump, theirs: dict[str, Any]) -> bool:
    """Whether all settings agree; SGLang leaves some out that have no default, and `--config` is not one."""
    ours = effective(resolution, dump)
    left_out = [name for name in ours if name not in theirs and name not in resolution.deployment.server]
    assert len(left_out) <= 4, left_out
    for name in (*left_out, "config"):
        ours.pop(name, None)
    assert ours == {name: value for name, value in theirs.items() if name != "config"}
    return True


def agree(case: str, argv: list[str], theirs: dict[str, Any], dump: ParserDump) -> ExitCode:
    """Assert that we take or refuse a command line as SGLang does; returns our exit code."""
    resolution = resolve(None, argv)
    code = resolution.exit_code()
    if "values" in theirs:
        assert code is ExitCode.OK, (case, resolution.findings)
        assert resolution.deployment.arguments == tuple(argv)
        assert same(resolution, dump, theirs["values"])
        return code
    assert code is (ExitCode.MISSING if "missing.yaml" in argv else ExitCode.USAGE)
    first = next(finding for finding in resolution.findings if finding.check in ("profile.flags", "profile.config"))
    words = theirs["error"]
    assert first.message.partition(" (choose")[0] in words
    assert "argument" not in words or first.message.startswith(words[:40])
    return code


@pytest.mark.parametrize("case", RIGHT)
def test_the_same_namespace(
    case: str, sglang: dict[str, Any], dump: ParserDump, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code = agree(case, RIGHT[case], sglang[case], dump)
    assert code is ExitCode.OK or dump.version != snapshot().version  # other versions may lack a flag of these cases


@pytest.mark.parametrize("case", WRONG)
def test_the_same_refusal_in_the_same_words(
    case: str, sglang: dict[str, Any], dump: ParserDump, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert agree(case, WRONG[case], sglang[case], dump) is not ExitCode.OK


def test_there_are_enough_cases() -> None:
    assert len(RIGHT) >= 40


def test_a_profile_renders_to_what_was_set(
    sglang: dict[str, Any], dump: ParserDump, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    resolution = resolve(Path("p.toml"), [])
    assert resolution.findings == ()
    assert same(resolution, dump, sglang["<profile>"]["values"])
    values = sglang["<profile>"]["values"]
    assert (values["tp_size"], values["context_length"], values["base_gpu_id"]) == (4, 64000, -1)
    assert (values["api_key"], values["enable_tf32_matmul"], values["model_checksum"]) == ("-dash", False, "")
    assert values["lora_paths"] == ["a=b", {"lora_name": "c", "lora_path": "d"}]
    assert values["json_model_override_args"] == '{"a": [1, 2]}'


def test_flags_beat_the_profile_and_the_profile_beats_yaml(
    sglang: dict[str, Any], dump: ParserDump, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    resolution = resolve(Path("p.toml"), LAYERED)
    server = resolution.deployment.server
    assert {name: (server[name].value, server[name].origin) for name in ("tp_size", "port", "served_model_name")} == {
        "tp_size": (2, "--tp-size on the command line"),
        "port": (32000, "p.toml:19"),
        "served_model_name": ("x y", "full.yaml:9 (--config)"),
    }
    # the profile says false and the file true: a switch cannot be turned off, and that is said
    (finding,) = resolution.findings
    assert finding.check == "profile.combination"
    assert (finding.where, "full.yaml:4" in finding.message) == ("p.toml:5", True)
    theirs = sglang["<layers>"]["values"]
    assert theirs["enable_metrics"] is True
    assert same(resolution, dump, {**theirs, "enable_metrics": False})


def test_every_flag_can_stand_in_a_profile(dump: ParserDump) -> None:
    """Each of SGLang's flags, with a fitting value, goes from a profile to tokens and back."""
    parser = FlagParser(dump)
    for action in dump.actions:
        scalar: Any = {
            "int": 3, "float": 0.5, "human_readable_int": "4k", "loads": {"a": 1}, "json_list_type": [1],
            "parse_cuda_graph_config_arg": {"decode": {}},
        }.get(action.type or "str", "text")  # fmt: skip
        read = 4000 if action.type == "human_readable_int" else scalar
        if action.choices:
            scalar = read = action.choices[0]
        value, wanted = (
            (True, True) if action.is_switch else ([scalar], [read]) if action.takes_list else (scalar, read)
        )
        if "const_value" in action.extra:
            wanted = action.extra["const_value"]
        assert parser.parse_setting(action, render(action, value)) == wanted, action.flag
        if action.has_opposite:
            assert parser.parse_setting(action, render(action, False)) is False

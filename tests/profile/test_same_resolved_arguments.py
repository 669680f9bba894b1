"""Drop-in: the launcher's child resolves to the arguments that `sglang.launch_server` resolves the same flags to.

The real launcher runs up to the start of its child for every case; then the installed SGLang resolves what the child
would be given, in the child's environment, and the user's own words in the user's environment: two processes, each of
which imports SGLang once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY, PLUGIN_NAME
from guarded_serve.profile.resolve import CPU_KERNELS
from guarded_serve.profile.sglang_parser import installed_version
from guarded_serve.supervisor.environment import _OURS_ALONE
from tests.support.handed_over import HandedOver, handed_over
from tests.support.resolved_arguments import resolved

pytestmark = [
    pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed"),
    pytest.mark.timeout(600),
]

DEMO = Path(__file__).parents[2] / "demo"
HUB_ID, REVISION = "demo-org/target", "0123456789abcdef0123456789abcdef01234567"

BY_CHANCE = {"random_seed", "nccl_port"}
"""What SGLang draws anew at every start."""

M = ["--model-path", str(DEMO / "target"), "--device", "cpu"]
EAGLE3 = [*M, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(DEMO / "drafter")]
CHAIN = [
    *("--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
]
AMX = [
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--speculative-draft-attention-backend", "intel_amx"),
]

SAME: dict[str, list[str]] = {
    "nothing but the model": M[:2],
    "the device": M,
    "a hub id": ["--model-path", HUB_ID, "--device", "cpu"],
    "a hub id and a revision": ["--model", HUB_ID, "--revision", REVISION, "--device", "cpu"],
    "a hub id and a branch": ["--model", HUB_ID, "--revision=main", "--device", "cpu"],
    "equals signs": [f"--model-path={DEMO / 'target'}", "--device=cpu", "--mem-fraction-static=.5"],
    "an alias": ["--model", str(DEMO / "target"), "--device", "cpu", "--tensor-parallel-size", "2"],
    "an abbreviation": [*M, "--context-len", "512"],
    "an abbreviation with an equals sign": [*M, "--max-running-req=7"],
    "a repeated flag": [*M, "--max-running-requests", "3", "--max-running-requests", "5"],
    "an alias after the flag": [*M, "--tp-size", "4", "--tensor-parallel-size", "1"],
    "a switch": [*M, "--trust-remote-code"],
    "several switches": [*M, "--disable-radix-cache", "--enable-metrics", "--log-requests", "--skip-server-warmup"],
    "a boolean on": [*M, "--enable-tf32-matmul"],
    "a boolean off": [*M, "--no-enable-tf32-matmul"],
    "a boolean on and off": [*M, "--enable-tf32-matmul", "--no-enable-tf32-matmul"],
    "a list": [*M, "--bucket-time-to-first-token", "0.1", "2", "3e1", "--enable-metrics"],
    "an empty list": [*M, "--uvicorn-access-log-exclude-prefixes"],
    "a repeated list": [*M, "--cuda-graph-bs-decode", "1", "2", "--cuda-graph-bs-decode", "4"],
    "sizes with a unit": [*M, "--context-length", "0.5k", "--max-total-tokens", "1Mi"],
    "a JSON object": [*M, "--preferred-sampling-params", '{"temperature": 0.5, "stop": ["a"]}'],
    "a JSON object over the config": [*M, "--json-model-override-args", '{"rope_theta": 20000.0}'],
    "a JSON object for the graphs": [*M, "--cuda-graph-config", '{"decode": {"max_bs": 8}}'],
    "a deprecated switch": [*M, "--disable-cuda-graph"],
    "dtype and backends": [*M, *AMX[:4], "--dtype", "float32", "--sampling-backend", "pytorch"],
    "a named model": [*M, "--served-model-name", "a b", "--chat-template", "chatml"],
    "scheduling": [*M, "--schedule-policy", "fcfs", "--chunked-prefill-size", "256", "--max-prefill-tokens=512"],
    "an API key": [*M, "--api-key", "sk-something"],
    "an API key that begins with a dash": [*M, "--api-key=-x"],
    "an abbreviated API key": [*M, "--api-k", "sk-something"],
    "two keys": [*M, "--api-key", 'a"b: c', "--admin-api-key=other", "--port", "31234"],
    "host and port": [*M, "--host", "0.0.0.0", "--port", "31999"],
    "TLS": [*M, "--ssl-certfile", "cert.pem", "--ssl-keyfile", "key.pem", "--ssl-keyfile-password", "pw"],
    "two nodes, the second": [*M, "--nnodes", "2", "--tp", "2", "--node-rank", "1", "--dist-init-addr", "h:5000"],
    "gRPC": [*M, "--smg-grpc-mode"],
    "an embedding server": [*M, "--is-embedding"],
    "no tokenizer": [*M, "--skip-tokenizer-init"],
    "--config with a space": [*M, "--config", "full.yaml"],
    "--config below flags": ["--config", "full.yaml", *M, "--max-running-requests", "9"],
    "--config with an equals sign": [*M, "--config=full.yaml"],
    "--config and a key": [*M, "--config", "full.yaml", "--api-key", "sk-something"],
    "EAGLE-3 by SGLang's own settings": [*EAGLE3],
    "EAGLE-3, a chain": [*EAGLE3, *CHAIN, *AMX],
    "EAGLE-3, a tree": [*EAGLE3, *CHAIN[:2], "--speculative-eagle-topk=4", "--speculative-num-draft-tokens=12", *AMX],
    "EAGLE-3, abbreviated": [*EAGLE3, "--speculative-num-st=2", "--speculative-eagle-t=1", "--speculative-num-d=3"],
    "EAGLE-3 beside a limit": [*EAGLE3, *CHAIN, "--max-running-requests", "4"],
    "the drafter's own alias": [*M, "--speculative-algo", "EAGLE3", "--speculative-draft-model", str(DEMO / "drafter")],
    "NGRAM": [*M, "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"],
    "a seed": [*M, "--random-seed", "7"],
}
REFUSED_BY_SGLANG = {
    "an encoder alone, of a model without one": [*M, "--encoder-only"],
}
"""What our checks leave to SGLang's own resolution; it says the same either way."""

GUARD_SETS = {
    "an unquantized drafter under a quantized target": (
        [*EAGLE3, *CHAIN, "--quantization", "w8a8_int8"],
        "--speculative-draft-model-quantization unquant",
        {"speculative_draft_model_quantization": None, "_speculative_draft_quantization_explicitly_set": True},
    )
}
"""Flags, what the guard adds, and the settings that resolve otherwise for it (SGLang makes None of `unquant`)."""

CASES = {**SAME, **REFUSED_BY_SGLANG, **{name: argv for name, (argv, _, _) in GUARD_SETS.items()}}
FILES = {
    "full.yaml": """served-model-name: from-yaml
max-running-requests: 6
enable-metrics: true
trust-remote-code: false
bucket-time-to-first-token: [0.5, 2]
preferred-sampling-params: {temperature: 0.25}
""",
}


@dataclass(frozen=True)
class Both:
    """One case: what the launcher handed over, and what SGLang makes of that and of the user's words."""

    handed: HandedOver
    ours: dict[str, Any]
    theirs: dict[str, Any]


def _hub_cache(folder: Path) -> Path:
    """The demo target as a hub's cache has it."""
    model = folder / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = model / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(REVISION)
    for file in (DEMO / "target").iterdir():
        (snapshot / file.name).symlink_to(file)
    return folder / "hub"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's: SGLang's CPU engine by hand, a plugin list, and systemd's variables for the launcher."""
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", *_OURS_ALONE)},
        "PYTHONPATH": str(CPU_KERNELS),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "SGLANG_PLUGINS": "of-the-user",
        "NOTIFY_SOCKET": "/nowhere",
        "HF_HUB_CACHE": str(_hub_cache(tmp_path_factory.mktemp("hf"))),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("launches")
    for name, text in FILES.items():
        (path / name).write_text(text)
    for name in ("cert.pem", "key.pem"):
        (path / name).write_text("")
    return path


@pytest.fixture(scope="module")
def launches(folder: Path, environment: Mapping[str, str]) -> dict[str, HandedOver]:
    return dict(zip(CASES, handed_over(list(CASES.values()), folder, environment), strict=True))


@pytest.fixture(scope="module")
def both(launches: dict[str, HandedOver], folder: Path, environment: Mapping[str, str]) -> dict[str, Both]:
    refused = {name: launch.log for name, launch in launches.items() if launch.arguments is None}
    assert refused == {}
    for_child = next(iter(launches.values())).environment
    assert for_child is not None
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(resolved, [launch.arguments or [] for launch in launches.values()], folder, for_child, "a")
        theirs = pool.submit(resolved, list(CASES.values()), folder, environment, "b")
        pairs = zip(ours.result(), theirs.result(), strict=True)
    return {name: Both(launches[name], *pair) for name, pair in zip(CASES, pairs, strict=True)}


def _differences(case: Both) -> dict[str, Any]:
    """The settings in which they differ, as the launcher's child has them."""
    assert "values" in case.theirs, case.theirs
    assert "values" in case.ours, case.ours
    ours, theirs = case.ours["values"], case.theirs["values"]
    assert ours.keys() == theirs.keys()
    assert len(ours) > 300
    return {name: ours[name] for name in ours if ours[name] != theirs[name] and name not in BY_CHANCE}


def test_there_are_enough_cases() -> None:
    assert len(SAME) >= 40


@pytest.mark.parametrize("name", SAME)
def test_the_same_flags_resolve_to_the_same_arguments(both: dict[str, Both], name: str) -> None:
    assert _differences(both[name]) == {}


def test_other_flags_resolve_to_other_arguments(both: dict[str, Both]) -> None:
    """The comparison can fail, and what the flags say arrives."""
    crossed = Both(both["the device"].handed, both["a switch"].ours, both["the device"].theirs)
    assert _differences(crossed) == {"trust_remote_code": True}
    chain = both["EAGLE-3, a chain"].ours["values"]
    assert (chain["speculative_num_steps"], chain["speculative_eagle_topk"]) == (3, 1)
    assert both["--config below flags"].ours["values"]["max_running_requests"] == 9
    assert both["two keys"].ours["values"]["api_key"] == 'a"b: c'


@pytest.mark.parametrize("name", REFUSED_BY_SGLANG)
def test_what_sglang_refuses_it_refuses_alike(both: dict[str, Both], name: str) -> None:
    assert both[name].theirs["error"]
    assert both[name].ours == both[name].theirs


@pytest.mark.parametrize("name", GUARD_SETS)
def test_what_the_guard_sets_is_in_its_log_and_nothing_else_is_set(both: dict[str, Both], name: str) -> None:
    argv, added, expected = GUARD_SETS[name]
    assert _differences(both[name]) == expected
    assert both[name].handed.arguments == [*argv, *added.split()]
    assert f"{added} (the guard:" in both[name].handed.log


@pytest.mark.parametrize("name", SAME)
def test_nothing_is_said_to_be_set_where_nothing_was(launches: dict[str, HandedOver], name: str) -> None:
    assert "(the guard:" not in launches[name].log
    words = launches[name].arguments
    assert words is not None
    moved = "handed to SGLang in a private file (--config)" in launches[name].log
    assert moved is (words[:1] == ["--config"] and SAME[name][:1] != ["--config"])
    if not moved:
        assert words == SAME[name]


def test_the_environment_is_the_users_but_for_what_the_log_says(
    launches: dict[str, HandedOver], environment: Mapping[str, str]
) -> None:
    for launch in launches.values():
        assert launch.environment is not None
        changed = {name: value for name, value in launch.environment.items() if environment.get(name) != value}
        assert changed.pop(ENVIRONMENT_KEY)
        assert changed == {"SGLANG_PLUGINS": f"of-the-user,{PLUGIN_NAME}", "PYTHONUNBUFFERED": "1"}
        assert environment.keys() - launch.environment.keys() == {"NOTIFY_SOCKET"}
        said = (
            f"the server's environment, by the guard: {ENVIRONMENT_KEY}, SGLANG_PLUGINS=of-the-user,{PLUGIN_NAME}, "
            "PYTHONUNBUFFERED=1; without NOTIFY_SOCKET"
        )
        assert said in launch.log

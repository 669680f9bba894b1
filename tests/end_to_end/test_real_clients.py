"""Real clients against the launcher over the real engine: what serves SGLang's users serves them unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guarded_serve.facts.ports import free_port
from guarded_serve.profile.resolve import CPU_KERNELS
from guarded_serve.profile.sglang_parser import installed_version
from tests.support.popen_launch_server import popen_launch_server

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed"),
]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
KEY = "sk-of-the-clients"
PROMPT = json.loads((DEMO / "prompts.jsonl").read_text().splitlines()[0])["text"]
FLAGS = [
    *("--guard-cpu-kernels", "--device", "cpu", "--dtype", "float32", "--enable-metrics"),
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--mem-fraction-static", "0.5", "--max-total-tokens", "20000", "--allow-auto-truncate"),
    *("--tool-call-parser", "qwen25", "--served-model-name", "demo"),
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(DEMO / "drafter")),
    *("--speculative-draft-attention-backend", "intel_amx", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
]


def _flags(folder: Path) -> list[str]:
    """SGLang's flags, and a profile without a probe: the built-in prompts are no text for the demo pair."""
    profile = folder / "profile.toml"
    profile.write_text("[probe]\nenabled = false\n")
    return ["--profile", str(profile), *FLAGS]


@dataclass(frozen=True)
class Served:
    """A guarded server."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clients")
    url = f"http://127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = popen_launch_server(
            str(DEMO / "target"),
            url,
            timeout=240,
            api_key=KEY,
            other_args=_flags(folder),
            env={"OMP_NUM_THREADS": "1"},
            return_stdout_stderr=(log, log),
        )
        try:
            yield Served(url, folder / "log")
        finally:
            process.terminate()
            code = process.wait(60)
    assert code == 0
    text = (folder / "log").read_text()
    assert "state=stopped" in text
    assert KEY not in text


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    openai = pytest.importorskip("openai", reason="the OpenAI client is not installed")
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY)


def _ask(client: Any, **options: Any) -> Any:
    messages = [{"role": "user", "content": PROMPT}]
    return client.chat.completions.create(
        model="demo", messages=messages, **{"temperature": 0, "max_tokens": 48, **options}
    )


def test_the_openai_client_chats(client: Any) -> None:
    answer = _ask(client)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 48
    assert [model.id for model in client.models.list()] == ["demo"]


def test_the_openai_client_streams_the_same_text(client: Any) -> None:
    whole = _ask(client).choices[0].message.content
    chunks = list(_ask(client, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len([piece for piece in pieces if piece]) > 3
    assert "".join(pieces) == whole
    assert chunks[-1].usage.completion_tokens > 0


def test_the_openai_client_gets_a_tool_call(client: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": True}}
    answer = _ask(
        client, max_tokens=256, tools=[tool], tool_choice={"type": "function", "function": {"name": "weather"}}
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_a_wrong_key_is_sglangs_to_refuse(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="the OpenAI client is not installed")
    with pytest.raises(openai.AuthenticationError):
        _ask(openai.OpenAI(base_url=f"{served.url}/v1", api_key="another"))


def _environment(**more: str) -> dict[str, str]:
    """For SGLang's own tools, which import sgl_kernel."""
    path = os.pathsep.join((str(CPU_KERNELS), str(ROOT)))
    return {**os.environ, "PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1", "OPENAI_API_KEY": KEY, **more}


def test_bench_serving(served: Served, tmp_path: Path) -> None:
    output = tmp_path / "bench.jsonl"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat", "--base-url", served.url),
            *("--dataset-name", "random-ids", "--num-prompts", "8", "--max-concurrency", "2"),
            *("--random-input-len", "48", "--random-output-len", "32", "--random-range-ratio", "1"),
            *("--model", "demo", "--tokenizer", str(DEMO / "target"), "--output-file", str(output)),
        ],
        env=_environment(HF_HUB_OFFLINE="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    result = json.loads(output.read_text().splitlines()[-1])
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 32
    assert result["accept_length"] > 1


def test_sglangs_speculative_test_kit(tmp_path: Path) -> None:
    """It knows no API key, and takes what its own `popen_launch_server` gives.

    Its prompt is a chat, of which the demo pair knows nothing: 1.30 over 2,010 tokens; 1.0 is the least there is.
    """
    url = f"http://127.0.0.1:{free_port()}"
    with (tmp_path / "log").open("wb") as log:
        process = popen_launch_server(
            str(DEMO / "target"), url, 240, other_args=_flags(tmp_path), return_stdout_stderr=(log, log)
        )
        try:
            done = subprocess.run(
                [sys.executable, "-m", "unittest", "tests.support.spec_decoding_case"],
                env=_environment(
                    KIT_BASE_URL=url, KIT_MODEL=str(DEMO / "target"), KIT_ACCEPT_LENGTH="1.1", KIT_SPEED="5"
                ),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            process.terminate()
            process.wait(60)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "Ran 1 test" in done.stderr
    assert process.returncode == 0

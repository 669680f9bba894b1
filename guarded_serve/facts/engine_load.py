"""What the installed SGLang itself makes of the drafter, asked of a child: `guarded_serve.engine.oracle`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import guarded_serve
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.own_module import NEUTRAL_FOLDER, own_environment

if TYPE_CHECKING:
    from guarded_serve.facts.model import ModelFacts
    from guarded_serve.profile.deployment import Deployment

DEADLINE_S = 600.0
"""SGLang's import took 10 s on two idle cores; a head of 1.2 B parameters is filled in seconds."""
_KERNELS = Path(guarded_serve.__file__).parent / "cpu_kernels"


class NoAnswer(Exception):
    """SGLang could not be asked; the text says why."""

    def __init__(self, message: str, remedy: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.exit_code = exit_code


@dataclass(frozen=True)
class LoadedParameter:
    """One parameter after the class's own load_weights."""

    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()  # the file's tensors that it holds values of
    unwritten: str | None = None  # "no", "partly", "wholly"; None: it never came to that


@dataclass(frozen=True)
class EngineLoad:
    """One drafter, built and loaded on the CPU by SGLang's own code. The fields are the oracle's."""

    version: str
    stage: str  # how far it came: config, build, load, share, done
    failure: str | None
    class_name: str | None
    parameters: Mapping[str, LoadedParameter]
    without_effect: tuple[str, ...] | None  # None: not known, in a quantized drafter
    map: Mapping[str, Any] | None
    map_names: tuple[str, ...]
    shared: tuple[str, ...]
    tied: bool
    captured_layers: tuple[int, ...] | None
    capture_failure: str | None

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Parameters of which the file left at least a part unwritten and that the target's do not replace."""
        return tuple(
            name
            for name, one in self.parameters.items()
            if one.unwritten in ("partly", "wholly") and name not in self.shared
        )


def with_engine_load(facts: ModelFacts, deployment: Deployment) -> ModelFacts:
    """The facts, with SGLang's word on the drafter; as they were where there is no drafter's folder to load."""
    if facts.algorithm is None or facts.drafter is None or facts.drafter.directory is None:
        return facts
    pair = {
        "drafter": str(facts.drafter.directory.absolute()),
        "target": str((facts.target.directory or Path(facts.target.given)).absolute()),
        "algorithm": facts.algorithm,
        "overrides": _text(deployment.get("json_model_override_args")),
        "trust_remote_code": bool(deployment.get("trust_remote_code")),
    }
    environment = {**os.environ, **facts.environment}
    try:
        return replace(facts, engine=ask([pair], environment=environment)[0])
    except NoAnswer as why:
        return replace(facts, engine=why)


def _text(overrides: Any) -> str | None:
    return overrides if isinstance(overrides, str) or overrides is None else json.dumps(overrides)


def ask(
    pairs: Sequence[Mapping[str, Any]],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> list[EngineLoad]:
    """What SGLang does with each pair, as `engine.oracle` describes them. Raises `NoAnswer`."""
    answer = ask_raw({"pairs": list(pairs)}, python=python, environment=environment, deadline_s=deadline_s)
    return [read_load(answer["version"], one) for one in answer["pairs"]]


def ask_raw(
    request: Mapping[str, Any],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """The oracle's answer to one request. Raises `NoAnswer`."""
    if python == sys.executable and importlib.util.find_spec("sglang") is None:
        raise NoAnswer(
            f"SGLang is not installed for {python}, so it cannot be asked what it makes of the drafter",
            "run it where the server runs, or leave --with-engine out: every other check works without SGLang",
            ExitCode.USAGE,
        )
    variables = own_environment(os.environ if environment is None else environment)
    variables["PYTHONPATH"] += os.pathsep + str(_KERNELS)
    variables.update(SGLANG_USE_CPU_ENGINE="1", TORCH_COMPILE_DISABLE="1", CUDA_VISIBLE_DEVICES="")
    try:
        done = subprocess.run(
            [python, "-m", "guarded_serve.engine.oracle"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            cwd=NEUTRAL_FOLDER,
            env=variables,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            f"SGLang took more than {deadline_s:.0f} s to load the drafter on the CPU",
            "try again on a machine that does less",
            ExitCode.INTERNAL,
        ) from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no output")
        raise NoAnswer(
            f"the child that loads the drafter through SGLang ended with {done.returncode}: {last[:300]}",
            f"run `{python} -m guarded_serve.engine.oracle </dev/null` to see whether SGLang imports at all",
            ExitCode.INTERNAL,
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def read_load(version: str, told: Mapping[str, Any]) -> EngineLoad:
    """One of the answer's pairs."""
    layers, dropped = told["captured_layers"], told.get("without_effect")
    return EngineLoad(
        version=version,
        stage=told["stage"],
        failure=told["failure"],
        class_name=told.get("class"),
        parameters={
            name: LoadedParameter(tuple(one["shape"]), tuple(one.get("from", ())), one.get("unwritten"))
            for name, one in told.get("parameters", {}).items()
        },
        without_effect=None if dropped is None else tuple(dropped),
        map=told.get("map"),
        map_names=tuple(told.get("map_names", ())),
        shared=tuple(told.get("shared", ())),
        tied=bool(told.get("tied")),
        captured_layers=None if layers is None else tuple(layers),
        capture_failure=told["capture_failure"],
    )

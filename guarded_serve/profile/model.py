"""The profile: one typed, frozen model a section, with the description and unit of every key.

The descriptions feed the JSON Schema (`profile schema`), the comments of `profile new` and docs/profile.md; a key
that is not here does not exist. `[server]` is an open mapping here: the installed SGLang's own parser judges it
(`flags.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

VISIBLE = "visible"
BUILTIN_PROMPTS = "builtin"


def _key(default: Any, description: str, *, unit: str | None = None, expected: str | None = None, **rules: Any) -> Any:
    """A profile key. ``expected`` says in words what may stand here, where the schema alone reads badly."""
    extra: dict[str, Any] = {name: text for name, text in (("unit", unit), ("expected", expected)) if text is not None}
    return Field(default, description=description, json_schema_extra=extra or None, **rules)


class Section(BaseModel):
    """A table of the profile: frozen, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=False
    )


class About(Section):
    """What this profile is called."""

    name: str | None = _key(
        None, "Name in logs, reports and metrics; the file's name without its ending if unset.", min_length=1
    )


class Gpus(Section):
    """Which GPUs, and what counts as empty."""

    devices: (
        Literal["visible"] | Annotated[tuple[Annotated[int, Field(ge=0)] | str, ...], Field(strict=False, min_length=1)]
    ) = _key(
        VISIBLE,
        'The GPUs to use: "visible" (what CUDA_VISIBLE_DEVICES leaves) or a list of indices in PCI order, UUIDs or '
        "unique UUID prefixes.",
        expected='"visible", or a list of GPU indices, UUIDs or unique UUID prefixes',
    )
    max_used_mib: int = _key(
        64,
        "Memory in use above which a GPU is not empty (NVML v2 'used': driver-reserved memory does not count).",
        unit="MiB",
        ge=0,
    )
    graphics_mib: int = _key(0, "Memory that graphics-only processes (a desktop) may hold besides.", unit="MiB", ge=0)
    selftest: bool = _key(False, "Allocate, multiply and all-reduce on the chosen GPUs before the start.")
    wait_s: float = _key(
        120, "How long to wait for memory, ports and shared memory that a stopped server still holds.", unit="s", ge=0
    )


class Drafter(Section):
    """What the drafter must be, besides fitting its target."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = _key(
        None,
        "SHA-256 of the drafter's safetensors file (the hub's LFS oid); another file is refused.",
        expected="64 lower-case hexadecimal digits",
    )
    trained_for: str | None = _key(
        None,
        "Path or hub id of the model that the drafter was made for: its tokenizer and layers are compared.",
        min_length=1,
    )
    reference: str | None = _key(
        None, "Path or hub id of a drafter that works with this target: differences are shown.", min_length=1
    )
    allow_pickle: bool = _key(
        False, "Allow a drafter that exists only as a pickle (.bin), which SGLang would unpickle."
    )


class Preflight(Section):
    """How the checks before the start count."""

    ignore: Annotated[tuple[str, ...], Field(strict=False)] = _key(
        (),
        "Checks whose errors count as warnings (`check --list` names them); they run and are logged at every start.",
        expected='a list of check names such as "drafter.rope"',
    )
    deep: bool = _key(
        False, "Read every byte of the drafter at every start, as `check --deep` does: NaN, Inf, constant tensors."
    )


class Probe(Section):
    """Real generations between start and READY."""

    enabled: bool = _key(True, "Generate with the drafter before READY and judge the accept length.")
    prompts: str = _key(
        BUILTIN_PROMPTS,
        'What to generate from: "builtin", or a JSONL file with a list of chat messages a line.',
        min_length=1,
        expected='"builtin" or the path of a JSONL file',
    )
    min_accept_length: float = _key(
        1.6, "Least mean accept length (bonus token included) that passes.", unit="tokens a cycle", ge=1.0
    )
    on_failure: Literal["refuse", "warn", "serve-without-drafter"] = _key(
        "refuse", "What a failed probe does: end the launch, warn and serve, or start again without the drafter."
    )


class BreakEven(Section):
    """When a drafter earns its keep: cycle time over plain decode step time, by batch size."""

    baseline_tok_s: dict[Annotated[int, Field(strict=False, ge=1)], Annotated[float, Field(gt=0)]] = _key(
        {},
        "Tokens per second of the whole batch without a drafter, by batch size; `smoke` prints this table.",
        unit="tok/s",
        expected="a table from batch size to tokens per second above 0, such as { 1 = 82.0 }",
    )
    patience_s: float = _key(
        300, "How long the accept length may stay below break-even before the alarm.", unit="s", gt=0
    )


class Timing(Section):
    """The cycle log."""

    directory: Annotated[Path, Field(strict=False)] | None = _key(
        None, "Folder for cycles-RANK*.jsonl; no cycle log is written if unset.", expected="the path of a folder"
    )
    ranks: Literal["first", "all"] = _key("first", "Which tensor-parallel ranks write a log.")
    rotate_mib: int = _key(256, "Size at which a log file is rotated.", unit="MiB", ge=1)
    keep: int = _key(40, "Rotated files kept per rank; 40 are about two days at batch size 1.", unit="files", ge=1)


class Metrics(Section):
    """The launcher's own Prometheus metrics."""

    port: int = _key(
        0, "Port of the launcher's own /metrics; 0: none, only SGLang's own, when that is on.", ge=0, le=65535
    )
    host: str = _key(
        "127.0.0.1",
        "Address that /metrics listens on; it asks for no key, so one that others reach is a choice to make.",
        min_length=1,
    )


class Smoke(Section):
    """The pre-merge test of a new drafter."""

    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)] = _key(
        (1, 8),
        "Batch sizes to measure with and without the drafter.",
        unit="requests",
        expected="a list of integers of at least 1",
    )
    min_gain: float = _key(1.05, "Least ratio of tokens per second with the drafter to without.", unit="ratio", gt=0)
    min_accept_length: float | None = _key(
        None,
        "Least accept length (bonus token included) that passes; probe.min_accept_length if unset.",
        unit="tokens a cycle",
        ge=1.0,
        expected="a number of at least 1",
    )
    min_first_position: float = _key(
        0.2,
        "Least share of first drafted tokens that the target accepts; below about 0.2 drafter and target do not fit.",
        unit="ratio",
        ge=0,
        le=1,
    )
    max_regression: float = _key(
        0.05,
        "How far accept length may fall below the recorded drafter's, as a fraction of it.",
        unit="ratio",
        ge=0,
        lt=1,
    )
    new_tokens: int = _key(128, "Tokens generated from each prompt.", unit="tokens", ge=8)
    repeats: int = _key(
        3, "Times that every prompt is measured at each batch size; a noisy machine gets up to twice as many.", ge=2
    )
    record: Annotated[Path, Field(strict=False)] | None = _key(
        None,
        "File that `smoke --record` writes and that later runs and the break-even watch compare with.",
        expected="the path of a file",
    )


class Supervise(Section):
    """The server process: deadlines and restarts."""

    start_deadline_s: float = _key(1800, "From start to READY.", unit="s", gt=0)
    drain_s: float = _key(
        120, "From a stop signal to the end of running requests; then the server is ended.", unit="s", ge=0
    )
    hang_s: float = _key(
        120, "No cycle and no token for this long while requests run: the server hangs.", unit="s", gt=0
    )
    probe_interval_s: float = _key(
        30, "Between health probes that generate a token, when nothing else shows progress.", unit="s", gt=0
    )
    restarts: int = _key(
        0, "In-process restarts allowed within restart_window_s; 0: systemd or the orchestrator restarts.", ge=0
    )
    restart_window_s: float = _key(3600, "Window in which restarts are counted.", unit="s", gt=0)


class Engine(Section):
    """How SGLang itself is run."""

    cpu_kernels: bool = _key(
        False,
        "Put the CPU operators that SGLang's EAGLE path needs, in plain PyTorch, on the server's PYTHONPATH: "
        "EAGLE on machines with no GPU. Sets SGLANG_USE_CPU_ENGINE=1 and, where unset, TORCH_COMPILE_DISABLE=1.",
    )


EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Profile(Section):
    """A deployment of SGLang under guard."""

    profile: About = Field(default=About(), description="What this profile is called.")
    server: dict[str, Any] = Field(
        default={},
        description="SGLang's flags in snake_case, one for one; checked against the installed SGLang's own parser.",
    )
    env: dict[EnvironmentName, str] = Field(
        default={},
        description="Environment variables for the server process only.",
        json_schema_extra={"expected": "a string (environment variables are text)"},
    )
    engine: Engine = Field(default=Engine(), description="How SGLang itself is run.")
    gpus: Gpus = Field(default=Gpus(), description="Which GPUs, and what counts as empty.")
    drafter: Drafter = Field(default=Drafter(), description="What the drafter must be, besides fitting its target.")
    preflight: Preflight = Field(default=Preflight(), description="How the checks before the start count.")
    probe: Probe = Field(default=Probe(), description="Real generations between start and READY.")
    break_even: BreakEven = Field(default=BreakEven(), description="When a drafter earns its keep.")
    timing: Timing = Field(default=Timing(), description="The cycle log.")
    metrics: Metrics = Field(default=Metrics(), description="The launcher's own Prometheus metrics.")
    smoke: Smoke = Field(default=Smoke(), description="The pre-merge test of a new drafter.")
    supervise: Supervise = Field(default=Supervise(), description="The server process: deadlines and restarts.")


def sections() -> dict[str, type[Section]]:
    """The closed sections by name, in the profile's order (all but the mappings `server` and `env`)."""
    return {
        name: field.annotation
        for name, field in Profile.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }

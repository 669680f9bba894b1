"""What was tested, on what: the part of a record by which two runs are told like or unlike.

Acceptance depends on models, prompts and the speculative settings; time also on versions, hardware and everything else.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import guarded_serve

if TYPE_CHECKING:
    from guarded_serve.facts.bag import Facts
    from guarded_serve.facts.model import Checkpoint
    from guarded_serve.profile.deployment import Deployment
    from guarded_serve.smoke.prompts import Prompt

_SAMPLE = 1 << 16  # bytes read at each of three places of a weight file
_DECIDE_ACCEPTANCE = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "dtype",
    "quantization",
    "kv_cache_dtype",
)
_NOT_COMPARED = ("host", "port", "api_key", "admin_api_key", "speculative_draft_model_path", "model_path", "revision")
_SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")


@dataclass(frozen=True)
class Identity:
    """Plain JSON values. ``drafter`` is None for a baseline."""

    target: Mapping[str, Any]
    drafter: Mapping[str, Any] | None
    prompts: Mapping[str, Any]
    settings: Mapping[str, Any]  # of SGLang, as set
    versions: Mapping[str, str | None]
    hardware: Mapping[str, Any]

    def to_mapping(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def identify(deployment: Deployment, facts: Facts, prompts: Sequence[Prompt], new_tokens: int, source: str) -> Identity:
    """Reads a little of each weight file; a few milliseconds a file."""
    model = facts.model
    return Identity(
        target=_checkpoint(model.target) if model else {},
        drafter=_checkpoint(model.drafter) if model and model.drafter else None,
        prompts={
            "source": source,
            "count": len(prompts),
            "sha256": _digest(*(repr(prompt) for prompt in prompts)),
            "new_tokens": new_tokens,
        },
        settings={
            name: _plain(setting.value)
            for name, setting in sorted(deployment.server.items())
            if name not in _SECRETS and name not in ("host", "port")
        },
        versions={
            "guarded_serve": guarded_serve.__version__,
            "sglang": deployment.sglang_version,
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
        hardware=_hardware(facts),
    )


def unlike_acceptance(now: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[str, ...]:
    """Why two runs' acceptance cannot be compared, in words; both as `Identity.to_mapping` gives them."""
    found = []
    if now["target"].get("fingerprint") != then["target"].get("fingerprint"):
        found.append(f"another target ({then['target'].get('path')})")
    if now["prompts"]["sha256"] != then["prompts"]["sha256"]:
        found.append(f"other prompts ({then['prompts']['source']}, {then['prompts']['count']})")
    if now["prompts"]["new_tokens"] != then["prompts"]["new_tokens"]:
        found.append(f"{then['prompts']['new_tokens']} new tokens, now {now['prompts']['new_tokens']}")
    found += _different(now["settings"], then["settings"], _DECIDE_ACCEPTANCE)
    return tuple(found)


def unlike_time(now: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[str, ...]:
    """Why their times cannot be compared."""
    found = list(unlike_acceptance(now, then))
    for part in ("versions", "hardware"):
        found += _different(now[part], then[part], sorted({*now[part], *then[part]}))
    names = sorted({*now["settings"], *then["settings"]} - {*_DECIDE_ACCEPTANCE, *_NOT_COMPARED})
    found += _different(now["settings"], then["settings"], names)
    return tuple(found)


def _different(now: Mapping[str, Any], then: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{name} {then.get(name)}, now {now.get(name)}" for name in names if now.get(name) != then.get(name)]


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    files: list[Path] = []
    if checkpoint.directory is not None:
        files = [checkpoint.directory / "config.json"]
        files += [shard.path for shard in checkpoint.weights.shards] if checkpoint.weights else []
    return {"path": checkpoint.given, "fingerprint": _digest(*map(_fingerprint, files)) if files else None}


def _fingerprint(path: Path) -> str:
    """Name, size and 64 KiB from start, middle and end: a retrained model of the same shape has another one."""
    digest = hashlib.sha256(path.name.encode())
    try:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            for place in (0, size // 2, max(0, size - _SAMPLE)):
                file.seek(place)
                digest.update(file.read(_SAMPLE))
    except OSError as error:
        digest.update(repr(error.errno).encode())
    return digest.hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, dict)) or value is None else str(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _hardware(facts: Facts) -> dict[str, Any]:
    gpus = [gpu.name for gpu, _ in facts.gpus.chosen] if facts.gpus is not None else []
    return {"gpus": [str(name) for name in gpus], "cpu": _cpu(), "cores": os.cpu_count()}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()

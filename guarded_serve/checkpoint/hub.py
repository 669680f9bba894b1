"""A model as a user names it, a path or a hub id, to a folder on disk.

As SGLang: what exists on disk is a path, anything else that reads like ``name`` or ``owner/name`` is a hub id, looked
up in huggingface_hub's cache first. `huggingface_hub` is imported for ids only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from guarded_serve.checkpoint.problem import Problem
from guarded_serve.checkpoint.weights import is_complete

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "tokenizer*")
_ALL_FILES = (*_SMALL_FILES, "*.safetensors")


ELSEWHERE = "elsewhere"
"""Kind of the problem that is none: SGLang can load from there, the guard cannot look."""


@dataclass(frozen=True)
class Located:
    """Where a model is. ``complete`` is False where its weights were not fetched (SGLang does that at its start)."""

    directory: Path | None
    problem: Problem | None = None
    hub_id: str | None = None
    complete: bool = True


def locate(name: str, revision: str | None, *, fetch_weights: bool) -> Located:
    """Find a model. ``fetch_weights``: download the weights of a hub id too, not only its small files."""
    path = Path(name)
    if "://" in name or path.suffix == ".gguf":
        kind = "a GGUF file" if path.suffix == ".gguf" else "not on this disk"
        return Located(None, Problem(ELSEWHERE, f"{name} is {kind}, which SGLang reads and these rules do not", path))
    try:
        if path.is_dir():
            return Located(path)
        if path.exists():
            return Located(None, Problem("not-a-folder", f"{name} is a file, not a model folder", path))
    except OSError:
        pass
    if not is_hub_id(name) or path.is_symlink():
        return Located(None, Problem("missing", _missing(path), path))
    return _from_hub(name, revision, fetch_weights=fetch_weights)


def is_hub_id(name: str) -> bool:
    """Whether it reads like ``name`` or ``owner/name``."""
    return _HUB_ID.fullmatch(name) is not None


def _missing(path: Path) -> str:
    for parent in path.parents:
        try:
            if parent.is_dir():
                return f"{path} does not exist (the nearest folder that does: {parent})"
        except OSError:  # a name too long, a folder of somebody else's
            continue
    return f"{path} does not exist"


def _from_hub(name: str, revision: str | None, *, fetch_weights: bool) -> Located:
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415 - 0.3 s that a path need not pay

    def snapshot(patterns: tuple[str, ...], *, local: bool) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), local_files_only=local))

    try:
        cached = snapshot(_ALL_FILES, local=True)
        # An interrupted download leaves a part: what is missing is fetched, or named by the checks where it cannot be.
        if is_complete(cached) or (constants.HF_HUB_OFFLINE and any(cached.glob("*.safetensors"))):
            return Located(cached, hub_id=name)
    except Exception:  # not in the cache, in one of the library's many words
        pass
    what = f"{name} at revision {revision}" if revision else name
    fetch = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    if constants.HF_HUB_OFFLINE:
        message = (
            f"{what} is neither a folder nor in the hub's cache ({constants.HF_HUB_CACHE}), "
            "and HF_HUB_OFFLINE forbids to fetch it"
        )
        remedy = f"correct the name, or run `{fetch}` where the hub can be reached, with HF_HUB_OFFLINE unset"
        return Located(None, Problem("missing", message, Path(name), remedy=remedy), name)
    try:
        patterns = _ALL_FILES if fetch_weights else _SMALL_FILES
        return Located(snapshot(patterns, local=False), hub_id=name, complete=fetch_weights)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        message = f"{what} is neither a folder nor can it be fetched from the hub: {reason}"
        return Located(
            None, Problem("missing", message, Path(name), remedy=f"correct the name, or try `{fetch}`"), name
        )

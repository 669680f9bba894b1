"""What the smoke test and the probe generate from: the built-in prompts, or a JSONL file of one's own.

A line of a file is a list of chat messages, or an object with one of ``messages`` (and ``tools``), ``text`` or
``prompt``, and with ``name`` and ``kind`` if wanted. Messages go through the target's chat template; a text does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.model import BUILTIN_PROMPTS

BUILTIN_FILE = Path(__file__).with_name("prompts.jsonl")


class BadPrompts(Exception):
    """The file cannot be used; the text names file, line and what was expected."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.PROFILE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Prompt:
    """Either ``messages`` or ``text`` is set."""

    name: str
    kind: str
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


def load_prompts(source: str) -> tuple[Prompt, ...]:
    """``builtin``, or the path of a JSONL file. Raises BadPrompts."""
    path = BUILTIN_FILE if source == BUILTIN_PROMPTS else Path(source)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise BadPrompts(f"there is no prompts file {path}", code=ExitCode.MISSING) from None
    except PermissionError:
        raise BadPrompts(f"the prompts file {path} may not be read", code=ExitCode.PERMISSION) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"the prompts file {path} cannot be read: {error}") from None
    prompts = tuple(_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise BadPrompts(f"the prompts file {path} holds no prompt")
    doubled = {one.name for one in prompts if sum(other.name == one.name for other in prompts) > 1}
    if doubled:
        raise BadPrompts(f"the prompts file {path} has several prompts named {', '.join(sorted(doubled))}")
    return prompts


def spread(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """At most ``count`` of them, of as many kinds as possible, always the same ones."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    taken: list[Prompt] = []
    while len(taken) < min(count, len(prompts)):
        for waiting in by_kind.values():
            if waiting and len(taken) < count:
                taken.append(waiting.pop(0))
    return tuple(taken)


def _prompt(path: Path, number: int, line: str) -> Prompt:
    where = f"{path}:{number}"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadPrompts(f"{where}: not JSON: {error}") from None
    fields: dict[str, Any] = {"messages": value} if isinstance(value, list) else value
    if not isinstance(fields, dict):
        raise BadPrompts(f"{where}: expected a list of chat messages or an object, found {line.strip()[:60]}")
    text = fields.get("text", fields.get("prompt"))
    messages = fields.get("messages")
    if isinstance(text, str) and text and messages is None:
        return Prompt(_name(fields, number), str(fields.get("kind", "text")), text=text)
    sound = isinstance(messages, list) and messages and all(map(_is_message, messages))
    if not sound or text is not None:
        raise BadPrompts(
            f'{where}: expected a list of messages such as {{"role": "user", "content": "..."}}, or a "text"'
        )
    tools = fields.get("tools") or ()
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadPrompts(f"{where}: expected tools as a list of objects")
    return Prompt(
        _name(fields, number), str(fields.get("kind", "chat")), messages=tuple(messages or ()), tools=tuple(tools)
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value


def _name(fields: Mapping[str, Any], number: int) -> str:
    return str(fields.get("name") or f"line {number}")

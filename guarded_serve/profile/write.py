"""Writes a profile: what is set as TOML, the rest as comments with defaults, units and descriptions."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import Profile, sections
from guarded_serve.profile.sglang_parser import ParserDump

_WIDTH = 100


def toml_value(value: Any) -> str:
    """A value as TOML. Raises TypeError for what TOML cannot hold (None)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        # JSON's escapes are TOML's, but for DEL
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def toml_key(name: str) -> str:
    """A key, quoted where it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def profile_text(deployment: Deployment, dump: ParserDump, *, name: str | None = None) -> str:
    """A commented profile that launches as the deployment does."""
    return "\n".join([*_head(deployment, dump, name), *_sections(deployment.profile)]) + "\n"


def _head(deployment: Deployment, dump: ParserDump, name: str | None) -> Iterator[str]:
    yield "# A profile of guarded-serve: `guarded-serve profile schema` has every key for your editor."
    yield from ("", "[profile]")
    called = name or deployment.profile.profile.name
    yield f"name = {toml_value(called)}" if called else '# name = "..."'
    yield from ("", f"[server]  # SGLang's flags, snake_case (SGLang {dump.version})")
    for key, setting in deployment.server.items():
        if setting.value is None:
            continue
        action = dump.by_name.get(key)
        yield from _comment(action.help if action else "")
        yield f"{toml_key(action.keys[0] if action else key)} = {_setting(setting.value)}"
    yield from ("", "[env]  # for the server process only")
    yield from (f"{toml_key(key)} = {toml_value(value)}" for key, value in deployment.profile.env.items())


def _sections(profile: Profile) -> Iterator[str]:
    for section, model in sections().items():
        if section == "profile":
            continue
        yield from ("", f"[{section}]  # {Profile.model_fields[section].description}")
        values = getattr(profile, section)
        for key, field in model.model_fields.items():
            extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
            unit = f" [{extra['unit']}]" if "unit" in extra else ""
            yield from _comment(f"{field.description}{unit}")
            value = getattr(values, key)
            if value is None:
                yield f"# {key} = ..."
            elif key in values.model_fields_set:
                yield f"{key} = {toml_value(value)}"
            else:
                yield f"# {key} = {toml_value(value)}"


def _setting(value: Any) -> str:
    """A setting as TOML; JSON with nulls, which TOML lacks, as a string of JSON."""
    settled = _settled(value)
    try:
        return toml_value(settled)
    except TypeError:
        return toml_value(json.dumps(settled, ensure_ascii=False))


def _settled(value: Any) -> Any:
    """The value with ./ and ../ made absolute: on a command line they meant the working folder, not the profile's."""
    if isinstance(value, Mapping):
        return {key: _settled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_settled(item) for item in value]
    if isinstance(value, str) and value.startswith(("./", "../")):
        return str(Path.cwd() / value)
    return value


def _comment(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, _WIDTH))

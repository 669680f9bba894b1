"""The profile's JSON Schema, for editors: our sections from the model, `[server]` from SGLang's own parser."""

from __future__ import annotations

from typing import Any

from guarded_serve.profile.model import Profile
from guarded_serve.profile.sglang_parser import Action, ParserDump

_SCALARS: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "nullable_str": {"type": "string"},
    "human_readable_int": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d+(\.\d+)?([kMGT]i?)?$"}]},
    "loads": {"type": ["object", "array", "string"]},
    "json_list_type": {"type": ["array", "string"]},
    "parse_cuda_graph_config_arg": {"type": ["object", "string"]},
}


def profile_schema(dump: ParserDump) -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of the whole profile, for this SGLang version."""
    schema = Profile.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"guarded-serve profile (SGLang {dump.version})"
    properties = {
        key: {"description": action.help, **_value(action), **_default(action)}
        for key, action in sorted(dump.by_key.items())
    }
    schema["properties"]["server"] = {
        "type": "object",
        "description": schema["properties"]["server"]["description"],
        "properties": properties,
        "additionalProperties": False,
    }
    return schema


def _default(action: Action) -> dict[str, Any]:
    return {} if action.default is None else {"default": action.default}


def _value(action: Action) -> dict[str, Any]:
    if action.is_switch:
        return {"type": "boolean"}
    scalar = _SCALARS.get(action.type or "str", {"type": "string"})
    if action.choices:
        scalar = {"enum": list(action.choices)}
    if not action.takes_list:
        # a table stands for its JSON text, as in SGLang's own --config files
        return {"type": ["string", "object"]} if scalar == {"type": "string"} else dict(scalar)
    if "LoRAPathAction" in action.classes:
        scalar = {"type": ["string", "object"]}
    return {"type": "array", "items": scalar, **({"minItems": 1} if action.nargs == "+" else {})}

"""How profile errors speak: what was expected, what was found, and the nearest name."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from guarded_serve.findings import Finding


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a person most likely meant, if one is near; dashes and case do not count."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in candidates}
    wanted = name.lower().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def listed(names: Iterable[Any]) -> str:
    """`"a", "b" or "c"`, as TOML writes them."""
    texts = [literal(name) for name in names]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def literal(value: Any) -> str:
    """A value as TOML would write it, cut at 80 characters."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def found(value: Any) -> str:
    """A value and its TOML type."""
    return f"{literal(value)} ({kind(value)})"


def kind(value: Any) -> str:
    """The TOML type of a value, with its article."""
    for types, text in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (list, "an array"),
        (dict, "a table"),
    ):
        if isinstance(value, types):
            return text
    return f"a {type(value).__name__}"


_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "object": "a table",
}


def expected(schema: Mapping[str, Any]) -> str:
    """A JSON Schema in words, with bounds and unit."""
    if "expected" in schema:
        return str(schema["expected"])
    unit = f" ({schema['unit']})" if "unit" in schema else ""
    choices = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if len(choices) == 1:
        return expected(choices[0]) + unit
    if "enum" in schema:
        return listed(schema["enum"]) + unit
    text = _TYPES.get(str(schema.get("type")), "a value")
    bounds = [
        f"{words} {schema[name]}"
        for name, words in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
        )
        if name in schema
    ]
    if schema.get("minLength"):
        bounds.append("that is not empty")
    return " ".join([text, " and ".join(bounds)]).rstrip() + unit


def finding_text(finding: Finding) -> str:
    """A finding as lines: where and what, then what was expected, what was found and the mend."""
    lines = [f"{finding.where}: {finding.severity.value}: {finding.message} [{finding.check}]"]
    for name in ("expected", "found", "remedy"):
        text = getattr(finding, name)
        if text is not None:
            lines.append(f"    {name}: {text}")
    return "\n".join(lines)

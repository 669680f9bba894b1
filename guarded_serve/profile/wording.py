"""How profile errors speak: what was expected, what was found, and the nearest name."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guarded_serve.findings import Finding


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a person most likely meant, if one is near; dashes and case do not count."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in candidates}
    wanted = name.lower().replace("-", "_")
    if wanted in folded:
        return folded[wanted]
    close = difflib.get_close_matches(wanted, folded, n=1, cutoff=0.7)
    if not close:  # `nwe`: two letters changed places, which counts for much in a short word
        close = [candidate for candidate in folded if sorted(candidate) == sorted(wanted)]
    return folded[close[0]] if close else None


def meant(words: Iterable[str], flags: Iterable[str]) -> str | None:
    """A hint for words of a command line that nothing takes: a flag's nearest name, a profile without its flag."""
    flags = tuple(flags)
    hints = []
    value_of_flag = False  # what follows a flag that nobody knows is most likely its value
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("-"):
            near = nearest(name, flags)
            hints.append(f"did you mean {near} for {name}?" if near else None)
        elif word.lower().endswith(".toml") and "--profile" in flags and not value_of_flag:
            hints.append(f"a profile has a flag before it: --profile {word}")
        value_of_flag = word.startswith("-") and "=" not in word
    return " ".join(hint for hint in hints if hint) or None


def neighbour(path: Path, pattern: str = "*") -> str | None:
    """What lies where a path that is not there was looked for, and was most likely meant."""
    try:
        near = nearest(path.name, sorted(entry.name for entry in path.parent.glob(pattern)))
    except OSError:
        return None
    return f"did you mean {path.parent / near}?" if near else None


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
    first = f"{finding.where}: {finding.severity.value}: {finding.message} [{finding.check}]"
    return with_evidence(first, expected=finding.expected, found=finding.found, remedy=finding.remedy)


def with_evidence(first: str, **evidence: str | None) -> str:
    """A line, and below it what there is of ``expected``, ``found`` and ``remedy``."""
    return "\n".join([first, *(f"    {name}: {text}" for name, text in evidence.items() if text is not None)])

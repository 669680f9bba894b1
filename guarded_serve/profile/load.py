"""Reads a profile: every error in one go, each with its line, what was expected, what was found and the mend.

What is valid in a broken profile is kept, so that later stages can go on finding errors. `[server]` is only read
here; `resolve.py` judges it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guarded_serve.exit_codes import ExitCode
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.model import Profile, Section, sections
from guarded_serve.profile.secret_names import MASK, is_secret_name
from guarded_serve.profile.toml_lines import Lines, find_lines
from guarded_serve.profile.wording import expected, found, kind, literal, nearest, neighbour
from guarded_serve.profile.write import toml_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = "a TOML file"
_MOST_SYNTAX_ERRORS = 20
_MOST_LEVELS = 50  # whoever walks the document may call itself so many times over


@dataclass(frozen=True)
class LoadedProfile:
    """A profile file as read. ``shown`` is its path as a person gave it; ``document`` the TOML as it stands."""

    profile: Profile = field(default_factory=Profile)
    path: Path | None = None
    shown: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    lines: Lines = field(default_factory=lambda: Lines({}, ()))
    findings: tuple[Finding, ...] = ()

    def where(self, *key: str | int) -> str:
        """``file:line`` of a key."""
        return f"{self.shown}:{self.lines.of(*key)}"

    def error(self, check: str, key: tuple[str | int, ...], message: str, **evidence: Any) -> Finding:
        """An error of the profile family at a key."""
        return Finding(
            check=check,
            severity=evidence.pop("severity", Severity.ERROR),
            message=message,
            where=self.where(*key),
            exit_code=ExitCode.PROFILE,
            **evidence,
        )


def load_profile(path: Path) -> LoadedProfile:
    """Read and validate a profile. Never raises for what is in the file or for a file that cannot be read."""
    shown = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return _unreadable(
            path,
            "profile.file",
            f"there is no profile {shown}",
            ExitCode.MISSING,
            expected=_FILE,
            found="nothing of that name",
            remedy=neighbour(path, "*.toml") or "`guarded-serve profile new` writes one from SGLang flags",
        )
    except PermissionError as error:
        return _unreadable(
            path,
            "profile.file",
            f"the profile {shown} may not be read",
            ExitCode.PERMISSION,
            expected="a file that this user may read, in folders that it may enter",
            found=str(error.strerror),
            remedy=f"let user {os.geteuid()} read it, or run as its owner",
        )
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return _unreadable(
            path,
            "profile.syntax",
            f"the profile is not UTF-8: {error.reason}",
            ExitCode.PROFILE,
            f"{shown}:{line}",
            expected="UTF-8, as all TOML",
            found=f"the byte 0x{error.object[error.start]:02x}",
            remedy=f"save it as UTF-8: `iconv -f latin1 -t utf-8 {shown}` if it is Latin-1",
        )
    except IsADirectoryError:
        inside = sorted(entry.name for entry in path.glob("*.toml"))
        return _unreadable(
            path,
            "profile.file",
            f"{shown} is a folder and no profile",
            ExitCode.PROFILE,
            expected=_FILE,
            found="a folder",
            remedy=f"name a file in it, such as {path / inside[0]}" if inside else "name a file",
        )
    except OSError as error:
        return _unreadable(
            path,
            "profile.file",
            f"the profile {shown} cannot be read: {error.strerror}",
            ExitCode.MISSING if isinstance(error, NotADirectoryError) else ExitCode.PROFILE,
            expected=_FILE,
            found=str(error.strerror),
            remedy="correct the path" if isinstance(error, NotADirectoryError) else "see that it can be read",
        )

    try:
        return _read(text.replace("\r\n", "\n"), path, shown)
    except RecursionError:
        return _unreadable(
            path,
            "profile.syntax",
            "the profile is nested too deeply to be read",
            ExitCode.PROFILE,
            f"{shown}:{_deepest(text)}",
            expected="tables and lists, two levels deep",
            found=f"more than {_MOST_LEVELS} levels",
            remedy="take the brackets out that are too many",
        )


def _read(text: str, path: Path, shown: str) -> LoadedProfile:
    document, syntax, sound = _parse(text, shown)
    if _depth(document) > _MOST_LEVELS:
        raise RecursionError
    lines = find_lines(sound)
    loaded = LoadedProfile(path=path, shown=shown, document=document, lines=lines)
    profile, invalid = _validate(loaded)
    findings = sorted((*syntax, *invalid), key=lambda finding: _line(finding.where))
    return LoadedProfile(profile, path, shown, document, lines, tuple(findings))


def _depth(document: Any) -> int:
    """How many tables and arrays stand inside each other."""
    level, depth = [document], 0
    while level:
        depth += 1
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    return depth


def _deepest(text: str) -> int:
    """The line with the most brackets: where it is nested too deeply, as a rule."""
    brackets = [line.count("[") + line.count("{") for line in text.split("\n")]
    return brackets.index(max(brackets)) + 1


def _line(where: str | None) -> int:
    return int((where or "0").rpartition(":")[2])


def _unreadable(
    path: Path, check: str, message: str, code: ExitCode, where: str | None = None, **evidence: Any
) -> LoadedProfile:
    finding = Finding(check, Severity.ERROR, message, where=where or str(path), exit_code=code, **evidence)
    return LoadedProfile(path=path, shown=str(path), findings=(finding,))


def _parse(text: str, shown: str) -> tuple[dict[str, Any], list[Finding], str]:
    """Parse TOML; after a syntax error, blank the broken statement and go on, so that later ones are found too.

    Returns the document, the errors, and the text less what is broken.
    """
    findings: list[Finding] = []
    remaining = text.split("\n")
    while True:
        source = "\n".join(remaining)
        try:
            return tomllib.loads(source), findings, source
        except tomllib.TOMLDecodeError as error:
            message, line = _syntax(error, len(remaining))
        first, last = _broken(remaining, find_lines(source), line)
        findings.append(
            Finding(
                "profile.syntax",
                Severity.ERROR,
                f"not valid TOML: {message}",
                expected="`key = value` or [table], as TOML has them",
                found=text.split("\n")[first - 1].strip()[:80] or "an empty line",
                where=f"{shown}:{first}",
                remedy='strings need quotes ("..."), keys are written `key = value`, each table and key stands once',
                exit_code=ExitCode.PROFILE,
            )
        )
        if len(findings) >= _MOST_SYNTAX_ERRORS or not any(part.strip() for part in remaining[first - 1 : last]):
            return {}, findings, ""
        remaining[first - 1 : last] = [""] * (last - first + 1)


def _syntax(error: ValueError, last: int) -> tuple[str, int]:
    match = re.match(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
    if match is None:
        return str(error), 1
    text = match[1][:1].lower() + match[1][1:]
    return text, min(int(match[2]), last) if match[2] else last


def _broken(source: list[str], lines: Lines, line: int) -> tuple[int, int]:
    """The lines to blank for a syntax error at a line: its statement, or a whole table if its header is broken."""
    first, last = lines.statement_at(line)
    if first < line:  # an array or string that never closes swallows what follows: drop its start alone
        return first, line - 1
    last = min(last, line)
    if source[first - 1].lstrip().startswith("["):
        while last < len(source) and not source[last].lstrip().startswith("["):
            last += 1
    return first, last


def _validate(loaded: LoadedProfile) -> tuple[Profile, list[Finding]]:
    """Validate the document; what is wrong is reported and left out, so that the rest stands."""
    assert loaded.path is not None
    kept: dict[str, Any] = _rooted(dict(loaded.document), Path(os.path.realpath(loaded.path.parent)))
    findings: list[Finding] = []
    while True:
        try:
            return Profile.model_validate(kept), findings
        except ValidationError as error:
            wrong: dict[tuple[Any, ...], tuple[tuple[Any, ...], Mapping[str, Any]]] = {}
            for detail in error.errors(include_url=False, include_context=False):
                path = tuple(detail["loc"][:2])
                if path[0] in kept and not isinstance(kept[path[0]], dict):
                    path = path[:1]
                wrong.setdefault((*path, *_inside(kept, detail["loc"])), (path, dict(detail)))
        for place, (path, problem) in wrong.items():
            if not _explained_within(place, wrong):
                findings.append(_explain(loaded, path, problem))
        for path in {path for path, _ in wrong.values()}:
            if len(path) == 1:
                kept.pop(str(path[0]), None)
            else:
                kept[str(path[0])].pop(path[1], None)


def _explained_within(key: tuple[Any, ...], wrong: Collection[tuple[Any, ...]]) -> bool:
    """Whether an element of the value is to blame: then an error about the whole says nothing more."""
    return any(len(other) > len(key) and other[: len(key)] == key for other in wrong)


def _rooted(value: Any, folder: Path) -> Any:
    """The value with each string that starts with ./ or ../ made absolute: it is relative to the profile's folder."""
    if isinstance(value, dict):
        return {key: _rooted(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_rooted(item, folder) for item in value]
    if isinstance(value, str) and value.startswith(("./", "../")):
        return os.path.normpath(folder / value)
    return value


def _inside(document: Mapping[str, Any], location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The element of an array or table value that a validation error is about, as a path of one part or none."""
    value = document.get(str(location[0]))
    value = value.get(location[1]) if isinstance(value, dict) and len(location) > 1 else None
    if isinstance(value, dict):
        return tuple(part for part in location[2:] if part in value)[:1]
    if isinstance(value, list):
        return tuple(part for part in location[2:] if isinstance(part, int) and part < len(value))[:1]
    return ()


def _explain(loaded: LoadedProfile, path: tuple[str | int, ...], detail: Mapping[str, Any]) -> Finding:
    section = str(path[0])
    if detail["type"] == "extra_forbidden":
        return _unknown(loaded, path)
    if len(path) == 1:
        value = loaded.document[section]
        return loaded.error(
            "profile.type",
            path,
            f"{section} is {literal(value)}; it must be a table",
            expected=f"a table [{section}]",
            found=found(value),
            remedy=f"write [{section}] on a line of its own and its keys below",
        )
    value = loaded.document[section][path[1]]
    if section == "env" and "[key]" in detail["loc"]:
        return loaded.error(
            "profile.value",
            path,
            f"{literal(path[1])} cannot name an environment variable",
            expected="letters, digits and _, not starting with a digit",
            found=literal(path[1]),
            remedy="give it such a name, or leave it out",
        )
    wanted = expected(_schema(section, str(path[1])))
    name = f"{section}.{path[1]}"
    inside = _inside(loaded.document, detail["loc"])
    wrong = value[inside[0]] if inside else value
    if inside and "[key]" in detail["loc"]:
        message, wrong = f"{name} has a key {literal(inside[0])}", inside[0]
    elif inside:
        message = f"{name} holds {literal(wrong)}"
    else:
        message = f"{name} is {literal(wrong)}"
    if section == "env" and is_secret_name(str(path[1])):
        return loaded.error(
            "profile.type",
            path,
            f"{name} is {MASK}; it must be {wanted}",
            expected=wanted,
            found=kind(wrong),
            remedy="write it in quotes, as one string",
        )
    wrong_type = detail["type"].endswith("_type") or detail["type"] in ("int_from_float", "int_parsing")
    return loaded.error(
        "profile.type" if wrong_type else "profile.value",
        (*path, *inside),
        f"{message}; it must be {wanted}",
        expected=wanted,
        found=found(wrong),
        remedy=_requoted(str(path[1]), wrong, wanted) or _chosen(section, str(path[1]), wrong),
    )


def _requoted(key: str, value: Any, wanted: str) -> str | None:
    if wanted.startswith("a string") and isinstance(value, (bool, int, float)):
        return f'write {key} = "{literal(value)}"'
    if wanted.startswith(("an integer", "a number", "true or false")) and isinstance(value, str):
        text = value.strip().lower()
        if re.fullmatch(r"-?\d+(\.\d+)?|true|false", text):
            return f"write {key} = {text}, without quotes"
    return None


def _chosen(section: str, key: str, wrong: Any) -> str:
    """The mend of a value that only its owner can put right: the choice that is near, or the default."""
    if section == "env":
        return f"write {key} as one string in quotes, or leave it out"
    choices = _schema(section, key).get("enum", ())
    near = nearest(wrong, map(str, choices)) if isinstance(wrong, str) else None
    if near:
        return f'did you mean "{near}"?'
    default = sections()[section].model_fields[key].default
    if default is None:
        return f"correct it, or leave {key} out"
    return f"correct it, or leave {key} out: the default is {toml_value(default)}"


def _schema(section: str, key: str) -> Mapping[str, Any]:
    if section == "env":
        return {"expected": "a string (environment variables are text)"}
    schema = sections()[section].model_json_schema()
    return dict(schema["properties"][key])


def _unknown(loaded: LoadedProfile, path: tuple[str | int, ...]) -> Finding:
    name = str(path[-1])
    homes = [section for section, model in sections().items() if name in model.model_fields]
    if len(path) == 1:
        table = isinstance(loaded.document[name], dict)
        near = nearest(name, Profile.model_fields)
        if near:
            remedy = f"did you mean [{near}]?" if table else f"did you mean the table [{near}]?"
        elif homes:
            remedy = f"it belongs in [{homes[0]}]"
        elif table:
            remedy = f"leave [{name}] out"
        else:
            remedy = "a flag of SGLang belongs in [server]"
        return loaded.error(
            "profile.unknown_section" if table else "profile.unknown_key",
            path,
            f"there is no section [{name}]" if table else f"{name} stands outside every section",
            expected=", ".join(f"[{section}]" for section in Profile.model_fields),
            found=f"[{name}]" if table else name,
            remedy=remedy,
        )
    section = str(path[0])
    model: type[Section] = sections()[section]
    near = nearest(name, model.model_fields)
    if near:
        remedy = f"did you mean {near}?"
    elif homes:
        remedy = f"it belongs in [{homes[0]}]"
    else:
        remedy = f"leave {name} out"
    return loaded.error(
        "profile.unknown_key",
        path,
        f"[{section}] has no key {name}",
        expected=", ".join(model.model_fields),
        found=name,
        remedy=remedy,
    )

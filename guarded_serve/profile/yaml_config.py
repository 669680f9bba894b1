"""SGLang's own `--config FILE.yaml`, read as SGLang reads it (`server_args_config_parser.py` in 0.5.17 and 0.5.23).

SGLang merges it only where `--config` stands alone as an argument: `--config=FILE` and `--conf FILE` pass its parser
and are then ignored. SGLang reads the file itself in the end; here it is read to know the effective settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.sglang_parser import ParserDump


class ConfigError(Exception):
    """A config file that SGLang would refuse. ``code`` is set for one that is not there or may not be read."""

    def __init__(
        self, message: str, *, line: int | None = None, code: ExitCode | None = None, found: str | None = None
    ) -> None:
        super().__init__(message)
        self.line = line
        self.code = code
        self.found = found


@dataclass(frozen=True)
class ConfigEntry:
    """One key of the file, as the flags that SGLang makes of it (none: it sets nothing)."""

    key: str
    line: int
    tokens: tuple[str, ...]


def config_path(argv: Sequence[str]) -> str | None:
    """The file that SGLang will merge. Raises ConfigError where it would raise."""
    places = [index for index, argument in enumerate(argv) if argument == "--config"]
    if not places:
        return None
    if len(places) > 1:
        raise ConfigError("Multiple config files specified! Only one allowed.")
    if places[0] == len(argv) - 1:
        raise ConfigError("No config file specified after --config flag!")
    return argv[places[0] + 1]


def read_config(path: str, dump: ParserDump) -> list[ConfigEntry]:
    """The file's entries in order. Raises ConfigError."""
    file = Path(path)
    if file.suffix.lower() not in (".yaml", ".yml"):
        raise ConfigError(f"Config file must be YAML format, got: {file.suffix}")
    try:
        text = file.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise ConfigError(f"Config file not found: {path}", code=ExitCode.MISSING, found="none") from None
    except PermissionError as error:
        raise ConfigError(
            f"Failed to read config file {path}: {error}", code=ExitCode.PERMISSION, found=error.strerror
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Failed to read config file {path}: {error}") from None
    except RecursionError:
        raise ConfigError("nested too deeply to be read") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", line=mark.line + 1 if mark else None) from None
    if data is None:
        return []
    if not isinstance(data, dict) or tree is None:
        raise ConfigError("Config file must contain a dictionary at root level")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in tree.value}
    return [
        ConfigEntry(str(key), line, _tokens(dump, str(key), value, line))
        for key, value in data.items()
        for line in [lines.get(str(key), 1)]
    ]


def _tokens(dump: ParserDump, key: str, value: Any, line: int) -> tuple[str, ...]:
    name = key.replace("-", "_")
    if name in dump.config_refused:
        raise ConfigError(f"Unsupported config option '{name}' with action '{dump.config_refused[name]}'", line=line)
    flag = f"--{key}"
    if isinstance(value, bool):
        if name in dump.config_switches:
            return (flag,) if value else ()
        return (flag, str(value).lower())
    if isinstance(value, list):
        return (flag, *(str(item) for item in value)) if value else ()
    return (flag, json.dumps(value) if isinstance(value, dict) else str(value))

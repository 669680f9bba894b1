"""Runs in a child process (as `python -c`): builds SGLang's own argument parser and writes it down as JSON.

Usage: ``python -c SOURCE OUTPUT``. It must work without a GPU and without our CPU kernels, on every SGLang that the
package supports, and it imports nothing of guarded_serve. Plugins are loaded first, as `sglang.launch_server` does:
they may add choices.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """The value if JSON keeps it as it is, else None and a text."""
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, tuple):
        value = list(value)
    try:
        return value if json.loads(json.dumps(value)) == value else str(value)
    except (TypeError, ValueError):
        return str(value)


def ordered(choices: Any) -> list[Any]:
    """Choices as a list; a set's order differs from process to process."""
    return sorted(choices, key=str) if isinstance(choices, (set, frozenset)) else list(choices)


def describe(action: argparse.Action) -> dict[str, Any]:
    """One argparse action as plain data."""
    known = {
        "option_strings", "dest", "nargs", "const", "default", "type", "choices", "required", "help", "metavar",
        "container", "deprecated",
    }  # fmt: skip
    return {
        "options": list(action.option_strings),
        "dest": action.dest,
        "nargs": action.nargs,
        "const": plain(action.const),
        "default": None if action.default is argparse.SUPPRESS else plain(action.default),
        "choices": None if action.choices is None else plain(ordered(action.choices)),
        "type": getattr(action.type, "__name__", None),
        "classes": [cls.__name__ for cls in type(action).__mro__[:-1]],
        "metavar": plain(action.metavar),
        "help": (action.help or "").strip().split("\n")[0],
        "extra": {name: plain(value) for name, value in vars(action).items() if name not in known},
    }


def fields(cls: type) -> list[str]:
    """The names of SGLang's settings: a dataclass in older versions, a msgspec struct in newer ones."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(getattr(cls, "__struct_fields__", ()))


def config_rules(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """How SGLang reads the keys of its `--config` files: which are switches, and which it refuses."""
    try:
        from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger  # noqa: PLC0415
    except ImportError:  # before 0.5.23 at the latest
        from sglang.srt.server_args_config_parser import ConfigArgumentMerger  # noqa: PLC0415

    merger = ConfigArgumentMerger(parser)
    refused = {key: type(action).__name__ for key, action in merger.unsupported_actions.items()}
    return {"switches": sorted(merger.store_true_actions), "refused": refused}


def main(output: str) -> None:
    """Write the dump."""
    try:
        from sglang.srt.plugins import load_plugins  # noqa: PLC0415
    except ImportError:  # SGLang before 0.5.12 has no plugins
        pass
    else:
        load_plugins()
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415 - after the plugins, which may change it

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    dump = {
        "actions": [describe(action) for action in parser._actions if action.dest != "help"],
        "fields": fields(ServerArgs),
        "config": config_rules(parser),
    }
    Path(output).write_text(json.dumps(dump, separators=(",", ":")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

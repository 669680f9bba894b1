"""What the installed SGLang resolves many command lines to: one process, one import of SGLang for all of them.

Run as ``python resolved_arguments.py ASKED ANSWERED`` in the environment that the servers would have: it does what
`sglang.launch_server` does up to the start, with plugins loaded. ``ASKED`` is a JSON list of command lines.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def resolved(
    command_lines: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str], name: str
) -> list[dict[str, Any]]:
    """For each command line `{"values": {setting: value}}`, or `{"error": text}` where SGLang refuses it.

    Runs in ``folder``, where two at once need different names.
    """
    from tests.support.answered_by import answered_by  # noqa: PLC0415 - the child, which runs this file, has no `tests`

    return answered_by(__file__, command_lines, folder, environment, name)


def _resolve(argv: list[str]) -> dict[str, Any]:
    from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415 - in the child alone

    random.seed(0)  # SGLang draws a seed and ports
    server_args = prepare_server_args(argv)
    if not hasattr(server_args, "resolve_once"):  # before 0.5.20 or so the record resolves itself
        return dataclasses.asdict(server_args)
    server_args.resolve_once()
    return dict(server_args.resolved_dict())


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def main() -> None:
    """The child."""
    from sglang.srt.plugins import load_plugins  # noqa: PLC0415 - in the child alone

    load_plugins()
    answers: list[dict[str, Any]] = []
    for argv in json.loads(Path(sys.argv[1]).read_text()):
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                answers.append({"values": _plain(_resolve(argv))})
        except SystemExit:
            answers.append({"error": errors.getvalue().rpartition("error: ")[2].strip()})
        except (Exception, argparse.ArgumentError) as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()

"""What the installed SGLang's own parser makes of many command lines: one child process for all of them.

The child does what `sglang.srt.server_args.prepare_server_args` does before it builds `ServerArgs`: merge `--config`,
then parse.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CHILD = r"""
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs
try:
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
except ImportError:
    from sglang.srt.server_args_config_parser import ConfigArgumentMerger

def plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
merger = ConfigArgumentMerger(parser)
answers = []
for argv in json.load(open(sys.argv[1])):
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            merged = merger.merge_config_with_args(argv) if "--config" in argv else argv
            answers.append({"values": plain(vars(parser.parse_args(merged)))})
    except SystemExit:
        answers.append({"error": errors.getvalue().rpartition("error: ")[2].strip()})
    except Exception as error:
        answers.append({"error": str(error)})
json.dump(answers, open(sys.argv[2], "w"))
"""


def real_answers(command_lines: Sequence[Sequence[str]], folder: Path) -> list[dict[str, Any]]:
    """For each command line `{"values": {dest: value}}`, or `{"error": text}` where SGLang refuses it."""
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps([list(argv) for argv in command_lines]))
    subprocess.run(
        [sys.executable, "-c", _CHILD, str(asked), str(answered)], check=True, timeout=180, capture_output=True
    )
    answers: list[dict[str, Any]] = json.loads(answered.read_text())
    return answers

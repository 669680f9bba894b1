"""What the launcher hands to its child, for many command lines: the real launcher up to the start of the server.

Run as ``python handed_over.py ASKED ANSWERED`` in the environment of a user: profile, flags, checks, notes and run
folder are all real; only the process is not started, but its command line and environment are written down.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded_serve.supervisor import launch
from guarded_serve.supervisor.run import SERVER_COMMAND
from tests.support.answered_by import answered_by

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class HandedOver:
    """One launch: SGLang's arguments and environment (None: it was not started), and all that the guard said."""

    arguments: list[str] | None
    environment: dict[str, str] | None
    log: str


def handed_over(
    command_lines: Sequence[Sequence[str]], folder: Path, environment: Mapping[str, str]
) -> list[HandedOver]:
    """For each of the launcher's command lines. A `--config` of the launcher's own making is kept in ``folder``."""
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH", ""), str(ROOT))))
    told = answered_by(__file__, command_lines, folder, {**environment, "PYTHONPATH": path}, "launcher")
    answers = [HandedOver(**answer) for answer in told]
    for answer in answers:
        if answer.environment is not None:  # the root was there for this module alone
            mine = answer.environment.get("PYTHONPATH", "").removesuffix(str(ROOT)).removesuffix(os.pathsep)
            answer.environment.pop("PYTHONPATH", None)
            answer.environment.update({"PYTHONPATH": mine} if mine else {})
    return answers


def _record(argv: list[str], folder: Path) -> HandedOver:
    """Run the launcher on this command line in this process."""
    from guarded_serve.launch_server import launch_main  # noqa: PLC0415 - in the child alone

    handed: list[tuple[list[str], dict[str, str]]] = []

    def instead_of_a_child(_: Any, command: Sequence[str], environment: Mapping[str, str], *__: Any) -> None:
        words = list(command)
        assert tuple(words[: len(SERVER_COMMAND)]) == SERVER_COMMAND
        words = words[len(SERVER_COMMAND) :]
        run_folder = Path(json.loads(environment["GUARDED_SERVE_ENGINE"])["socket"]).parent
        for number, word in enumerate(words):
            if Path(word).parent == run_folder:  # the folder goes when the launcher ends
                kept = Path(tempfile.mkdtemp(dir=folder)) / Path(word).name
                kept.write_bytes(Path(word).read_bytes())
                words[number] = str(kept)
        handed.append((words, dict(environment)))
        raise OSError("written down, not started")

    launch.Child = instead_of_a_child  # type: ignore[misc,assignment]
    with tempfile.TemporaryFile() as output:
        before = os.dup(1), os.dup(2)
        try:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            launch_main([*argv, "--guard-ignore", "host.port"])  # nothing is started: whoever has the port may keep it
            sys.stdout.flush()
        finally:
            for number, saved in enumerate(before, start=1):
                os.dup2(saved, number)
                os.close(saved)
        output.seek(0)
        log = output.read().decode()
    arguments, environment = handed[0] if handed else (None, None)
    return HandedOver(arguments, environment, log)


def main() -> None:
    """The child."""
    command_lines = json.loads(Path(sys.argv[1]).read_text())
    answers = [vars(_record(argv, Path.cwd())) for argv in command_lines]
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()

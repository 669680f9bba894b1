"""The CI recipes: YAML that parses, commands that the command line knows, and a hook that runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from guarded_serve import cli

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "docs/ci"


def commands(value: Any) -> Iterator[list[str]]:
    """Every `guarded-serve` command line in a file."""
    if isinstance(value, dict):
        for item in value.values():
            yield from commands(item)
    elif isinstance(value, list):
        for item in value:
            yield from commands(item)
    elif isinstance(value, str):
        for match in re.finditer(r"guarded-serve ([a-z].*?)(?:$| >| \|\||;)", value, re.MULTILINE):
            yield shlex.split(match[1].replace('"$PROFILE"', "p.toml").replace('"$file"', "p.toml"))


@pytest.mark.parametrize(
    ("name", "least"), [("github-actions.yml", 4), ("gitlab-ci.yml", 2), ("pre-commit-config.yaml", 1)]
)
def test_every_command_is_one(name: str, least: int) -> None:
    """Its subcommand exists and takes every flag as its own."""
    import argparse  # noqa: PLC0415
    import importlib  # noqa: PLC0415

    from guarded_serve.profile.guard_options import add_guard_options  # noqa: PLC0415

    found = list(commands(yaml.safe_load((CI / name).read_text())))
    assert len(found) >= least
    for words in found:
        assert words[0] in cli.available()
        command = importlib.import_module(f"guarded_serve.commands.{words[0]}")
        parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
        add_guard_options(parser)
        command.add_arguments(parser)
        own, rest = cli.split(words[1:], parser)
        assert rest == []
        parser.parse_args(own)


def test_the_hook_runs(tmp_path: Path) -> None:
    """As pre-commit runs it: file names at the end; a bad profile fails it."""
    hook = yaml.safe_load((CI / "pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[server]\nmodel_path = "/m"\n')
    bad.write_text('[server]\nmodel_path = "/m"\n[probe]\nmin_accept_lenght = 2.0\n')
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for files, code in (([good], 0), ([good, bad], 78), ([bad, good], 78)):
        words = [*shlex.split(hook["entry"]), *map(str, files)]
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, env={"PATH": path, "HOME": str(tmp_path)}
        )
        assert done.returncode == code, done.stdout + done.stderr
    assert "did you mean min_accept_length?" in done.stdout
    assert re.search(hook["files"], "profiles/my.toml")

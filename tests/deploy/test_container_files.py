"""The build context of the container: enough to install the project from, and nothing that is private or large."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTAINER = ROOT / "deploy/container"
PATTERNS = [
    line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.strip() and not line.startswith("#")
]


def let_in(path: str, patterns: Sequence[str] = PATTERNS) -> bool:
    """By Docker's rule: the last pattern that matches the path or a folder above it decides."""
    whole = PurePosixPath(path)
    places = [str(place) for place in (whole, *whole.parents)][:-1]
    kept = True
    for pattern in patterns:
        bare = pattern.lstrip("!").removeprefix("**/")
        deep = pattern.lstrip("!").startswith("**/")
        if any(fnmatch.fnmatchcase(PurePosixPath(place).name if deep else place, bare) for place in places):
            kept = pattern.startswith("!")
    return kept


def test_the_context_is_the_clone_where_docker_looks_for_the_file() -> None:
    build = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]["serve"]["build"]
    assert (CONTAINER / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == CONTAINER / "Dockerfile"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("pyproject.toml", True),
        ("guarded_serve/cpu_kernels/sgl_kernel/__init__.py", True),
        ("guarded_serve/__pycache__/cli.cpython-311.pyc", False),
        (".venv/bin/python", False),
        (".git/config", False),
        ("deploy/container/api-key", False),
        ("deploy/container/profile.toml", False),
        ("cycles/cycles-0-000001.jsonl", False),
        ("demo/target/model.safetensors", False),
    ],
)
def test_what_gets_in(path: str, wanted: bool) -> None:
    assert let_in(path) is wanted
    assert let_in(path, ()), "without the file everything does"


def test_what_gets_in_is_enough(tmp_path: Path) -> None:
    """The Dockerfile copies all of it and installs it with pip, which builds this wheel."""
    assert re.search(r"^COPY \. (\S+)\n(?:#.*\n)*RUN pip install .* \1 ", (CONTAINER / "Dockerfile").read_text(), re.M)
    context = tmp_path / "context"
    context.mkdir()
    for entry in ROOT.iterdir():
        if not let_in(entry.name):
            continue
        if entry.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(entry, context / entry.name, ignore=ignored)
        else:
            shutil.copy(entry, context)
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(context)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(tmp_path.glob("guarded_serve-*.whl"))
    (context / "LICENSE").unlink()
    (context / "README.md").unlink()
    less = subprocess.run([*built.args[:-1], str(context)], capture_output=True, text=True, check=False)
    assert less.returncode != 0, "a file that is left out is noticed"

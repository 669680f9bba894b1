"""Prediction against truth over the whole grid: every case with a drafter, judged by the rules and loaded by SGLang.

    python -m tests.support.oracle_grid [PYTHON ...]

writes the table of docs/compatibility.md anew; each PYTHON has another SGLang installed (default: this one alone).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from guarded_serve.checks.drafter_engine import Compared, compare
from guarded_serve.facts.engine_load import EngineLoad, ask_raw, read_load
from guarded_serve.facts.model import ModelFacts, gather_models
from tests.support.grid import CASES, build
from tests.support.verdicts import deployment

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- oracle grid: begin -->", "<!-- oracle grid: end -->"
KEPT = ("algorithm", "environment", "profile", "json_model_override_args")


@dataclass(frozen=True)
class Row:
    """One case: what was foretold, what SGLang did, and the two side by side."""

    model: ModelFacts
    load: EngineLoad
    compared: tuple[Compared, ...]

    @property
    def differs(self) -> list[Compared]:
        """Where they disagree."""
        return [one for one in self.compared if not one.agree]

    @property
    def verdict(self) -> str:
        """In a few words, the same on every run."""
        if self.differs:
            return "**differs**: " + ", ".join(one.what for one in self.differs)
        foretold = any(one.foretold is not None for one in self.compared)
        if self.load.failure is None:
            return "loads, as foretold" if foretold else "loads; another class, no prediction"
        error = self.load.failure.partition(":")[0]
        return f"raises {error} in {self.load.stage}, as foretold"


def version_of(python: str) -> str:
    """The SGLang that an interpreter has."""
    ask_it = "import importlib.metadata; print(importlib.metadata.version('sglang'))"
    return subprocess.run([python, "-c", ask_it], capture_output=True, text=True, check=True).stdout.strip()


@cache
def grid_names() -> tuple[str, ...]:
    """Cases with a drafter and an algorithm that uses it."""
    made = ((name, make()) for name, make in CASES.items())
    return tuple(
        name for name, case in made if case.drafter is not None and case.settings.get("algorithm", "") is not None
    )


@dataclass(frozen=True)
class Grid:
    """What one SGLang made of the whole grid, and the layers that its target classes stored for ``captures``."""

    version: str
    rows: Mapping[str, Row]
    captures: Sequence[list[int] | None] = ()


def load_grid(folder: Path, python: str = sys.executable, captures: Sequence[Any] = ()) -> Grid:
    """Every case with a drafter, by name; one child of ``python`` loads them all."""
    version = version_of(python)
    models: dict[str, ModelFacts] = {}
    pairs = []
    for number, name in enumerate(grid_names()):
        built = build(name, folder / str(number))
        assert built.drafter is not None
        settings: Mapping[str, Any] = {key: built.settings[key] for key in KEPT if key in built.settings}
        models[name] = gather_models(deployment(built.target, built.drafter, **{**settings, "version": version}))
        overrides = settings.get("json_model_override_args")
        pair = {"drafter": str(built.drafter), "target": str(built.target), "overrides": overrides}
        pairs.append({**pair, "algorithm": models[name].algorithm})
    answer = ask_raw({"pairs": pairs, "captures": captures}, python=python)
    loads = [read_load(version, told) for told in answer["pairs"]]
    found = {
        name: Row(model, load, tuple(compare(model, load)))
        for (name, model), load in zip(models.items(), loads, strict=True)
    }
    return Grid(version, found, answer["captures"])


def table(columns: Mapping[str, Mapping[str, Row]]) -> str:
    """Markdown: a line a case, a column a version."""
    versions = list(columns)
    names = list(columns[versions[0]])
    lines = ["| case | " + " | ".join(f"SGLang {version}" for version in versions) + " |"]
    lines.append("|---" * (1 + len(versions)) + "|")
    for name in names:
        lines.append(f"| {name} | " + " | ".join(columns[version][name].verdict for version in versions) + " |")
    same = {version: sum(not row.differs for row in found.values()) for version, found in columns.items()}
    total = ", ".join(f"{same[version]} of {len(columns[version])} with SGLang {version}" for version in versions)
    return f"Prediction and truth agree on {total}.\n\n" + "\n".join(lines) + "\n"


def column(version: str) -> dict[str, str] | None:
    """What the committed page says of each case for a version; None where it has no such column."""
    lines = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    place = next((i for i, cell in enumerate(cells[0]) if cell == f"SGLang {version}"), None)
    return None if place is None else {line[0]: line[place] for line in cells[2:]}


def main(pythons: Sequence[str]) -> None:
    """Write the table."""
    columns: dict[str, Mapping[str, Row]] = {}
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            grid = load_grid(Path(folder), str(Path(python).absolute()))  # a link into an environment must stay one
            columns[grid.version] = grid.rows
    text = PAGE.read_text()
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table(columns)}{END}", text, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])

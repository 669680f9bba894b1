"""The tables of docs/checks.md, from the registry: ``python -m tests.support.check_reference`` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from guarded_serve.checks.interface import FAMILIES
from guarded_serve.checks.registry import checks_of
from tests.support.profile_reference import BEGIN, END, cell

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"


def tables() -> str:
    """A heading and a table a family."""
    return "\n".join(_families())


def _families() -> Iterator[str]:
    for family in FAMILIES:
        yield from (f"## {family}", "", "| check | rule |", "|---|---|")
        for check in checks_of([family]):
            yield f"| `{check.name}` | {cell(check.summary)} |"
        yield ""


def with_tables(page: str) -> str:
    """The page with the tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""The tables of docs/profile.md, from the model: ``python -m tests.support.profile_reference`` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from guarded_serve.profile.guard_options import GUARD_OPTIONS
from guarded_serve.profile.model import Profile, sections
from guarded_serve.profile.wording import expected
from guarded_serve.profile.write import toml_value

PAGE = Path(__file__).parents[2] / "docs" / "profile.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def tables() -> str:
    """A heading and a table a section, and the launcher's own flags."""
    return "\n".join([*_sections(), *_flags()])


def _sections() -> Iterator[str]:
    for name, section in sections().items():
        yield from (f"### [{name}]", "", str(Profile.model_fields[name].description), "")
        yield from ("| key | what stands here | default | |", "|---|---|---|---|")
        properties = section.model_json_schema()["properties"]
        for key, field in section.model_fields.items():
            default = "" if field.default is None else f"`{toml_value(field.default)}`"
            yield f"| `{key}` | {cell(expected(properties[key]))} | {default} | {cell(str(field.description))} |"
        yield ""


def _flags() -> Iterator[str]:
    yield from ("### The launcher's own flags", "", "| flag | | profile key |", "|---|---|---|")
    for option in GUARD_OPTIONS:
        values = "|".join(option.choices) if option.choices else option.metavar
        flag = f"{option.flag} {values}" if values else option.flag
        yield f"| `{cell(flag)}` | {cell(option.help)} | {f'`{option.key}`' if option.key else ''} |"
    yield ""


def cell(text: str) -> str:
    """Text for a table's cell."""
    return text.replace("|", "\\|")


def with_tables(page: str) -> str:
    """The page with the tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))

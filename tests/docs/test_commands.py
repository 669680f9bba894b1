"""What a newcomer pastes from a page runs: programs on the PATH of a clone, installed from where this project is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guarded_serve.checks.interface import FAMILIES

ROOT = Path(__file__).parents[2]
LINE = "Commands here are typed in the clone, after `make setup` and `export PATH=$PWD/.venv/bin:$PATH`."
EXPORT = "export PATH=$PWD/.venv/bin:$PATH"
COMMAND = re.compile(
    r"(?:^|`|\| )(?:guarded-serve [a-z]|python -m (?:guarded_serve|demo|benchmarks|tests|sglang)\b)", re.M
)
FROM_AN_INDEX = re.compile(
    r"(?:pip install|additional_dependencies:)[^\n]*?(?<![/\w])guarded-serve(?:\[[\w,]+\])?(?!\[| @|[\w/-])"
)
FOLDERS = ("docs", "demo", "systemd", "deploy", "guarded_serve", "tools", "benchmarks", "profiles")
PAGES = sorted(
    {
        *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),  # it tells of commands
        *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")),
    }
)


def is_usable(text: str) -> bool:
    """Whether the PATH is told of before the first command."""
    first = COMMAND.search(text)
    return first is None or EXPORT in text[: first.start()]


def installs_from_an_index(text: str) -> list[str]:
    return [match[0] for match in FROM_AN_INDEX.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_path_stands_before_the_first_command(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert is_usable(text)
    assert EXPORT not in text or LINE in text or page.name == "README.md"
    assert ".venv/bin/" not in text.replace("`.venv/bin/`", ""), "one way to say it: the PATH"


def test_these_pages_have_commands_at_all() -> None:
    with_commands = [page for page in PAGES if COMMAND.search(page.read_text(encoding="utf-8"))]
    assert len(with_commands) >= 12
    assert {"README.md", "new-drafter.md", "smoke.md"} <= {page.name for page in with_commands}


def test_a_page_without_the_line_is_noticed() -> None:
    assert not is_usable("# Page\n\n```\nguarded-serve smoke --profile x.toml\n```\n")
    assert not is_usable("# Page\n\n```\npython -m demo.broken --out broken/\n```\n" + LINE)
    assert is_usable(f"# Page\n\n{LINE}\n\n```\nguarded-serve smoke --profile x.toml\n```\n")


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    texts = [path for path in ROOT.glob("*") if path.suffix in (".md", ".toml")]
    for folder in (*FOLDERS, "tests/support"):
        texts += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".yml", ".yaml", ".py", ".conf")
        ]
    wrong = {path.name: found for path in texts if (found := installs_from_an_index(path.read_text(encoding="utf-8")))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install guarded-serve", True),
        ("pip install 'guarded-serve[sglang]' py-spy", True),
        ("additional_dependencies: [guarded-serve]", True),
        ("pip install .", False),
        ('pip install "guarded-serve[sglang,report] @ $GUARDED_SERVE"', False),
        ("/opt/guarded-serve/bin/pip install '.[sglang]' py-spy", False),
        ("RUN pip install --no-cache-dir /tmp/guarded-serve py-spy", False),
    ],
)
def test_an_install_from_an_index_is_noticed(text: str, wrong: bool) -> None:
    assert bool(installs_from_an_index(text)) is wrong


def test_the_families_to_name_where_no_driver_is() -> None:
    """As README says; a new family would have to be named there."""
    without_gpus = ",".join(family for family in ("profile", "target", "drafter", "host", "gpu") if family != "gpu")
    assert {*without_gpus.split(","), "gpu"} == set(FAMILIES)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"`guarded-serve check --only {without_gpus}` leaves that family out" in readme
    assert "`gpu.driver` refuses a deployment for GPUs (exit 71)" in readme

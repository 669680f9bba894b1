"""What every test shares: the project's root, and a closing line that says what was skipped and why."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Run in the background or under nohup, a shell has these ignored, and the launchers that the tests start would inherit
# that and rightly not stop on them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the reports of real-engine tests: a report knows names, and a folder is called engine too."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.user_properties.append(("engine", "real"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests ran on the real engine."""
    passed = terminalreporter.stats.get("passed", [])
    engine = sum(("engine", "real") in report.user_properties for report in passed if report.when == "call")
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"real-engine tests passed: {engine}; skipped: {skipped} (reasons above)")

"""What bare SGLang does with each wrong drafter of `tests.support.faults`, seen on the CPU engine.

    python -m tests.support.folklore [FAULT ...]

starts SGLang once a fault (half a minute each) and writes its row of docs/compatibility.md; default: all of them, and
the right drafter that they are copies of.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.bare_sglang import Server, eagle3_flags, serve, version
from tests.support.faults import DRAFTER, FAULTS, TARGET, Dies, Fault, Slow, copy
from tests.support.guarded import ROOT

PROMPTS = [json.loads(line)["text"] for line in (ROOT / "demo/prompts.jsonl").read_text().splitlines()][:5]
CHAIN = (3, 1, 4)
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- wrong drafters: begin -->", "<!-- wrong drafters: end -->"
RIGHT = "none: the right drafter"
RIGHT_IS_WORTH = 2.2
"""Accept length that the right drafter exceeds on these prompts."""


@dataclass(frozen=True)
class Seen:
    """What one server did: it served at this accept length, or died with this line in its log."""

    accept_length: float | None
    line: str | None = None

    def confirms(self, fault: Fault | None) -> bool:
        """Whether it did what the finding claims; None: the right drafter."""
        if fault is None:
            return self.accept_length is not None and self.accept_length > RIGHT_IS_WORTH
        if isinstance(fault.does, Slow):
            return self.accept_length is not None and self.accept_length < fault.does.below
        return self.line is not None

    def told(self) -> str:
        """For the page."""
        if self.accept_length is not None:
            return f"serves, accept length {self.accept_length:.2f}"
        return f"dies: `{self.line}`" if self.line else "dies, for another reason"


def accept_length(server: Server) -> float:
    """Tokens a verify, over a few prompts that the target continues well."""
    tokens = verifies = 0
    for prompt in PROMPTS:
        body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 48}}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
        answer.raise_for_status()
        told = answer.json()["meta_info"]
        tokens += told["completion_tokens"]
        verifies += told["spec_verify_ct"]
    return tokens / verifies


def watch(fault: Fault | None, folder: Path) -> Seen:
    """Start SGLang with this drafter, ask it a few prompts, stop it. The log stays in ``folder``."""
    log = folder / "server.log"
    flags = eagle3_flags(copy(folder, fault) if fault else DRAFTER, *CHAIN)
    for key, value in (fault.settings if fault else {}).items():
        flags[flags.index("--" + key.replace("_", "-")) + 1] = str(value)
    try:
        with serve(TARGET, flags, log, fault.environment if fault else {}) as server:
            return Seen(accept_length(server))
    except (RuntimeError, httpx.HTTPError):
        text = log.read_text(errors="replace")
        found = re.search(fault.does.log, text) if fault and isinstance(fault.does, Dies) else None
        return Seen(None, _line(text, found.start()) if found else None)


def _line(text: str, at: int) -> str:
    """The line at this place, without SGLang's time stamp, as a cell of a table can hold it."""
    line = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
    line = re.sub(r"^\[[^\]]*\]\s*", "", line).replace("|", "/").replace("`", "'").strip()
    return line if len(line) <= 180 else line[:177] + "..."


def row(name: str, seen: Seen) -> tuple[str, str, str]:
    """Fault, finding, what was seen."""
    fault = FAULTS.get(name)
    finding = f"`{fault.finding}`" if fault else "none"
    return name, finding, seen.told() + ("" if seen.confirms(fault) else " (**not as claimed**)")


def page_rows(text: str) -> dict[str, tuple[str, ...]]:
    """Rows of the committed page by the fault's name."""
    lines = text.split(BEGIN)[1].split(END, maxsplit=1)[0].splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("| ")]
    return {one[0]: one for one in cells[1:]}


def written(text: str, rows: Mapping[str, Sequence[str]]) -> str:
    """The page with these rows, in the order of the faults."""
    of = ".".join(map(str, version()))
    lines = [f"| fault | preflight refuses with | bare SGLang {of} |", "|---|---|---|"]
    lines += [f"| {' | '.join(rows[name])} |" for name in (RIGHT, *FAULTS) if name in rows]
    table = "\n".join(lines)
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def main(names: Sequence[str]) -> None:
    """Watch and write, a row at a time."""
    for name in names or (RIGHT, *FAULTS):
        with tempfile.TemporaryDirectory() as folder:
            new = row(name, watch(FAULTS[name] if name != RIGHT else None, Path(folder)))
        text = PAGE.read_text()
        PAGE.write_text(written(text, {**page_rows(text), name: new}))
        sys.stdout.write(" | ".join(new) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Prompts from held-out files: the start of a function, class or docstring, whole lines, 10 to 100 tokens.

The rule, which never looks at the drafter:
1. a candidate starts at a `def` or `class` line (a method is dedented) or at the docstring below one, and ends after
   one to six whole lines, before the first empty one;
2. a candidate whose text stands in a training or sibling file is dropped, and so is one too short or too long;
3. of the rest, in a seeded order, the first ones are taken whose greedy continuation by the target and by the sibling
   does not repeat itself (`generate.repeats_itself`), at most four a file.
"""

from __future__ import annotations

import json
import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from demo.corpus import Document

FEWEST_TOKENS, MOST_TOKENS = 10, 100
MOST_PER_FILE = 4
STARTS = ("def ", "async def ", "class ")


@dataclass(frozen=True)
class Prompt:
    """A prompt's text, the held-out file it is from, and its first line there (from 1)."""

    text: str
    file: str
    line: int


def candidates(documents: Sequence[Document], tokenizer: Tokenizer, seed: int, most: int = 1000) -> list[Prompt]:
    """Prompts by rules 1 and 2, in a seeded order."""
    dice = random.Random(seed)
    seen = "\0".join(document.text for document in documents if document.part != "held-out")
    known_lines = set(seen.replace("\0", "\n").split("\n"))
    places = [
        (document, number)
        for document in documents
        if document.part == "held-out"
        for number, line in enumerate(document.text.split("\n"))
        if line.lstrip().startswith(STARTS)
    ]
    dice.shuffle(places)
    found: list[Prompt] = []
    for document, number in places:
        lines = document.text.split("\n")
        docstring = number + 1 < len(lines) and lines[number + 1].lstrip().startswith('"""')
        start = number + 1 if docstring and dice.random() < 0.25 else number
        taken = lines[start : start + dice.randint(1, 6)]
        block = "\n".join(taken[: taken.index("")] if "" in taken else taken).rstrip()
        text = textwrap.dedent(block) + "\n"
        size = len(tokenizer.encode(text, add_special_tokens=False).ids)
        if not FEWEST_TOKENS <= size <= MOST_TOKENS:
            continue
        if any(known_lines.issuperset(form.split("\n")) and form in seen for form in (block, text.rstrip())):
            continue
        found.append(Prompt(text, document.path, start + 1))
        if len(found) == most:
            break
    return found


def choose(prompts: Sequence[Prompt], usable: Sequence[bool], count: int) -> list[Prompt]:
    """The first `count` usable prompts, at most MOST_PER_FILE a file (rule 3)."""
    taken: list[Prompt] = []
    for prompt, good in zip(prompts, usable, strict=True):
        if good and sum(other.file == prompt.file for other in taken) < MOST_PER_FILE:
            taken.append(prompt)
        if len(taken) == count:
            break
    return taken


def write_prompts(prompts: Iterable[Prompt], file: Path) -> None:
    """One JSON object a line: text, file, line."""
    file.write_text("".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts), encoding="utf-8")


def read_prompts(file: Path) -> list[Prompt]:
    """Read what `write_prompts` wrote."""
    return [Prompt(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]

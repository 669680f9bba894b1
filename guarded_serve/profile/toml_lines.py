"""The line of every key in a TOML file, which `tomllib` does not tell.

A scanner, not a parser: it reads what `tomllib` has already accepted (or refused, for finding where the broken
statement starts), so it never raises and leaves judging to `tomllib`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Key = tuple[str | int, ...]
"""A path in the document: table and key names, and indices of arrays."""

_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\", "e": "\x1b"}
_BARE_ENDS = frozenset(" \t\r\n=.]#,[{}\"'")


@dataclass(frozen=True)
class Lines:
    """Where keys and statements stand; lines count from 1."""

    keys: Mapping[Key, int]
    statements: tuple[tuple[int, int], ...]  # first and last line of each header or assignment

    def of(self, *key: str | int) -> int:
        """The line of a key, or of the nearest enclosing one that is there, or 1."""
        while key and key not in self.keys:
            key = key[:-1]
        return self.keys.get(key, 1)

    def statement_at(self, line: int) -> tuple[int, int]:
        """The statement that covers a line; the line alone where there is none."""
        return next((pair for pair in self.statements if pair[0] <= line <= pair[1]), (line, line))


def find_lines(text: str) -> Lines:
    """Scan a TOML document."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return Lines(scanner.keys, tuple(scanner.statements))


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.keys: dict[Key, int] = {}
        self.statements: list[tuple[int, int]] = []
        self.table_arrays: dict[Key, int] = {}  # path of an array of tables -> index of its latest table

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def step(self, length: int = 1) -> None:
        self.line += self.text.count("\n", self.at, self.at + length)
        self.at += length

    def blank(self, *, newlines: bool) -> None:
        """Skip blanks and, over several lines, comments."""
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\r" or (newlines and char == "\n"):
                self.step()
            elif char == "#" and newlines:
                self.rest_of_line()
            else:
                return

    def rest_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.step((len(self.text) if end < 0 else end) - self.at)

    def document(self) -> None:
        table: Key = ()
        while True:
            self.blank(newlines=True)
            if self.at >= len(self.text):
                return
            first, before = self.line, self.at
            if self.peek() == "[":
                table = self.header()
            else:
                self.assignment(table)
            self.statements.append((first, self.line))
            self.rest_of_line()
            if self.at == before:
                self.step()

    def header(self) -> Key:
        line = self.line
        brackets = 2 if self.peek(2) == "[[" else 1
        self.step(brackets)
        names = self.key()
        if self.peek(brackets) == "]" * brackets:
            self.step(brackets)
        path: Key = ()
        for position, name in enumerate(names):
            path = (*path, name)
            self.keys.setdefault(path, line)
            if brackets == 2 and position == len(names) - 1:
                self.table_arrays[path] = self.table_arrays.get(path, -1) + 1
            if path in self.table_arrays:
                path = (*path, self.table_arrays[path])
                self.keys.setdefault(path, line)
        return path

    def assignment(self, table: Key) -> None:
        line = self.line
        path = table
        for name in self.key():
            path = (*path, name)
            self.keys.setdefault(path, line)
        if self.peek() == "=":
            self.step()
            self.blank(newlines=False)
            self.value(path)

    def key(self) -> list[str]:
        """A dotted key, up to `=`, `]` or whatever cannot be part of one."""
        names: list[str] = []
        while True:
            self.blank(newlines=False)
            if self.peek() in ('"', "'"):
                names.append(self.string())
            else:
                start = self.at
                while self.at < len(self.text) and self.peek() not in _BARE_ENDS:
                    self.step()
                if start == self.at:
                    return names
                names.append(self.text[start : self.at])
            self.blank(newlines=False)
            if self.peek() != ".":
                return names
            self.step()

    def value(self, path: Key) -> None:
        char = self.peek()
        if char in ('"', "'"):
            self.string()
        elif char == "[":
            self.array(path)
        elif char == "{":
            self.inline_table(path)
        else:
            while self.at < len(self.text) and self.peek() not in ",]}#\n":
                self.step()

    def array(self, path: Key) -> None:
        self.step()
        index = 0
        while self.at < len(self.text):
            self.blank(newlines=True)
            if self.peek() == "]":
                self.step()
                return
            if self.peek() == ",":
                self.step()
                continue
            before = self.at
            element: Key = (*path, index)
            self.keys[element] = self.line
            self.value(element)
            index += 1
            if self.at == before:
                self.step()

    def inline_table(self, path: Key) -> None:
        self.step()
        while self.at < len(self.text):
            self.blank(newlines=True)
            if self.peek() == "}":
                self.step()
                return
            if self.peek() == ",":
                self.step()
                continue
            before = self.at
            self.assignment(path)
            if self.at == before:
                self.step()

    def string(self) -> str:
        """A string of any of the four kinds; a single-line one ends at the line's end at the latest."""
        quote = self.peek()
        if self.peek(3) == quote * 3:
            return self.long_string(quote * 3)
        self.step()
        parts: list[str] = []
        while self.at < len(self.text) and self.peek() not in (quote, "\n"):
            if quote == '"' and self.peek() == "\\":
                parts.append(self.escape())
            else:
                parts.append(self.peek())
                self.step()
        if self.peek() == quote:
            self.step()
        return "".join(parts)

    def long_string(self, quotes: str) -> str:
        self.step(3)
        start = self.at
        while self.at < len(self.text):
            if quotes[0] == '"' and self.peek() == "\\":
                self.step(2)
            elif self.peek(3) == quotes:
                self.step(3)
                while self.peek() == quotes[0]:  # up to two quotes may stand before the closing three
                    self.step()
                break
            else:
                self.step()
        return self.text[start : self.at]

    def escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        width = {"u": 4, "U": 8, "x": 2}.get(letter, 0)
        digits = self.text[self.at + 2 : self.at + 2 + width]
        self.step(min(2 + width, len(self.text) - self.at))
        if not width:
            return _ESCAPES.get(letter, letter)
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            return digits

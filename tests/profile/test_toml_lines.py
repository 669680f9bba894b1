"""The line finder against tomllib: it finds exactly the keys that are there, each where it was written."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded_serve.profile.toml_lines import Key, find_lines
from guarded_serve.profile.write import toml_key, toml_value

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


def paths(value: Any, at: Key = ()) -> set[Key]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path for key, item in items for path in ({(*at, key)} | paths(item, (*at, key)))}


DOCUMENT = '''# a comment with [brackets] and = signs
title = "a # that is no comment"
dotted.key.here = 1

[a]  # a table
"quoted.key" = 'literal # string'
'single' = """
multi ] line
[not.a.table]
""" # after
list = [ # comment, with a comma
  1,
  [2, 3], "x]y",
  { inner = "v", "in ner".deep = [4] },
]
inline = { x = 1, y = { z = 2 } }
[a.b."c d"]
date = 1979-05-27T07:32:00Z
[[t]]
n = 1
[t.sub]
m = 2
[[t]]
n = 3
"\\u00e9\\"" = true
last = \'\'\'
'quotes\'\'\'\'
end = 5'''


def test_every_form() -> None:
    lines = find_lines(DOCUMENT)
    assert set(lines.keys) == paths(tomllib.loads(DOCUMENT))
    where = {
        ("title",): 2, ("dotted",): 3, ("dotted", "key", "here"): 3, ("a",): 5, ("a", "quoted.key"): 6,
        ("a", "single"): 7, ("a", "list"): 11, ("a", "list", 0): 12, ("a", "list", 1, 1): 13,
        ("a", "list", 3, "in ner", "deep", 0): 14, ("a", "inline", "y", "z"): 16, ("a", "b", "c d"): 17,
        ("a", "b", "c d", "date"): 18, ("t",): 19, ("t", 0, "n"): 20, ("t", 0, "sub", "m"): 22, ("t", 1): 23,
        ("t", 1, "n"): 24, ("t", 1, 'é"'): 25, ("t", 1, "last"): 26, ("t", 1, "end"): 28,
    }  # fmt: skip
    assert {key: lines.keys[key] for key in where} == where


def test_an_unknown_key_has_the_line_of_its_table() -> None:
    lines = find_lines("[a]\nb = 1\n")
    assert lines.of("a", "b", "c") == 2
    assert lines.of("a", "missing") == 1
    assert lines.of("nowhere") == 1


def test_windows_line_ends() -> None:
    assert find_lines("[a]\r\nb = 1\r\nc = 2\r\n").of("a", "c") == 3


names = st.text(min_size=1, max_size=6)
values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, width=16) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(names, st.dictionaries(names, values, max_size=4), max_size=4), st.sampled_from(["", "\n", "#x\n"])
)
def test_the_same_keys_as_tomllib(document: dict[str, dict[str, Any]], between: str) -> None:
    text, expected = "", {}
    for table, keys in document.items():
        expected[(table,)] = text.count("\n") + 1
        text += f"[{toml_key(table)}]\n{between}"
        for key, value in keys.items():
            expected[(table, key)] = text.count("\n") + 1
            text += f"{toml_key(key)} = {toml_value(value)}\n{between}"
    assert tomllib.loads(text) == document  # the writer of `profile new` is held here as well
    lines = find_lines(text)
    assert set(lines.keys) == paths(document)
    assert {key: lines.keys[key] for key in expected} == expected


@given(st.text(alphabet="[]{}=\"'\\#\n.,ab1 ", max_size=60))
def test_it_ends_on_anything(text: str) -> None:
    lines = find_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.keys.values())

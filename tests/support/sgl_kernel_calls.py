"""Finds what SGLang's speculative CPU path takes from `sgl_kernel`, by reading SGLang's source, not by running it.

Guards such as `if _is_cpu:` are decided as on a machine with no accelerator; a guard that cannot be decided that way
counts both ways.
"""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import dataclass
from pathlib import Path

CALL_SITES = (
    "kernels/ops/speculative",
    "kernels/ops/kvcache/cache_move.py",
    "srt/speculative",
    "srt/mem_cache/allocation.py",
    "srt/layers/attention/intel_amx_backend.py",
)
"""Where SGLang's EAGLE and NGRAM path lies, relative to the package."""

_NOT_OURS = ("dspark", "dflash", "uno", "domino", "lilicorr", "frozen_kv")
"""Other speculative algorithms, by the start of a file's or folder's name."""


@dataclass(frozen=True)
class Call:
    """One call: the operator, its positional arguments as written, its keywords, and where it is."""

    operator: str
    arguments: tuple[str, ...]
    keywords: tuple[str, ...]
    place: str


@dataclass(frozen=True)
class Uses:
    """All of one SGLang."""

    imports: frozenset[tuple[str, str]]
    """(module, name), such as ("sgl_kernel", "verify_tree_greedy_cpu")."""
    torch_ops: frozenset[str]
    """Names taken from `torch.ops.sgl_kernel`."""
    calls: tuple[Call, ...]


def _decide(test: ast.expr) -> bool | None:
    """The guard's value on a CPU; None when the device does not decide it."""
    if isinstance(test, ast.Call) and not test.args:
        test = test.func
    if isinstance(test, ast.Name) and test.id.removeprefix("_").startswith("is_"):
        return test.id.removeprefix("_") == "is_cpu"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _decide(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        values = [_decide(value) for value in test.values]
        decisive = isinstance(test.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    return None


class _Reader(ast.NodeVisitor):
    def __init__(self, place: str) -> None:
        self.place = place
        self.imports: set[tuple[str, str]] = set()
        self.torch_ops: set[str] = set()
        self.names: dict[str, str] = {}  # name or attribute in this file -> operator
        self.calls: list[Call] = []

    def visit_If(self, node: ast.If) -> None:
        value = _decide(node.test)
        for statement in [] if value is False else node.body:
            self.visit(statement)
        for statement in [] if value is True else node.orelse:
            self.visit(statement)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "sgl_kernel" or (node.module or "").startswith("sgl_kernel."):
            for alias in node.names:
                self.imports.add((node.module or "", alias.name))
                self.names[alias.asname or alias.name] = alias.name

    def _operator(self, node: ast.expr) -> str | None:
        if ast.unparse(node).startswith("torch.ops.sgl_kernel.") and isinstance(node, ast.Attribute):
            self.torch_ops.add(node.attr)
            return node.attr
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        return self.names.get(node.attr) if isinstance(node, ast.Attribute) else None

    def visit_Assign(self, node: ast.Assign) -> None:
        operator = self._operator(node.value)
        for target in node.targets:
            if operator and isinstance(target, ast.Name | ast.Attribute):
                self.names[target.id if isinstance(target, ast.Name) else target.attr] = operator
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        operator = self._operator(node.func)
        if operator:
            self.calls.append(
                Call(
                    operator,
                    tuple(ast.unparse(argument) for argument in node.args),
                    tuple(keyword.arg or "**" for keyword in node.keywords),
                    f"{self.place}:{node.lineno}",
                )
            )
        self.generic_visit(node)


def read(sglang: Path) -> Uses:
    """What the SGLang whose package folder this is takes from `sgl_kernel` in its EAGLE and NGRAM path."""
    imports: set[tuple[str, str]] = set()
    torch_ops: set[str] = set()
    calls: list[Call] = []
    for site in CALL_SITES:
        start = sglang / site
        for file in sorted(start.rglob("*.py")) if start.is_dir() else [start]:
            place = file.relative_to(sglang)
            if not file.exists() or any(part.startswith(_NOT_OURS) for part in place.parts):
                continue
            reader = _Reader(str(place))
            reader.visit(ast.parse(file.read_text(encoding="utf-8")))
            imports |= reader.imports
            torch_ops |= reader.torch_ops
            calls += reader.calls
    return Uses(frozenset(imports), frozenset(torch_ops), tuple(calls))


def record(sources: dict[str, Path]) -> list[dict[str, object]]:
    """The calls of several SGLangs (version -> package folder) as JSON values, each with the versions that make it."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for version, folder in sources.items():
        for call in read(folder).calls:
            versions = found.setdefault((call.operator, call.arguments, call.keywords), [])
            if version not in versions:
                versions.append(version)
    return [
        {"operator": operator, "arguments": list(arguments), "keywords": list(keywords), "versions": versions}
        for (operator, arguments, keywords), versions in sorted(found.items())
    ]


if __name__ == "__main__":  # python -m tests.support.sgl_kernel_calls 0.5.17=FOLDER ... > tests/cpu_kernels/calls.json
    pairs = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print("[\n" + ",\n".join(json.dumps(entry) for entry in record({v: Path(f) for v, f in pairs.items()})) + "\n]")

"""What happens when SGLang asks for an operator that this package lacks, or calls one with other arguments.

Either ends in one sentence that names the operator and the SGLang version, instead of an unrelated error deep
in a forward pass. Imports torch for its operator namespace type only.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch._ops import _OpNamespace

NAMESPACE = "sgl_kernel"
_HOLDS = "the operators of SGLang's EAGLE and NGRAM path on a machine with no GPU"

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.cache
def sglang_version() -> str:
    """The installed SGLang's version, `unknown` when its metadata cannot be found."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class MissingOperator(NotImplementedError):
    """SGLang called an operator that the CPU kernels do not have."""


class UnexpectedCall(TypeError):
    """SGLang called an operator with arguments that it does not take."""


class UnsupportedCase(NotImplementedError):
    """SGLang asked an operator for something that this package has not implemented."""


def unsupported(operator: str, what: str) -> UnsupportedCase:
    """The error for a known operator asked to do something that it cannot."""
    return UnsupportedCase(
        f"{NAMESPACE}.{operator} of guarded_serve/cpu_kernels does not support {what}, which SGLang "
        f"{sglang_version()} asked for; serve this model on a GPU, or change the flag that needs it."
    )


def missing_sentence(operator: str) -> str:
    """The sentence for an operator that is not here."""
    return (
        f"{NAMESPACE}.{operator} is not in guarded_serve/cpu_kernels, which holds only {_HOLDS}; SGLang "
        f"{sglang_version()} asked for it. Serve this model on a GPU, or add the operator."
    )


def placeholder(operator: str) -> Callable[..., NoReturn]:
    """A function that can be imported and raises `MissingOperator` when it is called."""

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise MissingOperator(missing_sentence(operator))

    missing.__name__ = missing.__qualname__ = operator
    return missing


def checked(function: Function) -> Function:
    """Wrap an operator so that a call that does not fit its signature says so.

    The signature is only looked at after a TypeError, so a call that fits pays for one more Python frame.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as mismatch:
                raise UnexpectedCall(
                    f"SGLang {sglang_version()} calls {NAMESPACE}.{function.__name__} with other arguments than "
                    f"guarded_serve/cpu_kernels takes ({mismatch}); it takes {signature}."
                ) from None
            raise error

    return call  # type: ignore[return-value]


class OperatorNamespace(_OpNamespace):
    """`torch.ops.sgl_kernel` with this package's operators as plain Python callables.

    Calling them past torch's dispatcher saves some ten microseconds a call. An operator that is not here raises an
    AttributeError with our sentence, so `hasattr` still says no (SGLang looks for AMX operators that way).
    """

    def __init__(self, operators: dict[str, Callable[..., Any]], on_lookup: Callable[[], None]) -> None:
        super().__init__(NAMESPACE)
        self._operators = operators
        self._on_lookup = on_lookup

    def __getattr__(self, op_name: str) -> Any:
        if op_name.startswith("_"):
            raise AttributeError(op_name)
        if op_name in self._operators:
            self._on_lookup()
            return self._operators[op_name]
        try:
            return super().__getattr__(op_name)
        except AttributeError:
            raise AttributeError(missing_sentence(op_name)) from None


def install(operators: dict[str, Callable[..., Any]], on_lookup: Callable[[], None]) -> None:
    """Make `torch.ops.sgl_kernel.NAME` this package's operators in this process.

    `on_lookup` is called each time one of them is looked up, which SGLang does when it builds an attention backend.
    """
    setattr(torch.ops, NAMESPACE, OperatorNamespace(operators, on_lookup))

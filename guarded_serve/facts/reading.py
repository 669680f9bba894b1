"""One field of a device: a value, Not Supported, or failed. The last is never taken for healthy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class State(str, Enum):
    """What came of the question."""

    VALUE = "value"
    NOT_SUPPORTED = "not supported"
    FAILED = "failed"


@dataclass(frozen=True)
class Reading(Generic[T]):
    """``error`` is what the driver said where there is no value, ``code`` its number (nvmlReturn_t)."""

    state: State
    value: T | None = None
    error: str = ""
    code: int | None = None

    @classmethod
    def of(cls, value: T) -> Reading[T]:
        """A field that was read."""
        return cls(State.VALUE, value)

    @classmethod
    def not_supported(cls, error: str = "Not Supported", code: int | None = 3) -> Reading[T]:
        """A field that this product or driver does not have."""
        return cls(State.NOT_SUPPORTED, None, error, code)

    @classmethod
    def failed(cls, error: str, code: int | None = None) -> Reading[T]:
        """A field that ought to be there and could not be read."""
        return cls(State.FAILED, None, error, code)

    @property
    def did_fail(self) -> bool:
        """Whether the question itself went wrong."""
        return self.state is State.FAILED

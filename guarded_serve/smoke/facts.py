"""What the smoke test measured, as plain frozen values: the verdict, the reports and the record are made of these.

Times are seconds on the client's clock, from streamed answers. Counts are SGLang's own (`meta_info`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One answer to one prompt.

    ``tokens`` counts the whole completion. ``decode_tokens`` came after the first chunk of the stream and took
    ``decode_s``, so neither holds the prefill. ``correct_drafts`` is SGLang's histogram: index is the number of drafts
    that were right in a verification, value how often; empty without a drafter.
    """

    prompt: str
    kind: str
    tokens: int
    decode_tokens: int
    decode_s: float
    first_s: float  # to the first chunk
    verifications: int = 0
    correct_drafts: tuple[int, ...] = ()
    text: str = ""

    @property
    def s_per_token(self) -> float:
        """Seconds a token while decoding; raises ZeroDivisionError where everything came in one chunk."""
        return self.decode_s / self.decode_tokens

    @property
    def accept_length(self) -> float | None:
        """Tokens a verification, bonus included, as SGLang counts; None without a drafter."""
        return self.tokens / self.verifications if self.verifications else None


@dataclass(frozen=True)
class EngineAccount:
    """What the engine's own clock said over the measurement at one batch size. None where no cycle was timed."""

    cycles: int = 0
    accept_length: float | None = None
    period_ms: float | None = None  # from a cycle's start to the next one's
    draft_ms: float | None = None
    verify_ms: float | None = None
    extend_ms: float | None = None
    tok_s: float | None = None  # the whole batch, while cycle followed cycle


@dataclass(frozen=True)
class Cell:
    """One server at one batch size: a tuple of samples a repeat."""

    batch_size: int
    repeats: tuple[tuple[Sample, ...], ...]
    engine: EngineAccount = field(default_factory=EngineAccount)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All of them."""
        return tuple(sample for repeat in self.repeats for sample in repeat)


@dataclass(frozen=True)
class Run:
    """One server, measured. ``failure`` says why it could not be measured to the end."""

    label: str
    cells: tuple[Cell, ...] = ()
    failure: str | None = None
    failure_remedy: str | None = None
    refused: Mapping[str, str] | None = None  # by a gate inside the engine: check, message, expected, found, remedy
    start_s: float | None = None  # from the start to the first answer
    stopped_early: str | None = None  # acceptance alone decided
    left_out: tuple[str, ...] = ()  # prompts that the server did not take, with its reason

    def cell(self, batch_size: int) -> Cell | None:
        """The cell of a batch size."""
        return next((cell for cell in self.cells if cell.batch_size == batch_size), None)

    @property
    def smallest(self) -> Cell | None:
        """The cell of the smallest batch size, where acceptance is judged."""
        return min(self.cells, key=lambda cell: cell.batch_size, default=None)


@dataclass(frozen=True)
class Acceptance:
    """Counts over samples."""

    tokens: int
    verifications: int
    correct_drafts: tuple[int, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Acceptance:
        """Added up; samples without verifications do not count."""
        tokens = verifications = 0
        histogram: list[int] = []
        for sample in samples:
            if sample.verifications:
                tokens += sample.tokens
                verifications += sample.verifications
                histogram += [0] * (len(sample.correct_drafts) - len(histogram))
                for index, count in enumerate(sample.correct_drafts):
                    histogram[index] += count
        return cls(tokens, verifications, tuple(histogram))

    @property
    def length(self) -> float | None:
        """Bonus included."""
        return self.tokens / self.verifications if self.verifications else None

    @property
    def by_position(self) -> tuple[float, ...]:
        """Share of verifications whose first, second, ... draft was right, and so were those before it."""
        total = sum(self.correct_drafts)
        if not total:
            return ()
        return tuple(sum(self.correct_drafts[n:]) / total for n in range(1, max(2, len(self.correct_drafts))))


@dataclass(frozen=True)
class Floors:
    """What the profile asks of a drafter."""

    accept_length: float
    first_position: float
    gain: float
    regression: float  # fraction of the recorded accept length that may be lost


@dataclass(frozen=True)
class Clues:
    """What is known of the drafter from its files and settings, for saying what is likely wrong."""

    algorithm: str | None = None
    steps: int | None = None
    eagle3_head: bool = False
    captured: tuple[int, ...] | None = None  # layers that SGLang captures for this drafter
    usual: tuple[int, ...] | None = None  # the ones that EAGLE-3 heads for so many layers are usually made for
    untrained: tuple[str, ...] = ()  # what the preflight found that looks like random weights, in words
    trained_for: str | None = None
    warned: tuple[str, ...] = ()  # the preflight's warnings about the drafter, ignored errors among them, in words

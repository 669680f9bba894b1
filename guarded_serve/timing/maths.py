"""The arithmetic of speculative decoding, in one place. The bonus token is counted everywhere.

A **cycle** drafts some tokens, lets the target verify them in one forward pass, and emits, for each request, the
accepted drafts and one token of the target's own: the **bonus**. The **accept length** of a cycle is what it emits for
one request, bonus included: 1 when every draft was wrong, steps + 1 when all were right. SGLang counts the same way
(``completion_tokens / spec_verify_ct``).

A **plain step** is the target's forward pass with no drafter; it emits one token a request.

The **break-even accept length** is cycle time over plain step time, at the same batch size: at that length the drafter
brings exactly what it costs. Above it the server is faster than without, below it slower. Accept length alone says
nothing: 3.2 loses where break-even is 4.0, and 1.9 wins where it is 1.7.

Arithmetic against a measured end-to-end rate. The case this project grew from: a cycle of 30 ms, 82 tok/s without a
drafter, so break-even is 0.030 * 82 = 2.46. At accept length 2.0 the arithmetic gives 2.0 / 0.030 = 66.7 tok/s, 19 %
below 82; a client measured 60 tok/s, 27 % below. The rest is time that belongs to no cycle: 60 tok/s at 2.0 is a
*period* of 33.3 ms from one cycle's start to the next, so 3.3 ms a cycle passed between them (scheduling, results on
their way out, prefills of other requests), and the break-even that counts is 0.0333 * 82 = 2.73. This is why the report
takes the period, and not the sum of the stages, as the cycle's time, and shows the difference as ``other_share``.
"""

from __future__ import annotations

from collections.abc import Mapping


def accept_length(tokens: float, verifications: float) -> float:
    """Mean tokens a request gets from a cycle, bonus included.

    ``tokens`` were emitted by ``verifications`` (rows of cycles: a batch of 8 verifies 8 times). 106 tokens in 43
    verifications are 2.4651 (SGLang report 33518). Raises ZeroDivisionError for no verification.
    """
    return tokens / verifications


def plain_step_ms(baseline_tok_s: float, bs: int) -> float:
    """Milliseconds of a plain decode step. ``baseline_tok_s`` is the whole batch's rate without a drafter."""
    return bs / baseline_tok_s * 1e3


def tok_s(length: float, cycle_ms: float, bs: int) -> float:
    """The whole batch's tokens per second at an accept length and a cycle time."""
    return length * bs / cycle_ms * 1e3


def break_even(cycle_ms: float, baseline_tok_s: float, bs: int) -> float:
    """The accept length at which the drafter brings exactly what it costs."""
    return cycle_ms / plain_step_ms(baseline_tok_s, bs)


def gain(batch_tok_s: float, baseline_tok_s: float) -> float:
    """What the drafter brings, as a fraction of the baseline: -0.27 is 27 % slower than without it."""
    return batch_tok_s / baseline_tok_s - 1


def baseline_at(bs: int, baselines: Mapping[int, float]) -> float | None:
    """The whole batch's plain tokens per second at a batch size, from a table of a few.

    Between two measured batch sizes the step time is taken as linear; outside them nothing is said (None).
    """
    if bs in baselines:
        return baselines[bs]
    below = max((known for known in baselines if known < bs), default=None)
    above = min((known for known in baselines if known > bs), default=None)
    if below is None or above is None:
        return None
    low, high = plain_step_ms(baselines[below], below), plain_step_ms(baselines[above], above)
    step = low + (high - low) * (bs - below) / (above - below)
    return bs / step * 1e3

"""The states of a supervised server, and which may follow which."""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """As the log line, the systemd status and the metric name them."""

    PREFLIGHT = "preflight"  # gates before anything starts
    STARTING = "starting"  # the server runs, it does not answer yet
    PROBING = "probing"  # it answered; real generations decide
    SERVING = "serving"
    DRAINING = "draining"  # asked to stop: running requests end
    STOPPED = "stopped"  # an asked-for end, nothing left behind
    REFUSED = "refused"  # a gate said no
    FAILED = "failed"  # it died, hung or never became ready


ENDS = frozenset({State.STOPPED, State.REFUSED, State.FAILED})

_FOLLOWERS = {
    State.PREFLIGHT: {State.STARTING, State.STOPPED, State.REFUSED, State.FAILED},
    State.STARTING: {State.PROBING, State.DRAINING, State.REFUSED, State.FAILED},
    State.PROBING: {State.SERVING, State.DRAINING, State.REFUSED, State.FAILED},
    State.SERVING: {State.DRAINING, State.FAILED},
    State.DRAINING: {State.STOPPED},
    State.FAILED: {State.PREFLIGHT, State.STOPPED},  # an in-process restart, or a stop while it is waited for
    State.STOPPED: set(),
    State.REFUSED: {State.PREFLIGHT, State.STOPPED},  # "serve-without-drafter" starts again, unless it is stopped
}


def may_follow(now: State | None, following: State) -> bool:
    """Whether the machine may go from ``now`` to ``following``; it begins with preflight."""
    return following is State.PREFLIGHT if now is None else following in _FOLLOWERS[now]

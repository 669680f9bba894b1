"""The link between the launcher and its plugin inside SGLang: one environment variable, one socket, one file.

Both sides import this module, so it depends on the standard library alone.

- The launcher puts `EngineSettings` as JSON into the environment variable `ENVIRONMENT_KEY`. A process without it is
  not ours, and the plugin does nothing there.
- The engine sends events as JSON datagrams (never blocking) to the Unix socket `EngineSettings.socket`:
  every event has ``event``, ``t`` (Unix seconds), ``pid``, ``rank`` (null where it is not known yet).
- The launcher writes the control file `EngineSettings.control`, which the engine's writer thread polls:
  ``{"clock": true}``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

ENVIRONMENT_KEY = "GUARDED_SERVE_ENGINE"
PLUGIN_NAME = "guarded_serve"

BUILD = "sglang.srt.managers.scheduler.Scheduler.__init__"
INITIALIZE = "sglang.srt.model_loader.loader._initialize_model"
"""Builds a model with its initial values, in every loader of 0.5.16 to 0.5.23; a function of the module."""
LOAD_HOOKS = (BUILD, INITIALIZE)  # without these two no load is judged

HELLO = "hello"  # role, sglang version, hooks: {target: "applied" | reason it is missing}, algorithm
DRAFTER_LOADED = "drafter-loaded"
SETTINGS = "settings"
REFUSED = "refused"  # check, message, expected, found, remedy
BEAT = "beat"  # once a second, and small: forwards (SGLang's count of forward passes, prefill included), busy (one
# began since the scheduler last had no work), paused, clock, dropped, lost, faults, problem
TOTALS = "totals"  # after each beat of a scheduler that is timed: totals, cumulative, of the batch sizes that changed
# (see `timing.totals`), and left, how many more of these make up the whole; at 0 everything up to the beat was told
FAULT = "fault"  # an error of ours inside the engine, which went on: faults (how many so far), message, about
LOAD = "load"  # a fault's `about` where it kept a load from being judged


@dataclass(frozen=True)
class EngineSettings:
    """What the launcher tells the plugin."""

    launch_id: str
    socket: str
    control: str
    cycles_directory: str | None = None  # None: no cycle log
    ranks: str = "first"  # or "all"
    rotate_mib: int = 256
    keep: int = 40

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> EngineSettings:
        """Raises ValueError or TypeError when the text is not what `to_json` wrote."""
        return cls(**json.loads(text))

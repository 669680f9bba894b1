"""Where SGLang's speculative workers draft, verify and extend: the functions that the cycle clock wraps, by worker.

One row a worker class, valid for SGLang 0.5.16 to 0.5.23 (read in each wheel; a test holds the table against the
installed one). A stage that a worker has no function for is None, and its time is taken from the edges around it:

- verify, where it is None, lasts from the end of draft (or from the start of ``target``, the target's forward pass) to
  the start of extend, or to the end of the cycle.
- draft, where it is None, lasts from the start of the cycle to the start of ``target``.

`StandaloneWorkerV2` inherits all it does from `EAGLEWorkerV2`; a worker is looked up along its base classes, nearest
first. The module imports nothing of SGLang.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

_SPEC = "sglang.srt.speculative."
_EAGLE = _SPEC + "eagle_worker_v2."
_FROZEN = _SPEC + "frozen_kv_mtp_worker_v2."
_MULTI = _SPEC + "multi_layer_eagle_worker_v2."
_DSPARK = _SPEC + "dspark_components."
_BASE_COUNTS = _SPEC + "base_spec_worker.BaseSpecWorker.on_verify_complete_cpu"
_TARGET = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler."


@dataclass(frozen=True)
class WorkerTargets:
    """Dotted names of one worker's functions."""

    cycle: str  # a decode cycle, when the batch's mode is DECODE
    counts: str | None  # accepted drafts reach the CPU here, one scheduler step later under overlap
    draft: str | None = None
    verify: str | None = None
    extend: str | None = None
    target: str | None = None  # the target model's forward pass inside the cycle
    since: tuple[int, int, int] = (0, 5, 16)  # the first SGLang that has this worker

    def stages(self) -> dict[str, str]:
        """The functions that exist, by role."""
        named = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "since"}
        return {role: target for role, target in named.items() if target is not None}


WORKERS: dict[str, WorkerTargets] = {
    # EAGLE, EAGLE3, NEXTN and MTP; STANDALONE through StandaloneWorkerV2
    "EAGLEWorkerV2": WorkerTargets(
        cycle=_EAGLE + "EAGLEWorkerV2.forward_batch_generation",
        draft=_EAGLE + "EagleDraftWorker.draft",
        verify=_EAGLE + "EAGLEWorkerV2.verify",
        extend=_EAGLE + "EagleDraftWorker._draft_extend_for_decode",
        counts=_EAGLE + "EAGLEWorkerV2.on_verify_complete_cpu",
    ),
    "FrozenKVMTPWorkerV2": WorkerTargets(
        cycle=_FROZEN + "FrozenKVMTPWorkerV2.forward_batch_generation",
        draft=_FROZEN + "FrozenKVMTPDraftWorker.draft",
        verify=_EAGLE + "EAGLEWorkerV2.verify",
        extend=_FROZEN + "FrozenKVMTPDraftWorker._draft_extend_for_decode",
        counts=_EAGLE + "EAGLEWorkerV2.on_verify_complete_cpu",
    ),
    "MultiLayerEagleWorkerV2": WorkerTargets(
        cycle=_MULTI + "MultiLayerEagleWorkerV2.forward_batch_generation",
        draft=_MULTI + "MultiLayerEagleDraftWorker.draft",
        verify=_MULTI + "MultiLayerEagleWorkerV2.verify",
        extend=_MULTI + "MultiLayerEagleDraftWorker._draft_extend_for_decode",
        counts=_BASE_COUNTS,
    ),
    "NGRAMWorker": WorkerTargets(
        cycle=_SPEC + "ngram_worker.NGRAMWorker.forward_batch_generation",
        draft=_SPEC + "ngram_worker.NGRAMWorker._prepare_for_speculative_decoding",
        target=_TARGET,
        counts=_SPEC + "ngram_worker.NGRAMWorker.on_verify_complete_cpu",
    ),
    "DFlashWorkerV2": WorkerTargets(
        cycle=_SPEC + "dflash_worker_v2.DFlashWorkerV2.forward_batch_generation",
        target=_TARGET,
        extend=_SPEC + "dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc",
        counts=_BASE_COUNTS,
    ),
    "DSparkWorkerV2": WorkerTargets(
        cycle=_DSPARK + "dspark_worker_v2.DSparkWorkerV2.forward_batch_generation",
        draft=_DSPARK + "dspark_draft.DraftBlockProposer.propose",
        target=_TARGET,
        extend=_DSPARK + "dspark_verify.TargetVerifyExecutor.commit_hidden",
        counts=_BASE_COUNTS,
    ),
    "UnoWorkerV2": WorkerTargets(
        cycle=_SPEC + "uno_worker_v2.UnoWorkerV2.forward_batch_generation",
        draft=_SPEC + "uno_worker_v2.UnoWorkerV2._run_draft_block",
        counts=_BASE_COUNTS,
        since=(0, 5, 20),
    ),
    # No drafter: plain decode steps, the baseline of break-even. One token a request and step.
    "TpModelWorker": WorkerTargets(cycle=_TARGET, counts=None),
}

PLAIN_WORKER = "TpModelWorker"

SCHEDULER: dict[str, str] = {
    "results": _SCHEDULER + "process_batch_result",  # joins counts to cycles; sees which rows SGLang drops
    "idle": _SCHEDULER + "on_idle",  # ends the last period, reads the last events
    "pause": _SCHEDULER + "pause_generation",  # a pause is no part of a period
}


def worker_name(worker: Any) -> str | None:
    """The row of `WORKERS` for a worker object, or None for a class that is not known."""
    return next((cls.__name__ for cls in type(worker).__mro__ if cls.__name__ in WORKERS), None)

"""The cycle clock on a made-up device and scheduler: overlap, late events, dropped rows, broken periods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from guarded_serve.engine.clock import IN_FLIGHT
from guarded_serve.engine.hooks import clock_hooks
from guarded_serve.engine.targets import WORKERS
from guarded_serve.engine.timers import CpuTimer
from tests.support.fake_engine import Batch, Engine, Mode, Request


def test_stages_and_period_under_overlap() -> None:
    """The result of a cycle is processed after the next one was launched, while that one still runs."""
    engine, reqs = Engine(), [Request(), Request()]
    first = engine.launch(reqs)
    engine.device.finish()
    second = engine.launch(reqs, draft=2.0)
    engine.process(first, [2, 4])
    assert engine.records == [], "the next cycle's start has not passed on the device yet"
    engine.device.finish()
    third = engine.launch(reqs)
    engine.process(second, [1, 1])
    (record,) = engine.records
    assert (record.forward, record.bs, record.steps, record.draft_tokens) == (1, 2, 3, 4)
    assert (record.draft_ms, record.verify_ms, record.extend_ms) == pytest.approx((1.0, 6.0, 0.5))
    assert record.gpu_ms == pytest.approx(7.5)
    assert record.period_ms == pytest.approx(7.6)
    assert (record.accept, record.dropped, record.source) == ([2, 4], (), "cuda-event")
    engine.device.finish()
    engine.process(third, [1, 1])
    assert [record.forward for record in engine.records] == [1, 2]
    assert engine.records[1].draft_ms == pytest.approx(2.0)
    assert engine.records[1].accept == [1, 1]


def test_without_overlap_each_result_comes_before_the_next_cycle() -> None:
    engine, reqs = Engine(), [Request()]
    for accept in (3, 1, 2):
        batch = engine.launch(reqs)
        engine.device.finish()
        engine.process(batch, [accept])
    engine.idle()
    assert [record.accept for record in engine.records] == [[3], [1], [2]]
    assert [record.period_ms is None for record in engine.records] == [False, False, True]


def test_a_prefill_between_breaks_the_period() -> None:
    engine, reqs = Engine(), [Request()]
    first = engine.launch(reqs)
    prefill = engine.launch([Request()], mode="extend")
    engine.process(first, [1])
    second = engine.launch([*reqs, Request()])
    engine.process(prefill, [1])
    engine.device.finish()
    engine.idle()
    assert [record.period_ms for record in engine.records] == [None]
    engine.process(second, [1, 1])
    engine.idle()
    assert [record.bs for record in engine.records] == [1, 2]
    assert engine.clock.prefill_tokens == 1


def test_a_pause_breaks_the_period() -> None:
    engine, reqs = Engine(), [Request()]
    first = engine.launch(reqs)
    engine.device.finish()
    engine.process(first, [1])
    engine.pause()
    second = engine.launch(reqs)
    engine.device.finish()
    engine.process(second, [1])
    assert engine.records[0].period_ms is None


def test_idle_batches_are_no_cycles() -> None:
    """Data-parallel attention runs empty batches to keep step; they count as nothing, and as no neighbour."""
    engine, reqs = Engine(), [Request()]
    first = engine.launch(reqs)
    engine.launch([], mode="idle")
    engine.process(first, [2])
    engine.device.finish()
    engine.idle()
    assert [(record.forward, record.period_ms) for record in engine.records] == [(1, None)]


def test_dropped_rows_are_those_finished_or_retracted_when_the_result_comes() -> None:
    engine, reqs = Engine(), [Request(), Request(), Request()]
    first = engine.launch(reqs)
    second = engine.launch(reqs)

    def finish_and_retract() -> None:
        reqs[0].over = True
        reqs[0].finished_len = 1
        reqs[2].is_retracted = True

    engine.process(first, [3, 3, 3], finish_and_retract)
    engine.process(second, [2, 2, 2])
    engine.device.finish()
    engine.idle()
    one, two = engine.records
    assert (one.dropped, one.cut) == ((), 2), "the row that finished now counts, less what the stop cut off"
    assert (two.dropped, two.cut) == ((0, 2), 0)
    assert two.kept() == [2]


def test_a_grammar_that_ends_cuts() -> None:
    engine = Engine()
    req = Request(grammar=object())
    batch = engine.launch([req])
    engine.process(batch, [4], lambda: req.output_ids.__delitem__(slice(1, None)))
    engine.device.finish()
    engine.idle()
    assert engine.records[0].cut == 3


def test_no_steps_means_no_draft() -> None:
    """Adaptive speculation at 0 steps verifies one token and does not draft."""
    engine = Engine()
    engine.worker.speculative_num_steps = 0
    batch = engine.launch([Request()], draft=0)
    engine.process(batch, [1])
    engine.device.finish()
    engine.idle()
    (record,) = engine.records
    assert (record.steps, record.draft_ms) == (0, None)
    assert record.verify_ms == pytest.approx(6.0)


def test_events_that_never_finish_cost_records_and_nothing_else() -> None:
    engine, reqs = Engine(), [Request()]
    for _ in range(3 * IN_FLIGHT):
        engine.process(engine.launch(reqs), [1])
    assert engine.records == []
    assert engine.clock.lost == 2 * IN_FLIGHT
    engine.device.finish()
    engine.process(engine.launch(reqs), [1])
    assert engine.records, "it goes on when the device does"


def test_events_that_finish_out_of_order() -> None:
    """On several streams a later mark may pass first: nothing is read before all have passed."""
    engine = Engine()
    batch = engine.launch([Request()])
    slot = engine.clock._waiting[0]
    late = slot.events[3]
    number, late._number = late._number, 10_000
    engine.device.finish()
    engine.process(batch, [1])
    engine.idle()
    assert engine.records == []
    late._number = number
    engine.idle()
    assert len(engine.records) == 1


def test_nothing_is_allocated_after_warm_up() -> None:
    engine, reqs = Engine(), [Request()]
    for _ in range(10):
        batch = engine.launch(reqs)
        engine.device.finish()
        engine.process(batch, [1])
    made = engine.device.made
    for _ in range(100):
        batch = engine.launch(reqs)
        engine.device.finish()
        engine.process(batch, [1])
    assert engine.device.made == made
    assert len(engine.records) >= 108


def test_switched_off_and_on() -> None:
    engine, reqs = Engine(), [Request()]
    first = engine.launch(reqs)
    engine.process(first, [1])
    engine.clock.on = False
    for _ in range(3):
        engine.process(engine.launch(reqs), [1])
    recorded = engine.device.recorded
    engine.process(engine.launch(reqs), [1])
    assert engine.device.recorded == recorded, "a clock that is off touches no event"
    engine.clock.on = True
    last = engine.launch(reqs)
    engine.process(last, [2])
    engine.device.finish()
    engine.idle()
    assert [(record.forward, record.period_ms) for record in engine.records] == [(1, None), (6, None)]


def test_a_result_without_counts_is_lost_not_invented() -> None:
    engine = Engine()
    batch = engine.launch([Request()])
    hook = engine.hooks["sglang.srt.managers.scheduler.Scheduler.process_batch_result"]
    engine.call(hook, lambda *_: None, batch, SimpleNamespace())
    engine.device.finish()
    engine.idle()
    assert engine.records == []
    assert engine.clock.lost == 1


def test_uno_counts_two_tokens_that_are_no_drafts() -> None:
    engine = Engine("UnoWorkerV2")
    batch = engine.launch([Request()])

    def original(*_: Any) -> None:
        engine.call(engine.hooks[engine.targets.counts], lambda *_: None, [3])

    hook = engine.hooks["sglang.srt.managers.scheduler.Scheduler.process_batch_result"]
    engine.call(hook, original, batch, SimpleNamespace(num_non_draft_tokens_per_req=2))
    engine.device.finish()
    engine.idle()
    assert engine.records[0].accept == [5]


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ("NGRAMWorker", (1.0, 6.0, None)),
        ("DFlashWorkerV2", (1.0, 6.0, 0.5)),
        ("DSparkWorkerV2", (1.0, 6.0, 0.5)),
        ("UnoWorkerV2", (1.0, 6.0, None)),
    ],
)
def test_workers_without_all_functions(worker: str, expected: tuple[float | None, ...]) -> None:
    """What has no function of its own lies between the edges around it: 1 ms draft, 6 ms target, 0.5 ms extend."""
    engine = Engine(worker)
    engine.worker.draft_token_num = 4
    batch = Batch(Mode("decode"), 1, [Request()])
    targets = engine.targets

    def work(*_: Any) -> Any:
        if targets.draft is not None:
            engine.stage("draft", 1.0)
        else:
            engine.device.now += 1.0
        if targets.target is not None:
            engine.stage("target", 6.0)
        else:
            engine.device.now += 6.0
        if targets.extend is not None:
            engine.stage("extend", 0.5)
        return SimpleNamespace(speculative_num_draft_tokens=4)

    engine.call(engine.hooks[targets.cycle], work, batch)
    engine.process(batch, [2])
    engine.device.finish()
    engine.idle()
    (record,) = engine.records
    for found, wanted in zip((record.draft_ms, record.verify_ms, record.extend_ms), expected, strict=True):
        assert found == (None if wanted is None else pytest.approx(wanted))


def test_plain_decode_is_the_baseline() -> None:
    engine = Engine("TpModelWorker", plain=True)
    reqs = [Request(), Request()]
    batch = Batch(Mode("decode"), 1, reqs)

    def work(*_: Any) -> Any:
        engine.device.now += 5.0
        return SimpleNamespace()

    engine.call(engine.hooks[engine.targets.cycle], work, batch)
    reqs[1].over = True
    engine.process(batch, [1, 1])
    engine.device.finish()
    engine.idle()
    (record,) = engine.records
    assert record.plain
    assert (record.steps, record.draft_tokens, record.accept, record.dropped) == (0, 1, [1, 1], (1,))
    assert (record.draft_ms, record.extend_ms) == (None, None)
    assert record.verify_ms == pytest.approx(5.0)


def test_a_fault_of_ours_never_reaches_sglang() -> None:
    """Every hook calls its original once, with what it was given, and gives back what it gave, whatever breaks."""
    engine = Engine()

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"no {name} today")

    engine.clock.timer = Broken()  # type: ignore[assignment]
    engine.clock.current = object()  # type: ignore[assignment]
    engine.clock._waiting.append(Broken())  # type: ignore[arg-type]
    for target, hook in clock_hooks(engine.clock, WORKERS["EAGLEWorkerV2"]).items():
        calls: list[tuple[Any, ...]] = []

        def original(*arguments: Any, seen: list[tuple[Any, ...]] = calls) -> str:
            seen.append(arguments)
            return "theirs"

        engine.clock.current = object()  # type: ignore[assignment]
        engine.clock._settling = Broken()  # type: ignore[assignment]
        before = engine.clock.faults
        assert hook(original, Broken(), Broken(), Broken()) == "theirs", target
        assert len(calls) == 1, target
        assert engine.clock.faults > before, target
    assert engine.clock.last_fault == "RuntimeError: no forward_ct today"


def test_an_error_of_sglangs_goes_through() -> None:
    engine = Engine()

    def original(*_: Any) -> None:
        raise ValueError("theirs")

    for hook in engine.hooks.values():
        with pytest.raises(ValueError, match="theirs"):
            hook(original, engine.worker, Batch(Mode("decode"), 1, []), SimpleNamespace())


def test_cpu_clock_says_so() -> None:
    engine = Engine(timer=CpuTimer())
    batch = engine.launch([Request()])
    engine.process(batch, [1])
    engine.idle()
    (record,) = engine.records
    assert record.source == "cpu-clock"
    assert record.gpu_ms is not None
    assert record.gpu_ms >= (record.draft_ms or 0) + (record.verify_ms or 0) + (record.extend_ms or 0)

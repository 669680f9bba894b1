"""When a serving engine counts as hung: plain times and beats, no processes."""

from __future__ import annotations

import itertools

from guarded_serve.supervisor.hang import HangWatch


def beat(watch: HangWatch, now: float, forwards: int, busy: bool, rank: int = 0) -> None:
    watch.beat(now, {"rank": rank, "forwards": forwards, "busy": busy})


def test_work_that_goes_on_is_no_hang() -> None:
    watch = HangWatch(10, 3, 0)
    for second in range(100):
        beat(watch, second, forwards=second // 9, busy=True)  # each forward pass takes 9 s
        assert watch.verdict(second + 0.5) is None
        assert watch.healthy(second + 0.5)


def test_a_forward_pass_that_does_not_end() -> None:
    watch = HangWatch(10, 3, 0)
    beat(watch, 0, 7, busy=False)
    for second in range(1, 20):
        beat(watch, second, 8, busy=True)
        expected = second >= 11
        assert (watch.verdict(second) is not None) == expected, second
    assert "forward pass 8 does not end since 18 s" in str(watch.verdict(19))


def test_idle_for_hours_is_no_hang() -> None:
    watch = HangWatch(10, 3, 0)
    for second in range(3600):
        beat(watch, second, 7, busy=False)
        assert watch.verdict(second) is None


def test_a_silent_scheduler() -> None:
    watch = HangWatch(10, 3, 0)
    beat(watch, 0, 1, busy=False)
    beat(watch, 0, 1, busy=False, rank=1)
    beat(watch, 9, 1, busy=False)
    assert watch.verdict(9.9) is None
    assert not watch.healthy(9.9)  # not hung yet, but nothing to tell the watchdog either
    assert "rank 1 is silent" in str(watch.verdict(10))


def test_a_stopped_process() -> None:
    watch = HangWatch(10, 3, 0)
    beat(watch, 5, 1, busy=False)
    watch.stopped(5, ["detokenizer 9"])
    assert not watch.healthy(5)
    watch.stopped(6, [])
    assert watch.healthy(6)
    watch.stopped(7, ["detokenizer 9"])
    beat(watch, 17, 1, busy=False)
    watch.stopped(17, ["detokenizer 9"])
    assert "detokenizer 9 is stopped" in str(watch.verdict(17))


def test_probes_are_single_rare_and_back_off() -> None:
    watch = HangWatch(120, 30, 0)
    begins = []
    for second in range(600):
        beat(watch, second, len(begins), busy=False)
        if watch.probe_due(second):
            begins.append(second)
            watch.probe_began(second)
            assert not watch.probe_due(second + 1)
            watch.probe_ended(second + 0.5, ok=True, detail="1 tokens")
    gaps = [after - before for before, after in itertools.pairwise(begins)]
    assert begins[0] == 30
    assert gaps == sorted(gaps)
    assert max(gaps) <= 61


def test_no_probe_under_traffic() -> None:
    watch = HangWatch(120, 30, 0)
    for second in range(300):
        beat(watch, second, second, busy=second % 2 == 0)  # short requests, all the time
        assert not watch.probe_due(second)


def test_a_probe_that_does_not_come_back_while_nothing_moves() -> None:
    watch = HangWatch(120, 30, 0)
    beat(watch, 30, 1, busy=False)
    watch.probe_began(30)
    for second in range(31, 130):
        beat(watch, second, 1, busy=False)
        assert (watch.verdict(second) is not None) == (second >= 120), second


def test_a_probe_behind_a_long_queue_is_no_hang() -> None:
    watch = HangWatch(120, 30, 0)
    watch.probe_began(30)
    for second in range(31, 600):
        beat(watch, second, second, busy=True)
        assert watch.verdict(second) is None


def test_probes_that_fail() -> None:
    watch = HangWatch(20, 5, 0)
    verdicts = []
    for second in range(60):
        beat(watch, second, 1, busy=False)
        if watch.probe_due(second):
            watch.probe_began(second)
            watch.probe_ended(second, ok=False, detail="HTTP 500: no")
        verdicts.append(watch.verdict(second))
    first = next(number for number, verdict in enumerate(verdicts) if verdict)
    assert first == 25
    assert "HTTP 500: no" in str(verdicts[first])


def test_without_beats_the_log_shows_progress() -> None:
    watch = HangWatch(20, 5, 0)
    watch.probe_began(5)
    watch.log_moved(15)
    assert watch.verdict(20) is None
    assert watch.verdict(40) is not None


def test_a_probe_behind_one_very_long_forward_pass_waits_in_full() -> None:
    watch = HangWatch(120, 60, 0)
    beat(watch, 60, 1, busy=False)
    watch.probe_began(60)
    for second in range(61, 190):
        beat(watch, second, 2, busy=True)  # it compiles, say
        assert (watch.verdict(second) is not None) == (second >= 181), second

"""When a serving engine counts as hung: plain times and beats, no processes."""

from __future__ import annotations

import itertools

from guarded_serve.supervisor.hang import HangWatch


def beat(watch: HangWatch, now: float, forwards: int, busy: bool, rank: int = 0, *, paused: bool = False) -> None:
    watch.beat(now, {"rank": rank, "forwards": forwards, "busy": busy, "paused": paused})


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


def test_a_probe_that_failed_once_is_forgotten_under_traffic() -> None:
    watch = HangWatch(20, 5, 0)
    beat(watch, 0, 1, busy=False)
    watch.probe_began(5)
    watch.probe_ended(6, ok=False, detail="HTTP 503: busy")
    assert not watch.healthy(7)
    for second in range(7, 100):
        beat(watch, second, second, busy=second % 3 > 0)
        assert watch.verdict(second) is None, second
        assert watch.healthy(second) or second < 10


def test_a_probe_that_failed_is_not_forgotten_for_its_own_forward_pass() -> None:
    watch = HangWatch(20, 5, 0)
    beat(watch, 0, 1, busy=False)
    watch.probe_began(5)
    watch.probe_ended(6, ok=False, detail="HTTP 500: no")
    for second in range(7, 26):
        beat(watch, second, 2, busy=False)
    assert "own generations fail" in str(watch.verdict(26))


def test_silence_of_all_is_no_hang_while_generations_come_back() -> None:
    """Somebody removed the socket: no beat comes any more, and the server is well."""
    watch = HangWatch(120, 30, 0)
    for second in range(100):
        beat(watch, second, 50, busy=second > 90)  # what it says last is that it is at work
    probes = 0
    for second in range(100, 2000):
        if watch.probe_due(second):
            probes += 1
            watch.probe_began(second)
            watch.probe_ended(second + 0.5, ok=True, detail="1 tokens")
        assert watch.verdict(second + 0.7) is None, second
        assert watch.healthy(second + 0.7) or second < 106
    assert 1900 / 60 < probes < 1900 / 25


def test_silence_of_all_is_no_hang_while_the_log_goes_on() -> None:
    watch = HangWatch(120, 30, 0)
    beat(watch, 10, 1, busy=True)
    for second in range(20, 1000, 5):
        watch.log_moved(second)
        assert watch.verdict(second) is None
        assert watch.healthy(second)
    assert "silent" in str(watch.verdict(995 + 120))


def test_silence_of_all_is_a_hang_when_generations_do_not_come_back() -> None:
    watch = HangWatch(120, 30, 0)
    beat(watch, 100, 1, busy=False)
    watch.probe_began(90)
    watch.probe_ended(91, ok=True, detail="1 tokens")
    assert not watch.probe_due(104)
    assert watch.probe_due(106)
    watch.probe_began(106)
    assert watch.verdict(219) is None
    assert not watch.healthy(219)
    assert "silent" in str(watch.verdict(220))


def test_one_rank_silent_beside_others_is_a_hang_whatever_comes_back() -> None:
    watch = HangWatch(20, 5, 0)
    beat(watch, 0, 1, busy=False, rank=1)
    for second in range(20):
        beat(watch, second, 1, busy=False)
        if watch.probe_due(second):
            watch.probe_began(second)
            watch.probe_ended(second, ok=True, detail="1 tokens")
    beat(watch, 20, 1, busy=False)
    assert "rank 1 is silent" in str(watch.verdict(20))


def test_a_paused_engine_is_no_hang_and_a_hang_after_it_is() -> None:
    watch = HangWatch(20, 5, 0)
    beat(watch, 0, 7, busy=False)
    watch.probe_began(5)
    for second in range(6, 500):  # paused while the probe was on its way: it waits
        beat(watch, second, 8, busy=False, paused=True)
        assert watch.verdict(second) is None, second
    watch.probe_ended(500, ok=False, detail="timed out")
    beat(watch, 500.5, 8, busy=False, paused=True)
    for second in range(501, 1000):
        beat(watch, second, 8, busy=False, paused=True)
        assert not watch.probe_due(second)
        assert watch.verdict(second) is None, second
        assert watch.healthy(second)
    beat(watch, 1000, 8, busy=False)
    assert watch.probe_due(1001)
    watch.probe_began(1001)
    for second in range(1002, 1017):
        beat(watch, second, 8, busy=False)
    assert "does not come back" in str(watch.verdict(1016))


def test_a_pause_that_only_the_server_knows_of() -> None:
    """Of mode `abort`: the schedulers are idle, and a generation waits in front of them."""
    watch = HangWatch(20, 5, 0)
    watch.probe_began(5)
    for second in range(5, 300):
        beat(watch, second, 8, busy=False)
        if second % 5 == 0:
            watch.paused(second)
        assert watch.verdict(second) is None, second
    watch.probe_ended(300, ok=True, detail="1 tokens")
    watch.probe_began(310)
    watch.probe_put_off(310)
    beat(watch, 330, 8, busy=False)
    assert watch.verdict(330) is None

"""Prometheus metrics made from the engine's beats, served by the launcher on ``metrics.port``.

A collector: numbers are worked out when somebody asks. The names are those of `deploy/` and docs/timing.md; SGLang's
own ``/metrics``, when it is on, carries the counters of `guarded_serve.engine.prometheus` under the same names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from guarded_serve.timing.live import Lately, Live
from guarded_serve.timing.totals import BUCKETS_MS, STAGES, Totals

PREFIX = "guarded_serve_"
WINDOW_S = 60.0


class EngineCollector(Collector):
    """Everything about the engine's cycles. ``state`` names the launcher's state, ``alarm`` whether it is raised."""

    def __init__(self, live: Live, lock: threading.Lock, state: Callable[[], str], alarm: Callable[[], bool]) -> None:
        self._live = live
        self._lock = lock
        self._state = state
        self._alarm = alarm

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client, in its server's threads."""
        with self._lock:
            newest, beats, lately = self._live.newest(), self._live.beats(), self._live.window(WINDOW_S)
        yield from _counters(newest)
        yield from _stages(newest)
        yield from _losses(beats)
        yield from _gauges(lately)
        alarm = GaugeMetricFamily(PREFIX + "drafter_alarm", "1 while the drafter costs more than it brings, too long.")
        alarm.add_metric([], float(self._alarm()))
        state = GaugeMetricFamily(PREFIX + "state", "1 for the state that the launcher is in.", labels=["state"])
        state.add_metric([self._state()], 1)
        yield from (alarm, state)


def serve(address: str, port: int, collector: Collector) -> Callable[[], None]:
    """Serve ``/metrics``; returns what stops it. Raises OSError when the port is taken."""
    registry = CollectorRegistry()
    registry.register(collector)
    server: ThreadingHTTPServer
    server, thread = start_http_server(port, addr=address, registry=registry)  # type: ignore[assignment]

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return stop


def _losses(beats: Mapping[int, Mapping[str, Any]]) -> Iterable[Metric]:
    families = (
        _counter("records_dropped", "Cycle records that never reached the disk.", "rank"),
        _counter("cycles_lost", "Cycles that could not be timed.", "rank"),
        _counter("clock_faults", "Errors of the clock, which went on.", "rank"),
    )
    for rank, beat in sorted(beats.items()):
        for family, name in zip(families, ("dropped", "lost", "faults"), strict=True):
            family.add_metric([str(rank)], float(beat.get(name, 0)))
    return families


def _gauges(lately: Iterable[Lately]) -> Iterable[Metric]:
    families = {
        "accept_length": _gauge("accept_length", "Mean tokens a request gets from a cycle, bonus included."),
        "break_even": _gauge("break_even_accept_length", "The accept length from which on the drafter pays."),
        "gain": _gauge("gain_ratio", "Tokens per second over the baseline's, less 1: below 0 it costs."),
        "tok_s": _gauge("tokens_per_second", "Of a batch, cycle after cycle."),
    }
    for entry in lately:
        for name, family in families.items():
            value = getattr(entry, name)
            if value is not None and not entry.plain:
                family.add_metric([str(entry.bs)], value)
    return families.values()


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, f"{text} Last {WINDOW_S:.0f} s, by batch size.", labels=["bs"])


def _counters(newest: Mapping[int, Totals]) -> Iterable[Metric]:
    labels = ("rank", "bs", "kind")
    cycles = _counter("cycles", "Cycles: draft, verify, extend; or plain decode steps.", *labels)
    rows = _counter("rows", "Requests verified, a cycle each, as SGLang counts them.", *labels)
    gone = _counter("rows_dropped", "Rows whose request had ended or was retracted.", *labels)
    tokens = _counter("accepted_tokens", "Tokens of the rows, bonus included.", *labels)
    time = _counter("period_seconds", "Time from a cycle's start to the next one's, idleness left out.", *labels)
    drafts = _counter("accepted_drafts", "Rows in which the draft at this position was accepted.", "rank", "position")
    prefill = _counter("prefill_tokens", "Tokens that prefills emitted.", "rank")
    for rank, totals in sorted(newest.items()):
        positions: dict[int, int] = {}
        for kind, table in (("speculative", totals.speculative), ("plain", totals.plain)):
            for bs, entry in sorted(table.items()):
                where = [str(rank), str(bs), kind]
                cycles.add_metric(where, entry.cycles)
                rows.add_metric(where, entry.rows)
                gone.add_metric(where, entry.dropped_rows)
                tokens.add_metric(where, entry.accepted)
                time.add_metric(where, entry.period_ms / 1e3)
                if kind == "speculative":
                    for position in range(1, len(entry.accept_counts) - 1):
                        accepted = sum(entry.accept_counts[position + 1 :])
                        positions[position] = positions.get(position, 0) + accepted
        for position, accepted in sorted(positions.items()):
            drafts.add_metric([str(rank), str(position)], accepted)
        prefill.add_metric([str(rank)], totals.prefill_tokens)
    return cycles, rows, gone, tokens, time, drafts, prefill


def _stages(newest: Mapping[int, Totals]) -> Iterable[Metric]:
    text = "Time of a stage of a cycle; period is from start to next start."
    family = HistogramMetricFamily(PREFIX + "stage_seconds", text, labels=["rank", "stage"])
    for rank, totals in sorted(newest.items()):
        sums = dict.fromkeys(STAGES, 0.0)
        for table in (totals.speculative, totals.plain):
            for entry in table.values():
                for stage in STAGES:
                    sums[stage] += getattr(entry, stage)
        for stage in STAGES:
            seen, buckets = 0, []
            for edge, count in zip((*BUCKETS_MS, None), totals.histograms[stage], strict=True):
                seen += count
                buckets.append(("+Inf" if edge is None else str(edge / 1e3), seen))
            family.add_metric([str(rank), stage.removesuffix("_ms")], buckets, sums[stage] / 1e3)
    return (family,)

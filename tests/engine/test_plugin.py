"""The entry point: bare without the mark, one hook with it, and a `hello` that says what took hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from guarded_serve.engine import attach, hooks
from guarded_serve.engine.hooks import APPLIED
from guarded_serve.engine.load_gate import LoadGate
from guarded_serve.engine.targets import SCHEDULER
from guarded_serve.engine_link import BUILD, ENVIRONMENT_KEY, INITIALIZE, PLUGIN_NAME, EngineSettings

BARE = """
import sys, threading
sys.modules["sglang.srt.managers.scheduler"] = sys  # as if this were a scheduler process
before = set(sys.modules)
from guarded_serve.engine.plugin import register
register()
loaded = sorted(name for name in set(sys.modules) - before if name.startswith(("guarded_serve", "torch", "sglang")))
print(loaded, threading.active_count())
"""


def test_the_entry_point_is_ours() -> None:
    (entry,) = [entry for entry in entry_points(group="sglang.srt.plugins") if entry.name == PLUGIN_NAME]
    assert entry.value == "guarded_serve.engine.plugin:register"


def test_a_process_without_the_mark_stays_bare(root: Path) -> None:
    """Nothing of ours but the entry point's own modules, no thread, and not one import of torch or SGLang."""
    done = subprocess.run(
        [sys.executable, "-c", BARE], capture_output=True, text=True, check=True, cwd=root, env={"PATH": "/usr/bin"}
    )
    modules, threads = done.stdout.rsplit(" ", 1)
    assert json.loads(modules.replace("'", '"')) == [
        "guarded_serve",
        "guarded_serve.engine",
        "guarded_serve.engine.plugin",
        "guarded_serve.engine_link",
    ]
    assert threads.strip() == "1"


def test_a_marked_process_that_is_no_scheduler_stays_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    from guarded_serve.engine import plugin  # noqa: PLC0415

    monkeypatch.setenv(ENVIRONMENT_KEY, EngineSettings("L", "/nowhere", "/nowhere").to_json())
    monkeypatch.delitem(sys.modules, plugin.SCHEDULER_MODULE, raising=False)
    monkeypatch.setattr(attach, "register", lambda text: pytest.fail("it did something"))
    plugin.register()


def test_a_broken_mark_does_not_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    attach.register("{")
    attach.register('{"launch_id": 1}')


class Registry:
    """SGLang's HookRegistry, as far as it goes: AROUND hooks, put in place by apply_hooks."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Any]] = []

    def register(self, target: str, hook: Any, hook_type: object) -> None:
        self.waiting.append((target, hook))

    def apply_hooks(self) -> None:
        import importlib  # noqa: PLC0415

        for target, hook in self.waiting:
            module, owner, method = target.rsplit(".", 2)
            cls = getattr(importlib.import_module(module), owner)
            if getattr(cls, "refuses", False):
                continue
            original = getattr(cls, method)

            def wrapper(*args: Any, _hook: Any = hook, _original: Any = original) -> Any:
                return _hook(_original, *args)

            def make(hook: Any = hook, original: Any = original) -> Any:
                def wrapped(*args: Any) -> Any:
                    return hook(original, *args)

                return wrapped

            setattr(cls, method, make())
        self.waiting.clear()


@pytest.fixture
def engine_modules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Fake modules in place of SGLang's registry and of one module with hook points."""
    registry = Registry()
    fake_registry = ModuleType("sglang.srt.plugins.hook_registry")
    fake_registry.HookRegistry = registry  # type: ignore[attr-defined]
    fake_registry.HookType = SimpleNamespace(AROUND="around")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", fake_registry)
    points = ModuleType("fake_points")

    class Worker:
        def cycle(self, value: int) -> int:
            return value + 1

    class Heir(Worker):
        pass

    class Stubborn:
        refuses = True

        def cycle(self) -> None:
            pass

    points.Worker, points.Heir, points.Stubborn = Worker, Heir, Stubborn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_points", points)
    return points


def test_install_says_for_each_hook_whether_it_took_hold(engine_modules: ModuleType) -> None:
    seen = []

    def hook(original: Any, *args: Any) -> Any:
        seen.append(args[1:])
        return original(*args)

    state = hooks.install(
        {
            "fake_points.Worker.cycle": hook,
            "fake_points.Worker.gone": hook,
            "fake_points.Nobody.cycle": hook,
            "fake_points.Heir.cycle": hook,
            "fake_points_too.Worker.cycle": hook,
            "fake_points.Stubborn.cycle": hook,
        }
    )
    assert state["fake_points.Worker.cycle"] == hooks.APPLIED
    assert state["fake_points.Worker.gone"] == "Worker has no gone of its own"
    assert state["fake_points.Nobody.cycle"] == "fake_points has no class Nobody"
    assert "does not import" in state["fake_points_too.Worker.cycle"]
    assert "did not apply" in state["fake_points.Stubborn.cycle"]
    assert state["fake_points.Heir.cycle"] == "Heir has no cycle of its own", "an inherited one would be wrapped twice"
    assert engine_modules.Worker().cycle(4) == 5
    assert seen == [(4,)]


def _scheduler(**changes: Any) -> Any:
    place = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": None, "attn_tp_rank": 0}
    arguments = SimpleNamespace(speculative_algorithm="EAGLE3", device="cpu", enable_dp_attention=False)
    return SimpleNamespace(ps=SimpleNamespace(**{**place, **changes}), server_args=arguments, model_worker=object())


@pytest.mark.parametrize(
    ("changes", "dp_attention", "rank", "first"),
    [
        ({}, False, 0, True),
        ({"tp_rank": 3, "tp_size": 8, "attn_tp_rank": 3}, False, 3, False),
        ({"dp_rank": 2, "tp_size": 4, "tp_rank": 1, "attn_tp_rank": 1}, False, 9, False),
        ({"dp_rank": 2, "tp_size": 4}, False, 8, True),
        ({"dp_rank": 1, "tp_size": 4, "tp_rank": 2, "attn_tp_rank": 0}, True, 2, True),
        ({"pp_size": 2, "pp_rank": 0, "tp_size": 2}, False, 0, False),
        ({"pp_size": 2, "pp_rank": 1, "tp_size": 2}, False, 2, True),
    ],
)
def test_ranks_are_unique_and_first_means_one_a_batch(
    changes: dict[str, Any], dp_attention: bool, rank: int, first: bool
) -> None:
    scheduler = _scheduler(**changes)
    scheduler.server_args.enable_dp_attention = dp_attention
    place = attach.placement(scheduler)
    assert (place["rank"], place["first"]) == (rank, first)


@pytest.fixture
def no_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if SGLang had no model loader: importing the real one takes half a minute."""
    monkeypatch.setattr(attach, "missing", lambda target: f"no {target} here")
    monkeypatch.setattr(attach, "install", lambda hooks: dict.fromkeys(hooks, APPLIED))


class Sent:
    """In place of `Events`."""

    rank: int | None = None

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send(self, event: str, **values: Any) -> bool:
        self.events.append({"event": event, **values})
        return True


@pytest.mark.usefixtures("no_loader")
def test_hello_names_a_worker_that_is_not_known(tmp_path: Path) -> None:
    hello, sent = _started(tmp_path, _scheduler())
    assert hello["clocked"] is False
    assert hello["hooks"]["clock"] == "no hooks are known for object"
    assert (hello["algorithm"], hello["place"]["rank"], sent.rank) == ("EAGLE3", 0, 0)


@pytest.mark.usefixtures("no_loader")
def test_hello_of_a_rank_that_keeps_no_clock(tmp_path: Path) -> None:
    hello, _ = _started(tmp_path, _scheduler(tp_rank=1, tp_size=2, attn_tp_rank=1))
    assert hello["clocked"] is False
    assert "clock" not in hello["hooks"]
    assert set(hello["hooks"]) == {BUILD, INITIALIZE, SCHEDULER["idle"], SCHEDULER["pause"]}


@pytest.mark.usefixtures("no_loader")
@pytest.mark.parametrize("changes", [{}, {"tp_rank": 1, "tp_size": 2, "attn_tp_rank": 1}, {"device": "tpu"}])
def test_a_scheduler_that_is_not_timed_has_beats(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Not known, not the first of its group, of a device without a timer: alive all the same."""
    device = changes.pop("device", "cpu")
    scheduler = _scheduler(**changes)
    scheduler.server_args.device, scheduler.forward_ct = device, 7
    _, sent = _started(tmp_path, scheduler)
    deadline = time.monotonic() + 5
    while not (beats := [event for event in sent.events if event["event"] == "beat"]):
        assert time.monotonic() < deadline, "no beat"
        time.sleep(0.02)
    assert (beats[0]["forwards"], beats[0]["busy"]) == (7, True)
    assert not [event for event in sent.events if event["event"] == "totals"], "there are no cycles to tell of"


def test_without_the_hook_for_idleness_no_scheduler_is_called_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an idle one would look like one whose forward pass does not end."""
    monkeypatch.setattr(attach, "missing", lambda target: f"no {target} here")
    monkeypatch.setattr(attach, "install", lambda hooks: dict.fromkeys(hooks, "not applied"))
    scheduler = _scheduler()
    scheduler.forward_ct = 7
    _, sent = _started(tmp_path, scheduler)
    deadline = time.monotonic() + 5
    while not (beats := [event for event in sent.events if event["event"] == "beat"]):
        assert time.monotonic() < deadline, "no beat"
        time.sleep(0.02)
    assert (beats[0]["forwards"], beats[0]["busy"]) == (7, False)


def _started(folder: Path, scheduler: Any) -> tuple[dict[str, Any], Sent]:
    sent = Sent()
    settings = EngineSettings("L", str(folder / "s"), str(folder / "c"))
    attach._start(settings, sent, scheduler, LoadGate())  # type: ignore[arg-type]
    (hello,) = [event for event in sent.events if event["event"] == "hello"]
    return hello, sent


def test_a_start_that_breaks_is_said_and_serving_goes_on(tmp_path: Path) -> None:
    sent = Sent()
    build = attach._build(EngineSettings("L", str(tmp_path / "s"), str(tmp_path / "c")), sent, LoadGate())  # type: ignore[arg-type]
    assert build(lambda scheduler, answer: answer, object(), 42) == 42
    faults = [event["message"] for event in sent.events if event["event"] == "fault"]
    assert any("did not start" in message for message in faults)


def test_a_load_is_told_only_when_it_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher takes the account for a judged load; without it, it refuses and shows why."""
    sent, gate = Sent(), LoadGate()
    gate.watches.append(object())  # type: ignore[arg-type]
    gate.facts = lambda scheduler: {}  # type: ignore[method-assign]
    assert attach._judge(sent, gate, object()) == []  # type: ignore[arg-type]
    told = {event["event"] for event in sent.events}
    assert told == {"fault"}
    assert [event.get("about") for event in sent.events] == ["load", None], "the settings are another matter"
    assert "could not be judged: KeyError" in sent.events[0]["message"]

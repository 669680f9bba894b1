"""The table of hook points against the SGLang that is installed, read from its source."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from guarded_serve.engine.targets import PLAIN_WORKER, SCHEDULER, WORKERS, worker_name
from guarded_serve.engine_link import BUILD
from guarded_serve.supervisor.launch import _DRAFTING

SGLANG = importlib.util.find_spec("sglang")
pytestmark = pytest.mark.skipif(SGLANG is None, reason="SGLang is not installed")


def _source_root() -> Path:
    assert SGLANG is not None
    assert SGLANG.submodule_search_locations is not None
    return Path(next(iter(SGLANG.submodule_search_locations)))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("sglang").split(".")[:3])


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    path = _source_root().parent / (module.replace(".", "/") + ".py")
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)}


def _function(target: str) -> ast.FunctionDef | None:
    module, owner, method = target.rsplit(".", 2)
    found = _classes(module).get(owner)
    if found is None:
        return None
    return next((node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method), None)


@pytest.mark.parametrize("worker", sorted(WORKERS))
def test_every_target_of_every_worker_exists(worker: str) -> None:
    targets = WORKERS[worker]
    if _version() < targets.since:
        pytest.skip(f"{worker} came with SGLang {'.'.join(map(str, targets.since))}")
    for role, target in targets.stages().items():
        assert _function(target) is not None, f"{role}: {target}"


def test_the_schedulers_own() -> None:
    for target in (*SCHEDULER.values(), BUILD):
        assert _function(target) is not None, target


def test_a_name_that_is_not_there_is_noticed() -> None:
    """The check above can fail."""
    assert _function(WORKERS["EAGLEWorkerV2"].cycle + "_no_more") is None


def test_every_worker_that_sglang_chooses_from_is_in_the_table() -> None:
    """Each class of SGLang's that runs speculative batches is a row, or inherits from one."""
    ours = set(WORKERS)
    unknown = []
    for path in sorted((_source_root() / "srt" / "speculative").rglob("*worker*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("Base"):
                continue
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if "forward_batch_generation" in methods and node.name not in ours:
                unknown.append(node.name)
    assert unknown == []


def test_counts_come_by_position_before_the_rows_are_counted() -> None:
    """The join relies on it: SGLang calls on_verify_complete_cpu(counts, ...) inside the processing of that result."""
    source = (_source_root() / "srt/managers/scheduler_components/batch_result_processor.py").read_text()
    called = source.index("self.model_worker.on_verify_complete_cpu(")
    assert "result.num_correct_drafts_per_req_cpu" in source[called : called + 200]
    counted = source.index("req.spec_verify_ct += 1")
    skipped = source.rindex("if req.is_retracted or req.finished():", 0, counted)
    assert called < skipped < counted


def test_the_forward_counter_travels_with_the_batch() -> None:
    """Cycles are joined to results by it, and a gap in it is a prefill or an idle pass."""
    scheduler = (_source_root() / "srt/managers/scheduler.py").read_text()
    assert "batch.forward_iter = self.forward_ct" in scheduler
    assert "forward_iter=self.forward_iter" in (_source_root() / "srt/managers/schedule_batch.py").read_text()


def test_every_event_loop_calls_itself_idle() -> None:
    """`busy` in a beat relies on it: a loop that never does would look like a forward pass that does not end."""
    loops, run = _event_loops(_source_root() / "srt")
    assert {"event_loop_normal", "event_loop_overlap"} <= set(loops)
    assert run <= set(loops), "SGLang runs a loop that was not looked at"
    assert [name for name, node in sorted(loops.items()) if not _calls(node, "on_idle")] == []


def test_a_loop_that_never_calls_itself_idle_is_noticed(tmp_path: Path) -> None:
    """The check above can fail."""
    (tmp_path / "loops.py").write_text(
        "class Scheduler:\n    def event_loop_new(self):\n        while True:\n            self.run_batch(None)\n\n"
        "def dispatch(scheduler):\n    scheduler.event_loop_new()\n    scheduler.event_loop_elsewhere()\n"
    )
    loops, run = _event_loops(tmp_path)
    assert not _calls(loops["event_loop_new"], "on_idle")
    assert run - set(loops) == {"event_loop_elsewhere"}


def test_what_the_beats_read_of_a_scheduler_is_there() -> None:
    """Its count of forward passes and whether it is paused, both from the constructor on."""
    node = _function(BUILD)
    assert node is not None
    methods = [
        item for item in _classes(BUILD.rsplit(".", 2)[0])["Scheduler"].body if isinstance(item, ast.FunctionDef)
    ]
    set_first = {
        target.attr
        for method in methods
        if method.name.startswith(("__init__", "init_"))
        for item in ast.walk(method)
        if isinstance(item, ast.Assign | ast.AnnAssign)
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Attribute)
    }
    assert {"forward_ct", "_engine_paused"} <= set_first


def _event_loops(folder: Path) -> tuple[dict[str, ast.FunctionDef], set[str]]:
    """The scheduler's event loops by name, and the names of those that something calls."""
    loops: dict[str, ast.FunctionDef] = {}
    run: set[str] = set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        if "event_loop_" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("event_loop_"):
                loops[node.name] = node
        run |= set(re.findall(r"\.(event_loop_\w+)\(\)", text))
    return loops, run


def _calls(function: ast.FunctionDef, method: str) -> bool:
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(node.func, ast.Attribute) and node.func.attr == method for node in nodes)


def test_a_worker_is_looked_up_along_its_bases() -> None:
    class EAGLEWorkerV2:
        pass

    class StandaloneWorkerV2(EAGLEWorkerV2):
        pass

    class FrozenKVMTPWorkerV2(EAGLEWorkerV2):
        pass

    class SomethingElse:
        pass

    assert worker_name(StandaloneWorkerV2()) == "EAGLEWorkerV2"
    assert worker_name(FrozenKVMTPWorkerV2()) == "FrozenKVMTPWorkerV2"
    assert worker_name(SomethingElse()) is None
    assert WORKERS[PLAIN_WORKER].counts is None


def test_the_last_pipeline_stage_alone_has_the_drafter() -> None:
    """So the launcher asks no other stage for the account of its load."""
    source = (_source_root() / "srt/speculative/eagle_worker_v2.py").read_text()
    assert re.search(r"self\._hosts_draft = .*pp_group\.is_last_rank", source)


def test_algorithms_with_a_second_model_are_sglangs() -> None:
    tree = ast.parse((_source_root() / "srt/speculative/spec_info.py").read_text())
    (names,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "SpeculativeAlgorithm"
    )
    known = {target.id for line in names.body if isinstance(line, ast.Assign) for target in line.targets}  # type: ignore[attr-defined]
    assert {"EAGLE3", "NGRAM"} <= known
    # NEXTN is SGLang's other word for EAGLE; the rest draft without a second model.
    assert set(_DRAFTING) - {"NEXTN"} == known - {"UNO", "NGRAM", "NONE"}

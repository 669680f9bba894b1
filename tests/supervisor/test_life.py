"""The life of a supervised server, over real processes: a scripted server in SGLang's place."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from guarded_serve.engine_link import ENVIRONMENT_KEY, LOAD_HOOKS, EngineSettings
from guarded_serve.facts.ports import free_port
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile
from guarded_serve.supervisor import run
from guarded_serve.supervisor.environment import server_environment
from guarded_serve.supervisor.fold import PASSED
from guarded_serve.supervisor.loop import Loop
from guarded_serve.supervisor.output import Output
from guarded_serve.supervisor.preflight import Gate
from tests.support.supervised import Supervised, alive, wait_until


def _never(_: Deployment) -> Gate:
    raise AssertionError("no start was asked for")


def ready(server: Supervised) -> None:
    server.wait_for(r"state=serving")


def test_ready_then_stop_leaves_nothing(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"shared_memory": True, "leaver": True}) as server:
        ready(server)
        assert wait_until(lambda: set(server.pids()) == {"main", "scheduler", "detokenizer", "leaver"})
        assert all(map(alive, server.pids().values()))
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.states() == ["preflight", "starting", "probing", "serving", "draining", "stopped"]
        assert server.left() == []
        assert "removed from shared memory: /dev/shm/sglang_loads_fake_" in server.text()


def test_interrupt_stops_too(tmp_path: Path) -> None:
    with Supervised(tmp_path) as server:
        ready(server)
        server.send(signal.SIGINT)
        assert server.end() == 0
        assert server.left() == []


def test_not_ready_before_the_first_generation(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"generate": "stranger"}) as server:
        server.wait_for("answer to another request")
        assert "serving" not in server.states()


def test_not_ready_without_the_marker_until_the_port_has_settled(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"never_ready": True}) as server:
        started = time.monotonic()
        server.wait_for(r"state=serving", 20)
        assert time.monotonic() - started > 8


def test_api_key_is_used_and_never_shown(tmp_path: Path) -> None:
    key = "sk-very-secret-key"
    scenario = {"say": ["server_args=ServerArgs(api_key='{api_key}')"]}
    with Supervised(tmp_path, scenario, arguments=("--api-key", key)) as server:
        ready(server)
        for pid in server.pids().values():
            assert key.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert key not in server.text()
        assert "api_key='***'" in server.text()


def test_refused_before_the_start(tmp_path: Path) -> None:
    with Supervised(tmp_path, gates=(65,)) as server:
        assert server.end() == 65
        assert server.states() == ["preflight", "refused"]
        assert server.pids() == {}
        assert "d2t holds absolute ids" in server.text()


def test_refused_inside_the_engine(tmp_path: Path) -> None:
    refusal = {"check": "drafter.unwritten", "message": "fc.weight was never written", "remedy": "train it"}
    with Supervised(tmp_path, {"refuse": refusal, "start_s": 30}) as server:
        assert server.end() == 65
        assert server.states() == ["preflight", "starting", "refused"]
        assert "fc.weight was never written" in server.text()
        assert server.left() == []


def test_refused_when_the_load_contradicts_preflight(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"loaded": {"captured_layers": [1, 3, 5]}, "start_s": 30}) as server:
        assert server.end() == 65
        assert server.states() == ["preflight", "starting", "refused"]
        assert "load.captured_layers" in server.text()
        assert server.left() == []


def test_a_load_as_foretold_serves(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"loaded": {"captured_layers": [2, 4, 6]}}) as server:
        ready(server)


def test_refused_when_a_hook_is_missing(tmp_path: Path) -> None:
    profile = {"timing": {"directory": str(tmp_path)}}
    with Supervised(tmp_path, {"hooks": {"EagleDraftWorker.draft": "no such name"}}, profile) as server:
        assert server.end() == 65
        assert "EagleDraftWorker.draft: no such name" in server.text()
        assert "serving" not in server.states()


def test_a_missing_hook_is_a_warning_where_no_cycle_log_is_asked_for(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"hooks": {"EagleDraftWorker.draft": "no such name"}}) as server:
        ready(server)
        assert "EagleDraftWorker.draft: no such name; no cycle is timed" in server.text()


def test_refused_without_hello(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"hello": False}) as server:
        assert server.end(30) == 65
        assert "plugin never reported" in server.text()


DRAFTER = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/drafter"}


@pytest.mark.parametrize("target", LOAD_HOOKS)
@pytest.mark.parametrize("algorithm", ["EAGLE3", "eagle3", "FROZEN_KV_MTP"])
def test_refused_when_the_load_of_a_drafter_cannot_be_judged(tmp_path: Path, target: str, algorithm: str) -> None:
    drafting = {**DRAFTER, "speculative_algorithm": algorithm}  # SGLang takes any case
    with Supervised(tmp_path, {"hooks": {target: "no such name"}}, server=drafting) as server:
        assert server.end() == 65
        assert f"the load of the drafter is not judged: {target}: no such name" in server.text()
        assert "serving" not in server.states()


def test_refused_when_nothing_is_told_of_the_load_of_a_drafter(tmp_path: Path) -> None:
    fault = "the load could not be judged: AttributeError: is_draft_model"
    with Supervised(tmp_path, {"fault": fault}, server=DRAFTER) as server:
        assert server.end() == 65
        assert "no scheduler told what it made of the drafter's files" in server.text()
        assert f'found="{fault}"' in server.text()
        assert "serving" not in server.states()


@pytest.mark.parametrize(
    ("loaded", "deployment"),
    [
        ({"captured_layers": [2, 4, 6]}, DRAFTER),
        (None, {"speculative_algorithm": "NEXTN"}),  # inside the target
        (None, {"speculative_algorithm": "NGRAM", "speculative_draft_model_path": "/unused"}),
    ],
)
def test_a_load_that_was_told_or_is_no_second_model_s(
    tmp_path: Path, loaded: dict[str, object] | None, deployment: dict[str, str]
) -> None:
    with Supervised(tmp_path, {"loaded": loaded}, server=deployment) as server:
        ready(server)


def test_a_stage_without_the_drafter_has_nothing_to_tell_of_its_load(tmp_path: Path) -> None:
    """SGLang builds the drafter on the last pipeline stage, here another node's."""
    elsewhere = {"account": False, "place": {"pp_rank": 0, "pp_size": 2}}
    arguments = ("--speculative-draft-model-path", "/drafter")
    with Supervised(tmp_path, elsewhere, server=DRAFTER, arguments=arguments) as server:
        ready(server)


def test_without_the_builder_hook_there_is_no_cycle_log(tmp_path: Path) -> None:
    profile = {"timing": {"directory": str(tmp_path)}}
    with Supervised(tmp_path, {"hooks": {LOAD_HOOKS[0]: "no such name"}}, profile) as server:  # no drafter at all
        assert server.end() == 65
        assert f"did not take hold in SGLang: {LOAD_HOOKS[0]}: no such name" in server.text()


def test_a_load_that_was_not_watched_is_said(tmp_path: Path) -> None:
    loaded = {"drafters": [{"class": "LlamaForCausalLMEagle3", "loaded": False}]}
    with Supervised(tmp_path, {"loaded": loaded}, server=DRAFTER) as server:
        ready(server)
        assert "the load of LlamaForCausalLMEagle3 passed `load_weights` by" in server.text()


def test_a_missing_load_hook_is_no_matter_of_the_cycle_log(tmp_path: Path) -> None:
    profile = {"timing": {"directory": str(tmp_path)}}
    with Supervised(tmp_path, {"hooks": {LOAD_HOOKS[1]: "no such name"}}, profile) as server:  # no drafter at all
        ready(server)


def test_an_encoder_has_no_scheduler_to_report_and_is_ready(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"hello": False, "beats": False}, server={"encoder_only": True}) as server:
        ready(server)


def test_what_is_in_force_and_what_is_dropped_is_said_once(tmp_path: Path) -> None:
    scenario = {
        "settings": {"max_running_requests": 48, "draft_attention_backend": None},
        "beat": {"problem": "/logs/cycles: No space left on device", "dropped": 17, "lost": 3},
    }
    with Supervised(tmp_path, scenario) as server:
        ready(server)
        server.wait_for("17 more cycles are not in the records", 15)
        text = server.text()
        assert "in force in the engine: max_running_requests 48" in text
        assert text.count("the cycle log of rank 0: /logs/cycles: No space left on device") == 1
        assert "3 more cycles could not be timed" in text


def test_a_probe_that_passes(tmp_path: Path) -> None:
    with Supervised(tmp_path, probe={"seconds": 0.5}) as server:
        ready(server)
        assert "accept length 2.40" in server.text()


def test_a_probe_that_fails_refuses(tmp_path: Path) -> None:
    with Supervised(tmp_path, probe={"error": True}) as server:
        assert server.end() == 65
        assert server.states() == ["preflight", "starting", "probing", "refused"]
        assert "accept length 1.02 on 8 prompts" in server.text()
        assert server.left() == []


def test_a_probe_without_an_answer_is_a_failure_of_the_server(tmp_path: Path) -> None:
    profile = {"supervise": {"restarts": 1}, "probe": {"on_failure": "warn"}}
    with Supervised(tmp_path, profile=profile, probe={"no_answer": True}) as server:
        assert server.end() == 69
        assert server.states() == ["preflight", "starting", "probing", "failed"] * 2
        assert "cause=probe" in server.text()
        folders = list((tmp_path / "state/guarded-serve/crashes").iterdir())
        assert {folder.name.split("-")[1] for folder in folders} == {"probe"}
        assert all(list(folder.glob("stack-scheduler-*")) for folder in folders)
        assert server.left() == []


def test_a_probe_that_fails_and_a_server_without_drafter(tmp_path: Path) -> None:
    with Supervised(tmp_path, probe={"error": True, "instead": True}) as server:
        ready(server)
        first = ["preflight", "starting", "probing", "refused"]
        assert server.states() == [*first, "preflight", "starting", "probing", "serving"]
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_sigterm_while_it_is_probed(tmp_path: Path) -> None:
    with Supervised(tmp_path, probe={"seconds": 30}) as server:
        server.wait_for("state=probing")
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.states()[-2:] == ["draining", "stopped"]
        assert server.left() == []


def test_start_deadline(tmp_path: Path) -> None:
    profile = {"supervise": {"start_deadline_s": 1.0}}
    with Supervised(tmp_path, {"start_s": 60, "say": ["loading shard 1"]}, profile) as server:
        assert server.end() == 69
        assert server.states() == ["preflight", "starting", "failed"]
        assert "not ready within 1 s" in server.text()
        assert "| loading shard 1" in server.text()
        assert server.left() == []


def test_crash_at_the_start(tmp_path: Path) -> None:
    words = ["Traceback (most recent call last):", "RuntimeError: head size 80 is not supported"]
    with Supervised(tmp_path, {"exit_at_start": 1, "last_words": words}) as server:
        assert server.end() == 69
        assert "RuntimeError: head size 80 is not supported (exit status 1)" in server.text()


@pytest.mark.parametrize("status", [0, 1])
def test_an_exit_that_nobody_asked_for_is_a_failure(tmp_path: Path, status: int) -> None:
    with Supervised(tmp_path, {"exit_after_s": 3.0, "exit_status": status, "last_words": ["so long"]}) as server:
        assert server.end() == 69
        assert server.states()[-2:] == ["serving", "failed"]
        assert f"exit status {status}" in server.text()
        assert "| so long" in server.text()
        assert server.left() == []


@pytest.mark.parametrize("role", ["main", "scheduler", "detokenizer"])
def test_a_killed_process_is_noticed_at_once(tmp_path: Path, role: str) -> None:
    with Supervised(tmp_path) as server:
        ready(server)
        assert wait_until(lambda: role in server.pids())
        killed = time.monotonic()
        os.kill(server.pids()[role], signal.SIGKILL)
        server.wait_for("state=failed", 2.0)
        assert time.monotonic() - killed < 2.0
        assert server.end() == 69
        assert server.left() == []


def test_sigterm_ignored(tmp_path: Path) -> None:
    profile = {"supervise": {"drain_s": 1.0}}
    with Supervised(tmp_path, {"ignore_sigterm": True, "children_ignore_sigterm": True}, profile) as server:
        ready(server)
        asked = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert 0.9 < time.monotonic() - asked < 4
        assert server.left() == []


def test_a_main_process_that_outlives_its_schedulers_in_a_drain_is_waited_for(tmp_path: Path) -> None:
    """SGLang ends its schedulers first, then takes its time: killing it then would cut a release of memory short."""
    with Supervised(tmp_path, {"linger_s": 3.0}) as server:
        ready(server)
        asked = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - asked > 3
        assert "lingered" in server.text()


def test_second_signal_hurries(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"drain_s": 60}) as server:
        ready(server)
        server.send(signal.SIGTERM)
        server.wait_for("state=draining")
        server.send(signal.SIGTERM)
        assert server.end(5) == 0
        assert server.left() == []


def test_sigterm_while_the_gates_run(tmp_path: Path) -> None:
    with Supervised(tmp_path, gate_s=30) as server:
        server.wait_for("state=preflight")
        server.send(signal.SIGTERM)
        assert server.end(3) == 0
        assert server.states() == ["preflight", "stopped"]


@pytest.mark.parametrize("ignored", [False, True])
def test_sigterm_while_starting(tmp_path: Path, ignored: bool) -> None:
    profile = {"supervise": {"drain_s": 1.0}}
    with Supervised(tmp_path, {"start_s": 60, "ignore_sigterm": ignored}, profile) as server:
        server.wait_for("state=starting")
        assert wait_until(lambda: "detokenizer" in server.pids())
        server.send(signal.SIGTERM)
        assert server.end(6) == 0
        assert server.states() == ["preflight", "starting", "draining", "stopped"]
        assert server.left() == []


def test_sigterm_before_the_server_has_a_process(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"start_s": 60, "ignore_sigterm": True}, sentinel_s=2.0) as server:
        server.wait_for("state=starting")
        server.send(signal.SIGTERM)
        assert server.end(8) == 0  # and not after the ten seconds that a start has to end
        assert "killing it" not in server.text()
        assert server.states() == ["preflight", "starting", "draining", "stopped"]
        assert server.left() == []


@pytest.mark.parametrize("at", ["starting", "serving"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, at: str) -> None:
    scenario = {
        "leaver": True,
        "shared_memory": True,
        "children_outlive": True,
        "children_ignore_sigterm": True,
        "ignore_sigterm": True,
        "start_s": 60 if at == "starting" else 0.2,
    }
    with Supervised(tmp_path, scenario) as server:
        server.wait_for(f"state={at}")
        assert wait_until(lambda: len(server.pids()) == 4)
        server.send(signal.SIGKILL)
        server.end()
        assert wait_until(lambda: server.left() == [], 10), server.left()


def test_nothing_outlives_a_killed_sentinel(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"leaver": True, "children_outlive": True}) as server:
        pid = int(server.wait_for(r"state=starting pid=\d+").rpartition("=")[2])
        ready(server)
        os.kill(pid, signal.SIGKILL)
        assert server.end() == 69
        assert server.left() == []


def test_children_that_outlive_main_are_ended(tmp_path: Path) -> None:
    scenario = {"children_outlive": True, "children_ignore_sigterm": True, "exit_after_s": 0.5}
    with Supervised(tmp_path, scenario) as server:
        assert server.end() == 69
        assert server.left() == []


def test_the_log_keeps_its_order_and_text(tmp_path: Path) -> None:
    lines = [f"  line {number}\twith  spaces and \x1b[31mcolour\x1b[0m" for number in range(50)]
    with Supervised(tmp_path, {"say": lines, "partial_line": "no end of line"}) as server:
        ready(server)
        server.send(signal.SIGTERM)
        assert server.end() == 0
        kept = [line for line in server.text().splitlines() if line.startswith("  line")]
        assert kept == lines
        assert "\nno end of line\n" in server.text()


def test_event_socket_gone(tmp_path: Path) -> None:
    """No beat comes any more; generations do, so it is well. Longer than hang_s."""
    quick = {"supervise": {"hang_s": 4.0, "probe_interval_s": 1.0}}
    with Supervised(tmp_path, profile=quick) as server:
        ready(server)
        removed = [path.unlink() for path in server.run_base.glob("*/events.sock")]
        assert len(removed) == 1
        time.sleep(7)
        assert server.process.poll() is None
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_a_reader_that_goes_away_does_not_end_the_server(tmp_path: Path) -> None:
    read, write = os.pipe()
    with Supervised(tmp_path, {"flood": 100000}, stdout=write) as server:
        os.close(write)
        got = b""
        while b"state=serving" not in got:
            got += os.read(read, 65536)
        os.close(read)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert server.left() == []


def test_a_reader_that_stops_reading_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    read, write = os.pipe()
    with Supervised(tmp_path, {"flood": 400000}, {"supervise": {"drain_s": 1.0}}, stdout=write) as server:
        os.close(write)
        assert wait_until(lambda: "detokenizer" in server.pids())
        time.sleep(1.0)
        server.send(signal.SIGTERM)
        assert server.end(8) == 0
        assert server.left() == []
        os.close(read)


def test_a_flood_of_lines_is_passed_on_fast(tmp_path: Path) -> None:
    lines = 200_000
    with Supervised(tmp_path, {"flood_before": lines}) as server:
        server.wait_for(r"state=serving", 60)
        used = psutil.Process(server.process.pid).cpu_times()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert used.user + used.system < 8, "processor time, which a busy machine does not lengthen"
        numbers = [int(number) for number in re.findall(r"^flood line (\d+)$", server.text(), re.MULTILINE)]
        folded = sum(int(number) for number in re.findall(r"folded=(\d+)", server.text()))
        assert len(numbers) + folded == lines
        assert numbers == sorted(numbers)
        assert numbers[:100] == list(range(100))
        assert len(numbers) < 2000


def test_slow_lines_of_one_template_are_no_flood_and_floods_later_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "WINDOW_S", 0.5)
    path = tmp_path / "out"
    deployment = Deployment(profile=Profile(), profile_path=None, server={}, defaults={}, arguments=(), environment={})
    with Loop() as loop, path.open("wb") as file:
        supervisor = run.Supervisor(loop, deployment, _never, run.Options(), Output(loop, file.fileno()))

        def say(number: int) -> None:
            if number == 15:
                loop.stop()
                return
            # 40 lines of one template each 0.1 s are far below 200 in half a second; and 300 templates of words
            words = [f"word {chr(97 + number)}{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(300)]
            block = [*(f"Decode batch {number}.{line}" for line in range(30)), *words]
            supervisor._on_lines("".join(f"{line}\n" for line in block).encode())
            loop.call_later(0.1, lambda: say(number + 1))

        say(0)
        loop.run()
        assert path.read_text().count("Decode batch") == 15 * 30
        supervisor._on_lines("".join(f"flood {line}\n" for line in range(1000)).encode())
        assert path.read_text().count("flood ") == PASSED


def test_json_lines(tmp_path: Path) -> None:
    with Supervised(tmp_path, {"say": ["a line"]}, log_format="json") as server:
        server.wait_for('"state": "serving"')
        server.send(signal.SIGTERM)
        assert server.end() == 0
        parsed = [json.loads(line) for line in server.text().splitlines()]
        assert any(line["from"] == "server" and line["text"] == "a line" for line in parsed)
        assert [line["state"] for line in parsed if "state" in line][-1] == "stopped"


@pytest.mark.parametrize(("host", "elsewhere"), [(None, False), ("0.0.0.0", True)])
def test_metrics_are_this_machines_own_unless_the_profile_says_otherwise(
    tmp_path: Path, host: str | None, elsewhere: bool
) -> None:
    port = free_port()
    metrics = {"port": port} if host is None else {"port": port, "host": host}
    with Supervised(tmp_path, profile={"metrics": metrics}) as server:
        ready(server)
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        assert 'guarded_serve_state{state="serving"} 1.0' in text
        with socket.socket() as other:  # any address of 127.0.0.0/8 is this machine's, so it stands for another one
            other.settimeout(5)
            assert (other.connect_ex(("127.0.0.2", port)) == 0) is elsewhere


def test_status_line_under_traffic(tmp_path: Path) -> None:
    profile = {"break_even": {"baseline_tok_s": {1: 120.0}}}
    with Supervised(tmp_path, {"cycles_per_s": 3, "running": 1}, profile) as server:
        ready(server)
        server.wait_for("bs 1, .*break-even", 13)
        line = server.wait_for(r"bs 1, \d+ cycles, cycle 10\.00 ms.*")
        # 2, 6 and 1 ms of 9; 3 tokens every 10 ms; break-even = 10 ms * 120 tok/s
        assert "draft/verify/extend 22/67/11 %, accept length 3.00, 300.0 tok/s" in line
        assert "break-even 1.20, gain +150%" in line


def test_the_server_gets_the_launchers_environment_less_what_systemd_meant_for_the_launcher() -> None:
    deployment = Deployment(
        profile=Profile(),
        profile_path=None,
        server={},
        defaults={},
        arguments=(),
        environment={"NCCL_DEBUG": Setting("WARN", "profile")},
    )
    settings = EngineSettings(launch_id="1", socket="/s", control="/c")
    made = server_environment({"HOME": "/h", "NOTIFY_SOCKET": "/n", "NCCL_DEBUG": "INFO"}, deployment, settings)
    assert made["HOME"] == "/h"
    assert made["NCCL_DEBUG"] == "WARN"
    assert "NOTIFY_SOCKET" not in made
    assert EngineSettings.from_json(made[ENVIRONMENT_KEY]) == settings
    assert "SGLANG_PLUGINS" not in made
    made = server_environment({"SGLANG_PLUGINS": "mine"}, deployment, settings)
    assert made["SGLANG_PLUGINS"] == "mine,guarded_serve"


def test_processes_of_the_server_are_in_a_session_of_their_own(tmp_path: Path) -> None:
    with Supervised(tmp_path) as server:
        ready(server)
        assert os.getsid(server.pids()["main"]) == server.pids()["main"]
        assert os.getsid(server.process.pid) != os.getsid(server.pids()["scheduler"])
        # a Ctrl-C at the terminal reaches the launcher's group alone
        assert os.getpgid(server.pids()["main"]) != os.getpgid(server.process.pid)

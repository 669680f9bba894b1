"""A scripted stand-in for `sglang.launch_server`, with real processes, a real port and the guard's real events.

Runs as ``python fake_server.py SCENARIO_JSON [SGLang flags]``. Like SGLang it has a main process that serves HTTP, and
children titled ``sglang::scheduler`` and ``sglang::detokenizer``; the scheduler greets the launcher and sends beats.
The scenario's keys are the fields of `Scenario`. While it runs, a file of commands (``control``) can change it.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from guarded_serve.timing.record import Cycle
from guarded_serve.timing.totals import Totals

FIRED_UP = "The server is fired up and ready to roll!"


@dataclass
class Scenario:
    """What to do, and when, in seconds."""

    start_s: float = 0.2  # from the start to the open port
    say: list[str] = field(default_factory=list)  # lines before the port opens
    flood: int = 0  # so many numbered lines after the start
    flood_before: int = 0
    exit_at_start: int | None = None  # with this status, instead of opening the port
    exit_after_s: float | None = None  # so long after the start
    exit_status: int = 1
    last_words: list[str] = field(default_factory=list)  # lines before it exits
    ignore_sigterm: bool = False
    drain_s: float = 0.0  # what SIGTERM takes
    linger_s: float = 0.0  # what main does after its children have ended in order
    hello: bool = True
    hooks: dict[str, str] = field(default_factory=lambda: {"draft": "applied"})
    place: dict[str, int] = field(default_factory=dict)  # of the scheduler among the ranks
    refuse: dict[str, str] | None = None  # a `refused` event as the drafter loads
    loaded: dict[str, Any] | None = None  # the `drafter-loaded` event; comes with a drafter on the command line too
    account: bool = True  # that event comes at all
    settings: dict[str, Any] | None = None  # the `settings` event
    fault: str = ""  # a `fault` event
    beat: dict[str, Any] = field(default_factory=dict)  # more of each beat
    beats: bool = True
    beat_s: float = 0.2
    generate: str = "ok"  # "ok", "stranger" (another request's answer), "error", "silent"
    pause_after: int | None = None  # from the so-many-th generation on it is paused, as by /pause_generation
    never_ready: bool = False
    leaver: bool = False  # a grandchild leaves the session and forgets its parent
    children_ignore_sigterm: bool = False
    shared_memory: bool = False  # the scheduler maps a file under /dev/shm and leaves it there
    children_outlive: bool = False  # the children do not care when main ends
    pid_file: str = ""  # lines of ROLE PID
    running: int = 0  # what the beats say of running requests
    cycles_per_s: int = 0
    partial_line: str = ""  # written without an end of line, at the end
    eat_memory: bool = False  # the scheduler, once it has greeted
    connections: str = ""  # file that counts generations
    access_log: bool = False  # lines for each generation, as SGLang and its HTTP server write them
    accept: dict[str, list[int]] = field(default_factory=dict)  # by a drafter's folder name: right drafts, as SGLang's
    # histogram counts them; "" for a server without drafter, which counts none
    ms_per_token: dict[str, float] = field(default_factory=dict)  # likewise
    die_at: int | None = None  # at the so-many-th streamed generation
    dies_plain_only: bool = False  # only where there is no drafter


def main() -> None:
    scenario = Scenario(**json.loads(sys.argv[1]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--api-key")
    parser.add_argument("--speculative-draft-model-path", default="")
    parser.add_argument("--config")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-keyfile")
    options, _ = parser.parse_known_args(sys.argv[2:])
    if options.config:  # as SGLang: below the command line
        options.api_key = options.api_key or yaml.safe_load(Path(options.config).read_text()).get("api-key")
    if role := os.environ.get("FAKE_ROLE"):
        _child(scenario, role, options.speculative_draft_model_path)
    else:
        _main(scenario, options)


def _main(scenario: Scenario, options: argparse.Namespace) -> None:
    _register(scenario, "main")
    stopping = threading.Event()
    if scenario.ignore_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM ignored", flush=True))
    else:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    for line in scenario.say:
        print(line.replace("{api_key}", options.api_key or ""), flush=True)
    _flood(scenario.flood_before)
    if scenario.exit_at_start is not None:
        _exit(scenario, scenario.exit_at_start)
    children = [_spawn("scheduler"), _spawn("detokenizer")]
    signal.signal(signal.SIGQUIT, lambda *_: _kill_all(children))  # as SGLang does when a child fails
    _nap(scenario.start_s, stopping)
    if not stopping.is_set():
        server = ThreadingHTTPServer(
            (options.host, options.port),
            _handler(scenario, options.api_key, Path(options.speculative_draft_model_path).name),
        )
        if options.ssl_certfile:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if not scenario.never_ready:
            print(FIRED_UP, flush=True)
        _flood(scenario.flood)
    end = time.monotonic() + scenario.exit_after_s if scenario.exit_after_s is not None else None
    while not stopping.is_set():
        if end is not None and time.monotonic() >= end:
            if not scenario.children_outlive:
                _end(children)
            _exit(scenario, scenario.exit_status)
        if any(child.poll() is not None for child in children) and not scenario.children_outlive:
            time.sleep(5)  # as SGLang does before it dies of a lost child
            _kill_all(children)
        stopping.wait(0.05)
    print("SIGTERM received: draining", flush=True)
    time.sleep(scenario.drain_s)
    if not scenario.children_outlive:
        _end(children)
    if scenario.linger_s:
        time.sleep(scenario.linger_s)
        print("lingered", flush=True)
    sys.stdout.write(scenario.partial_line)
    sys.stdout.flush()
    os._exit(0)


def _child(scenario: Scenario, role: str, drafter: str) -> None:
    _register(scenario, role)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if scenario.children_ignore_sigterm else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mapped = None
    if role == "scheduler":
        if scenario.shared_memory:
            mapped = _map(f"/dev/shm/sglang_loads_fake_{os.getpid()}x.shm")
        if scenario.leaver:
            _leave(scenario)
        if scenario.refuse is not None:
            _tell("refused", **scenario.refuse)
        if scenario.loaded is not None or (drafter and scenario.account):
            _tell("drafter-loaded", **(scenario.loaded or {"map": {}}))
        if scenario.settings is not None:
            _tell("settings", **scenario.settings)
        if scenario.fault:
            _tell("fault", faults=1, message=scenario.fault, about="load")
        if scenario.hello:  # last, as in the engine
            _tell("hello", role="scheduler", sglang="0.0", hooks=scenario.hooks, place=scenario.place)
    cycles = 0
    eaten: list[bytes] = []
    while True:
        if scenario.eat_memory and role == "scheduler" and cycles > 5:
            eaten.append(os.urandom(1 << 20) * 16)
        time.sleep(scenario.beat_s if scenario.beats and role == "scheduler" else 3600)
        cycles += scenario.cycles_per_s
        _tell("beat", **{"dropped": 0, **scenario.beat}, busy=scenario.running > 0, paused=False, forwards=cycles)
        _tell("totals", totals=_totals(cycles, scenario.running), left=0)
        if not scenario.children_outlive and os.getppid() == 1:
            os._exit(0)
        assert mapped is None or mapped


def _totals(cycles: int, running: int) -> dict[str, object]:
    totals = Totals()
    for number in range(cycles):
        totals.add(Cycle(time.time(), 0, number, 1, 3, 4, 2.0, 6.0, 1.0, 9.0, 10.0, [3], "cpu-clock"))
    totals.running = running
    return totals.to_mapping()


def _spawn(role: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [f"sglang::{role}", __file__, *sys.argv[1:]],
        executable=sys.executable,
        env={**os.environ, "FAKE_ROLE": role},
    )


def _leave(scenario: Scenario) -> None:
    """Start a process that is nobody's child and in a session of its own, as a daemon would be."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _register(scenario, "leaver")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            while True:
                time.sleep(3600)
        os._exit(0)
    os.wait()


def _map(path: str) -> object:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, 4096)
    return mmap.mmap(descriptor, 4096)


def _tell(event: str, **content: object) -> None:
    text = os.environ.get("GUARDED_SERVE_ENGINE")
    if not text:
        return
    message = {"event": event, "t": time.time(), "pid": os.getpid(), "rank": 0, **content}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link:
        try:
            link.sendto(json.dumps(message).encode(), json.loads(text)["socket"])
        except OSError:
            pass  # as the plugin: never fatal


def _register(scenario: Scenario, role: str) -> None:
    if scenario.pid_file:
        with Path(scenario.pid_file).open("a", encoding="utf-8") as file:
            file.write(f"{role} {os.getpid()}\n")


def _flood(lines: int) -> None:
    sys.stdout.flush()
    for start in range(0, lines, 1000):
        data = "".join(f"flood line {number}\n" for number in range(start, min(start + 1000, lines))).encode()
        while data:  # Python's own text stream loses the rest of a write that a signal interrupts
            data = data[os.write(1, data) :]


def _nap(seconds: float, stopping: threading.Event) -> None:
    stopping.wait(seconds)


def _exit(scenario: Scenario, status: int) -> None:
    for line in scenario.last_words:
        print(line, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            pass


def _kill_all(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _handler(scenario: Scenario, api_key: str | None, drafter: str = "") -> type[BaseHTTPRequestHandler]:
    streamed = itertools.count(1)
    generations = itertools.count(1)
    paused = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(503 if paused.is_set() and self.path == "/ready" else 200, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if scenario.connections:
                with Path(scenario.connections).open("a", encoding="utf-8") as file:
                    file.write("generation\n")
            number = next(generations)
            if scenario.access_log:
                print(f"[2026-12-02 06:34:30] Decode batch, #running-req: 1, #token: {number}", flush=True)
                print(f'INFO:     127.0.0.1:{20000 + number} - "POST {self.path} HTTP/1.1" 200 OK', flush=True)
            if number == scenario.pause_after:
                paused.set()
            if paused.is_set():
                time.sleep(3600)
            if api_key and self.headers.get("Authorization") != f"Bearer {api_key}":
                self._answer(401, {"error": "Unauthorized"})
            elif scenario.generate == "silent":
                time.sleep(3600)
            elif scenario.generate == "error":
                self._answer(500, {"error": "no"})
            else:
                if self.path == "/v1/tokenize":
                    self._answer(200, {"tokens": [1, 2, 3]})
                    return
                if body.get("stream"):
                    if next(streamed) == scenario.die_at and not (drafter and scenario.dies_plain_only):
                        os._exit(1)
                    self._stream(body)
                    return
                own = "somebody-else" if scenario.generate == "stranger" else body["rid"]
                self._answer(200, {"text": " a", "meta_info": {"id": own, "completion_tokens": 2}})

        def _stream(self, body: dict[str, Any]) -> None:
            """A token, then the rest after the time that it takes."""
            tokens = body["sampling_params"]["max_new_tokens"]
            histogram = scenario.accept.get(drafter, [])
            self.send_response(200)
            self.end_headers()
            for done in (1, tokens):
                if done > 1:
                    time.sleep(scenario.ms_per_token.get(drafter, 1.0) * (tokens - 1) / 1e3)
                meta: dict[str, object] = {"id": body["rid"], "completion_tokens": done}
                if done == tokens and histogram:
                    # As SGLang: one verification emits the right drafts and the bonus; scaled to this answer's length.
                    cycles = round(tokens * sum(histogram) / sum((i + 1) * n for i, n in enumerate(histogram)))
                    scaled = [round(cycles * n / sum(histogram)) for n in histogram]
                    meta |= {"spec_verify_ct": sum(scaled), "spec_correct_drafts_histogram": scaled}
                chunk = json.dumps({"text": "a" * done, "meta_info": meta})
                self.wfile.write(f"data: {chunk}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def _answer(self, status: int, content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as SGLang is
    main()

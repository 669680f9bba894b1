"""What the sentinel gives and leaves to the server, and what it removes after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.model import Profile
from guarded_serve.supervisor import sentinel
from guarded_serve.supervisor.child import Callbacks, Child
from guarded_serve.supervisor.launch import Launch, Told
from guarded_serve.supervisor.loop import Loop

_LIST = """
import os
for number in range(3, 100):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}"))
    except OSError:
        pass
print("end")
"""


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def run_child(loop: Loop, folder: Path, *command: str, before: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """Its output, and what was removed after it."""
    output: list[bytes] = []
    removed: list[list[str]] = []

    def gone(paths: list[str]) -> None:
        removed.append(paths)
        loop.stop()

    child = Child(loop, command, os.environ, folder, Callbacks(output.append, lambda _: None, gone))
    loop.call_later(20, loop.stop)
    loop.run()
    child.close()
    return b"".join(output).decode(), removed[0]


def test_the_server_gets_none_of_the_sentinels_descriptors(loop: Loop, tmp_path: Path) -> None:
    said, _ = run_child(loop, tmp_path, sys.executable, "-c", _LIST)
    assert "socket" not in said
    assert "pipe" not in said
    assert "end" in said


def leaving(mark: str) -> str:
    """Code that leaves shared memory named after its process; ``mark`` tells it from that of other tests."""
    return f"import os; open(f'/dev/shm/nccl-{{os.getpid()}}-test{mark}', 'w')"


def test_what_is_named_after_its_processes_is_removed(loop: Loop, tmp_path: Path) -> None:
    if not sentinel.in_first_pid_namespace():
        pytest.skip("not in the machine's own PID namespace")
    _, (removed,) = run_child(loop, tmp_path, sys.executable, "-c", leaving(uuid4().hex))
    assert removed.startswith("/dev/shm/nccl-")
    assert not Path(removed).exists()


_MAPS = """
import mmap, os, signal, sys, time

def hold(path):
    with open(path, "w+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)

def on_sigterm(*_):
    if {late!r}:
        late = hold({late!r})
        time.sleep(0.6)
    os._exit(0)

signal.signal(signal.SIGTERM, on_sigterm)
early = hold({early!r})
print("holding", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("late", [False, True], ids=["gone at once", "still starting"])
def test_what_it_holds_when_asked_to_end_is_removed(loop: Loop, tmp_path: Path, *, late: bool) -> None:
    """A name that tells nothing of its maker (SGLang's `sglang_loads_*`) is known only while it is mapped."""
    paths = [f"/dev/shm/test-{uuid4().hex}" for _ in range(1 + late)]
    code = _MAPS.format(early=paths[0], late=paths[-1] if late else "")
    removed: list[list[str]] = []

    def gone(found: list[str]) -> None:
        removed.append(found)
        loop.stop()

    child = Child(
        loop, (sys.executable, "-c", code), os.environ, tmp_path, Callbacks(lambda _: child.terminate(), print, gone)
    )
    loop.call_later(20, loop.stop)
    loop.run()
    child.close()
    left = [path for path in paths if Path(path).exists()]
    for path in left:
        Path(path).unlink()
    assert left == []
    assert sorted(*removed) == sorted(paths)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_another_containers_shared_memory_stays(tmp_path: Path) -> None:
    """Process ids of two PID namespaces are the same numbers; with `ipc: host` both see one /dev/shm."""
    mark = uuid4().hex
    code = (
        "import sys, pathlib\n"
        "from tests.supervisor.test_sentinel import *\n"
        "with Loop() as loop:\n"
        f"    print(run_child(loop, pathlib.Path({str(tmp_path)!r}), sys.executable, '-c', leaving({mark!r}))[1])\n"
    )
    before = sentinel.shared_memory()
    done = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    left = {path for path in sentinel.shared_memory() - before if path.endswith(mark)}
    for path in left:
        Path(path).unlink()
    assert done.stdout.strip() == "[]"
    assert len(left) == 1


def test_a_start_that_fails_leaves_nothing_behind(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("guarded_serve.supervisor.run_folder._base", lambda: str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", fail)
    deployment = Deployment(
        profile=Profile(),
        profile_path=None,
        server={"api_key": Setting("secret", "test")},
        defaults={},
        arguments=("--api-key", "secret"),
    )
    told: Any = Told(**dict.fromkeys(Told.__dataclass_fields__, lambda *_: None))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Launch(loop, deployment, ("server",), told)
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before

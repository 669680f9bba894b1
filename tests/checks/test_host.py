"""The host checks on plain facts: each has a right and a wrong case."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guarded_serve import cli
from guarded_serve.checks.host import CHECKS
from guarded_serve.checks.runner import run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.host import (
    Clock,
    DeviceNode,
    Disk,
    HostFacts,
    Iommu,
    Limit,
    gather_host,
    read_disk,
    read_iommu,
    read_nodes,
)
from guarded_serve.facts.memory import SystemMemory
from guarded_serve.facts.shm import Segment, SharedMemory
from guarded_serve.findings import Outcome, Status
from guarded_serve.profile.deployment import Setting
from guarded_serve.profile.model import Profile
from tests.support.gpu_deployments import deployment

MIB, GIB = 2**20, 2**30
WELL = HostFacts(
    shared_memory=SharedMemory(64 * GIB, 64 * GIB),
    files=Limit(1024, 1048576),
    memory=SystemMemory(total=512 * GIB, available=500 * GIB),
    disks=(Disk("the cycle log", "/var/log/x", "/var/log", 100 * GIB, 10 * GIB, writable=True),),
    clock=Clock(1_790_000_000.0, synchronised=True),
    nodes=(DeviceNode("/dev/nvidia0", allowed=True), DeviceNode("/dev/nvidiactl", allowed=True)),
    py_spy="/usr/bin/py-spy",
    root=True,
)


def _outcome(name: str, server: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    (check,) = (one for one in CHECKS if one.name == name)
    facts = Facts(deployment(**(server or {})), host=replace(WELL, **changes))
    (outcome,) = run_checks([check], facts).outcomes
    return outcome


def _said(outcome: Outcome) -> str:
    return " ".join(f"{one.message} {one.remedy}" for one in outcome.findings)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_good_host_passes_or_skips_without_a_word(check: Any) -> None:
    (outcome,) = run_checks([check], Facts(deployment(), host=WELL)).outcomes
    assert outcome.status in (Status.PASS, Status.SKIPPED)
    assert not outcome.findings


def test_report_40723_shm_full_of_leftovers() -> None:
    segments = tuple(Segment(f"sem.loky-{pid}-x", 21 * MIB, 0, False) for pid in range(852))
    outcome = _outcome("host.shared_memory", shared_memory=SharedMemory(18 * GIB, 0, segments))
    assert outcome.status is Status.FAIL
    assert outcome.findings[0].exit_code == ExitCode.BUSY
    for part in ("852 segments of 17892 MiB", "rm -- /dev/shm/sem.loky-0-x", "and 847 more"):
        assert part in _said(outcome)


def test_shm_with_leftovers_and_room_is_information() -> None:
    left = SharedMemory(18 * GIB, 17 * GIB, (Segment("psm_1", MIB, 0, False), Segment("psm_2", MIB, 0, None)))
    outcome = _outcome("host.shared_memory", shared_memory=left)
    assert outcome.status is Status.PASS
    assert "1 segments of 1 MiB" in _said(outcome)


def test_dockers_default_shm_with_several_ranks() -> None:
    small = SharedMemory(64 * MIB, 64 * MIB)
    assert _outcome("host.shared_memory", shared_memory=small).status is Status.PASS
    assert _outcome("host.shared_memory", {"tp_size": 2}, shared_memory=small).status is Status.WARN
    eight = _outcome("host.shared_memory", {"tp_size": 8}, shared_memory=small)
    assert eight.status is Status.FAIL
    assert eight.findings[0].exit_code == ExitCode.UNFIT, "no waiting makes it larger"


def test_no_shm() -> None:
    assert _outcome("host.shared_memory", shared_memory=SharedMemory()).status is Status.FAIL


@pytest.mark.parametrize(
    ("hard", "status", "words"), [(1024, Status.WARN, True), (20000, Status.PASS, True), (None, Status.PASS, False)]
)
def test_open_files(hard: int | None, status: Status, words: bool) -> None:
    outcome = _outcome("host.open_files", files=Limit(1024, hard))
    assert outcome.status is status
    assert bool(outcome.findings) is words


def test_locked_memory_matters_over_nodes_only() -> None:
    limited = Limit(8 * MIB, 8 * MIB)
    assert _outcome("host.locked_memory", locked_memory=limited).status is Status.SKIPPED
    assert _outcome("host.locked_memory", {"nnodes": 2}, locked_memory=limited).status is Status.WARN
    assert (
        _outcome("host.locked_memory", {"disaggregation_mode": "decode"}, locked_memory=limited).status is Status.WARN
    )
    assert _outcome("host.locked_memory", {"nnodes": 2}, locked_memory=Limit(None, None)).status is Status.PASS


def test_memory_that_is_configured() -> None:
    eight = {"tp_size": 8, "hicache_size": 50}
    assert _outcome("host.memory", eight).status is Status.PASS
    short = _outcome("host.memory", eight, memory=SystemMemory(512 * GIB, 100 * GIB))
    assert short.status is Status.WARN
    never = _outcome("host.memory", eight, memory=SystemMemory(256 * GIB, 250 * GIB))
    assert never.status is Status.FAIL
    assert "hierarchical cache 50 GiB x 8" in _said(never)


def test_a_control_group_is_tighter_than_the_host() -> None:
    grouped = SystemMemory(512 * GIB, 500 * GIB, limit=4 * GIB, limit_used=0, limit_path="/sys/fs/cgroup/x")
    outcome = _outcome("host.memory", memory=grouped)
    assert outcome.status is Status.WARN  # what a process takes is an estimate, and refuses nobody
    assert "/sys/fs/cgroup/x" in _said(outcome)
    assert _outcome("host.memory", {"hicache_size": 5}, memory=grouped).status is Status.FAIL
    assert _outcome("host.memory", {"hicache_size": 3}, memory=grouped).status is Status.WARN


def test_disk() -> None:
    full = Disk("the cycle log", "/var/log/x", "/var/log", 1 * MIB, 10 * GIB, writable=True)
    assert _outcome("host.disk", disks=(full,)).status is Status.WARN
    closed = _outcome("host.disk", disks=(replace(full, writable=False, asked=True),))
    assert closed.status is Status.FAIL
    assert closed.findings[0].exit_code == ExitCode.PERMISSION
    assert _outcome("host.disk", disks=(replace(full, writable=False),)).status is Status.WARN
    none = _outcome("host.disk", disks=(Disk("compiled kernels", "", "", 0, GIB, writable=False),))
    assert none.status is Status.WARN
    assert "this user has no folder for them" in _said(none)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/proc/x", "No such file or directory"),  # access(2) says yes to root
        ("file", "Not a directory"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null byte"),
        ("new/below", ""),
        ("", ""),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    found = read_disk("the cycle log", tmp_path / path, 0, asked=True)
    assert (found.why, found.writable) == (why, not why)
    assert sorted(tmp_path.rglob("*")) == before, "the attempt leaves nothing"
    outcome = _outcome("host.disk", disks=(found,))
    assert (outcome.status is Status.FAIL) is bool(why)
    assert [(one.exit_code, one.found) for one in outcome.findings] == ([(ExitCode.PERMISSION, why)] if why else [])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(("mode", "writable"), [(0o700, False), (0o777, True)])
def test_a_folder_in_another_users_closed_one(mode: int, writable: bool) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders are closed to others as a whole
    try:
        folder.chmod(mode)
        os.seteuid(65534)
        try:
            found = read_disk("the cycle log", folder / "new" / "below", 0, asked=True)
        finally:
            os.seteuid(0)
        assert (found.writable, found.why) == (writable, "" if writable else "Permission denied")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(("number", "writable"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_a_full_disk_is_no_closed_folder(
    tmp_path: Path, number: int, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**options: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    assert read_disk("the cycle log", tmp_path, 0, asked=True).writable is writable


@pytest.mark.parametrize(("folder", "code"), [("/proc/x", 77), ("new", 0)])
def test_the_cycle_log_s_folder_is_judged_before_anything_starts(
    tmp_path: Path, folder: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--guard-cycles", str(tmp_path / folder), "--device", "cpu", "--model-path", "m"]
    cli.main(["check", "--only", "host", "--format", "json", *given])
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    (disk,) = (outcome for outcome in outcomes if outcome["check"] == "host.disk")
    assert {found["exit_code"] for found in disk["findings"] if found["severity"] == "error"} == ({code} - {0})
    assert not (tmp_path / "new").exists()


def _disks(environment: dict[str, str], **profile: Any) -> dict[str, Disk]:
    asked = deployment()
    asked = replace(
        asked,
        profile=Profile.model_validate(profile),
        environment={name: Setting(value, "profile") for name, value in environment.items()},
    )
    return {one.purpose: one for one in gather_host(asked).disks}


def test_the_folders_are_the_servers_own(tmp_path: Path) -> None:
    found = _disks({"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}, timing={"directory": str(tmp_path)})
    assert found["compiled kernels"].path == str(tmp_path / "home" / ".cache")
    assert found["temporary files"].path == str(tmp_path)
    assert [one.asked for one in found.values()] == [False, False, True]
    found = _disks({"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": "/nowhere"})
    assert found["compiled kernels"].path == str(tmp_path / "cache")


def test_a_user_without_a_home_and_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    def no_folder() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("tempfile.gettempdir", no_folder)
    found = _disks({})
    assert [(one.path, one.writable) for one in found.values()] == [("", False), ("", False)]


def test_device_nodes() -> None:
    outcome = _outcome("host.device_nodes", nodes=(DeviceNode("/dev/nvidia3", allowed=False),))
    assert outcome.status is Status.FAIL
    assert outcome.findings[0].exit_code == ExitCode.PERMISSION
    assert _outcome("host.device_nodes", nodes=()).status is Status.SKIPPED


def test_iommu_is_information_for_several_ranks() -> None:
    two = {"tp_size": 2}
    assert "iommu=pt" in _said(_outcome("host.peer_access", two, iommu=Iommu(120, passthrough=False)))
    assert not _outcome("host.peer_access", two, iommu=Iommu(120, passthrough=True)).findings
    assert _outcome("host.peer_access", iommu=Iommu(120)).status is Status.SKIPPED


def test_clock() -> None:
    assert _outcome("host.clock", clock=Clock(12.0, None)).status is Status.WARN
    assert "not kept in step" in _said(_outcome("host.clock", clock=Clock(1_790_000_000.0, synchronised=False)))


def test_py_spy() -> None:
    assert "not installed" in _said(_outcome("host.py_spy", py_spy=None))
    assert "ptrace_scope 1" in _said(_outcome("host.py_spy", root=False, ptrace_scope=1))
    assert not _outcome("host.py_spy", root=True, ptrace_scope=1).findings


def test_reading_this_host() -> None:
    found = gather_host(deployment(port=1))
    assert found.memory.total
    assert found.shared_memory.total
    assert found.clock.now > 1_700_000_000
    assert {one.purpose for one in found.disks} == {"compiled kernels", "temporary files"}


def test_reading_folders_on_the_way(tmp_path: Path) -> None:
    found = read_disk("the cycle log", tmp_path / "not" / "there", 5)
    assert found.nearest == str(tmp_path)
    assert found.writable
    assert found.free > 0


def test_reading_device_nodes(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    names = [Path(node.path).name for node in read_nodes(tmp_path)]
    assert names == ["nvidia-uvm", "nvidia0", "nvidia11", "nvidiactl"]
    if os.geteuid() != 0:
        (tmp_path / "nvidia0").chmod(0)
        assert not read_nodes(tmp_path)[1].allowed


def test_reading_the_iommu(tmp_path: Path) -> None:
    (tmp_path / "groups" / "0").mkdir(parents=True)
    (tmp_path / "cmdline").write_text("quiet iommu=pt\n")
    assert read_iommu(tmp_path / "groups", tmp_path / "cmdline") == Iommu(1, passthrough=True)
    assert read_iommu(tmp_path / "none", tmp_path / "none") == Iommu(0, passthrough=False)

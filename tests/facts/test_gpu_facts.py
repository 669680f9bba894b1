"""Small readers beside NVML: Xid messages, the PCI bus, the installed torch; and the probe's own manners."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from guarded_serve.facts.gpu import Trouble, ask_driver
from guarded_serve.facts.gpu_probe import ASKING
from guarded_serve.facts.gpu_xid import Xid, parse_xids, read_xids, short_pci
from guarded_serve.facts.gpus import PciCard, cards_on_bus, installed_torch_cuda
from tests.support.fake_driver import environment


def test_xids_are_read_from_kernel_lines() -> None:
    text = (
        "6,900,12000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
        "3,901,83500000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
        "3,902,90000000,-;NVRM: Xid (PCI:0000:af:00): 48\n"
        " SUBSYSTEM=pci\n"
    )
    first, second = parse_xids(text)
    assert first == Xid("0000:3b:00", 79, 83.5, "pid=1234, name=python, GPU has fallen off the bus.")
    assert (second.pci, second.number, second.text) == ("0000:af:00", 48, "")


@pytest.mark.parametrize(
    ("written", "short"),
    [("00000000:3B:00.0", "0000:3b:00"), ("0000:3b:00", "0000:3b:00"), ("00000009:01:00.0", "0009:01:00")],
)
def test_pci_addresses_agree(written: str, short: str) -> None:
    assert short_pci(written) == short


def test_a_log_that_may_not_be_read_is_not_supported_not_empty(tmp_path: Path) -> None:
    assert read_xids(tmp_path / "none").value is None
    log = tmp_path / "kmsg"
    log.write_text("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31\n")
    found = read_xids(log).value
    assert found is not None
    assert [xid.number for xid in found] == [31]


def test_the_pci_bus(tmp_path: Path) -> None:
    (tmp_path / "drivers" / "nvidia").mkdir(parents=True)
    for name, vendor, kind, owned in (
        ("0000:1a:00.0", "0x10de", "0x030200", True),
        ("0000:1b:00.0", "0x10de", "0x030000", False),
        ("0000:1c:00.0", "0x10de", "0x040300", True),  # its audio function
        ("0000:1d:00.0", "0x8086", "0x030000", True),
    ):
        folder = tmp_path / "devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
        if owned:
            (folder / "driver").symlink_to(tmp_path / "drivers" / "nvidia")
    assert cards_on_bus(tmp_path / "devices") == (PciCard("0000:1a:00.0", "nvidia"), PciCard("0000:1b:00.0", None))
    assert cards_on_bus(tmp_path / "none") == ()


def test_the_installed_torch_is_read_without_importing_it() -> None:
    if installed_torch_cuda() is None:
        pytest.skip("no torch for CUDA is installed")
    code = (
        "import sys; from guarded_serve.facts.gpus import installed_torch_cuda as f; found = f();"
        "assert 'torch' not in sys.modules; import torch; print(found, torch.version.cuda)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    pair, version = said.rsplit(" ", 1)
    major, minor = version.strip().split(".")[:2]
    assert pair == f"({major}, {minor})"


def test_the_probe_says_what_it_asks_and_answers_in_its_last_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "guarded_serve.facts.gpu_probe"],
        env={**os.environ, **environment(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *asked, answer = done.stdout.splitlines()
    assert all(line.startswith(ASKING) for line in asked)
    assert f"{ASKING}0 nvmlDeviceGetMemoryInfo" in asked
    assert answer.startswith("{")


def test_no_pynvml_is_said(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('No module named pynvml')")
    trouble = ask_driver({**os.environ, "PYTHONPATH": str(tmp_path)}).trouble
    assert trouble is not None
    assert trouble.kind is Trouble.FAILED
    assert "pynvml is not installed" in trouble.text


def test_a_script_that_is_missing_is_no_library(tmp_path: Path) -> None:
    variables = {**environment(tmp_path), "FAKE_NVML": str(tmp_path / "none")}
    trouble = ask_driver({**os.environ, **variables}).trouble
    assert trouble is not None
    assert trouble.kind is Trouble.NO_LIBRARY


@pytest.mark.parametrize("said", ["goodbye", '"a string"', "[]", '{"init": 3}', "{}"])
def test_a_last_line_that_is_no_answer(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr("guarded_serve.facts.gpu.own_command", lambda *_: ["/bin/echo", said])
    trouble = ask_driver().trouble
    assert trouble is not None
    assert trouble.kind is Trouble.CRASHED
    assert "the probe's answer cannot be read" in trouble.text

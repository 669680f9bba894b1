"""Files that cannot be read, encodings, the path rule, and what is kept of a broken profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded_serve.exit_codes import ExitCode
from guarded_serve.profile.load import load_profile
from guarded_serve.profile.model import Profile, sections


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "x.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_missing_profile_is_a_missing_path_and_names_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, "")
    loaded = load_profile(tmp_path / "y.toml")
    assert [finding.exit_code for finding in loaded.findings] == [ExitCode.MISSING]
    assert loaded.findings[0].remedy == f"did you mean {tmp_path / 'x.toml'}?"


def test_an_unreadable_profile_is_a_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bytes:  # file modes do not stop root, who runs the tests in containers
        raise PermissionError(13, "Permission denied", str(self))

    path = write(tmp_path, "")
    monkeypatch.setattr(Path, "read_bytes", refused)
    assert load_profile(path).findings[0].exit_code is ExitCode.PERMISSION


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    (finding,) = load_profile(tmp_path).findings
    assert (finding.check, finding.exit_code) == ("profile.file", ExitCode.PROFILE)


def test_bytes_that_are_not_utf8_have_a_line(tmp_path: Path) -> None:
    (finding,) = load_profile(write(tmp_path, b'[profile]\nname = "\xff"\n')).findings
    assert (finding.check, finding.where) == ("profile.syntax", f"{tmp_path / 'x.toml'}:2")


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, b"\xef\xbb\xbf[timing]\r\nkeep = 3\r\nkept = 4\r\n"))
    assert loaded.profile.timing.keep == 3
    assert [finding.where for finding in loaded.findings] == [f"{tmp_path / 'x.toml'}:3"]


def test_dotted_values_are_relative_to_the_profile_and_others_are_left(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    loaded = load_profile(
        write(
            tmp_path / "profiles",
            '[server]\nmodel_path = "../demo"\nlora_paths = ["./a", "b", { lora_path = "../c" }]\n'
            'served_model_name = "org/name"\n[timing]\ndirectory = "./cycles"\n[smoke]\nrecord = "plain.json"\n',
        )
    )
    root = Path(os.path.realpath(tmp_path))
    assert loaded.profile.server == {
        "model_path": str(root / "demo"),
        "lora_paths": [str(root / "profiles/a"), "b", {"lora_path": str(root / "c")}],
        "served_model_name": "org/name",
    }
    assert loaded.profile.timing.directory == root / "profiles" / "cycles"
    assert loaded.profile.smoke.record == Path("plain.json")


def test_a_symlinked_profile_folder(tmp_path: Path) -> None:
    (tmp_path / "real" / "profiles").mkdir(parents=True)
    write(tmp_path / "real" / "profiles", '[server]\nmodel_path = "../demo"\n')
    (tmp_path / "link").symlink_to(tmp_path / "real" / "profiles")
    loaded = load_profile(tmp_path / "link" / "x.toml")
    assert loaded.profile.server["model_path"] == os.path.realpath(tmp_path / "real" / "demo")


def test_what_is_valid_in_a_broken_profile_is_kept(tmp_path: Path) -> None:
    loaded = load_profile(write(tmp_path, "[timing]\nkeep = 0\nrotate_mib = 7\n[probe]\nenabled = false\n"))
    assert len(loaded.findings) == 1
    assert (loaded.profile.timing.keep, loaded.profile.timing.rotate_mib) == (40, 7)
    assert loaded.profile.probe.enabled is False


def test_the_profile_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Profile().timing.keep = 3  # type: ignore[misc]


def test_every_key_is_described() -> None:
    for name, section in sections().items():
        for key, field in section.model_fields.items():
            assert field.description, f"{name}.{key}"


def test_defaults_are_the_designed_ones() -> None:
    profile = Profile()
    assert (profile.gpus.max_used_mib, profile.gpus.graphics_mib, profile.gpus.wait_s) == (64, 0, 120)
    assert (profile.probe.min_accept_length, profile.probe.on_failure) == (1.6, "refuse")
    assert (profile.timing.rotate_mib, profile.timing.keep, profile.timing.directory) == (256, 40, None)
    assert (profile.smoke.batch_sizes, profile.smoke.min_gain) == ((1, 8), 1.05)
    supervise = profile.supervise
    assert (supervise.start_deadline_s, supervise.drain_s, supervise.hang_s) == (1800, 120, 120)
    assert (supervise.probe_interval_s, supervise.restarts, supervise.restart_window_s) == (30, 0, 3600)


@given(st.text(alphabet="[]{}=\"'\\#\n.,ab1 ", max_size=80))
def test_no_text_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    loaded = load_profile(write(tmp_path_factory.mktemp("p"), text))
    assert all(finding.exit_code is ExitCode.PROFILE for finding in loaded.findings)


@pytest.mark.parametrize("levels", [40, 100, 300, 500, 5000])
@pytest.mark.parametrize("inside", ["[server]\nx = {}", "[profile]\nname = {}", "y = {}"])
def test_what_is_nested_too_deeply_is_a_fault_of_the_profile(tmp_path: Path, levels: int, inside: str) -> None:
    text = "# a profile\n" + inside.format("[" * levels + "]" * levels) + "\n"
    findings = load_profile(write(tmp_path, text)).findings
    deep = [finding for finding in findings if "nested too deeply" in finding.message]
    assert bool(deep) == (levels > 50)
    assert all(finding.exit_code is ExitCode.PROFILE for finding in findings)
    assert all(finding.where == f"{tmp_path / 'x.toml'}:{text.count(chr(10))}" for finding in deep)

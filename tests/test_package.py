"""What a stranger installs: the built wheel, outside the checkout; and a README that names every command."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import guarded_serve
from guarded_serve.cli import COMMANDS


def test_the_wheel_runs_outside_the_checkout(root: Path, tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("guarded_serve-*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    program = f"import sys; sys.path.insert(0, {str(site)!r}); import guarded_serve.cli as cli; print(cli.__file__); "
    done = subprocess.run(
        [sys.executable, "-I", "-c", program + "sys.argv = ['guarded-serve', '--version']; cli.run()"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.splitlines()[0].startswith(str(site)), done.stderr
    assert guarded_serve.__version__ in done.stdout
    for shipped in (
        "cpu_kernels/sgl_kernel/__init__.py",
        "profile/sglang_snapshot.json",
        "smoke/prompts.jsonl",
        "py.typed",
    ):
        assert (site / "guarded_serve" / shipped).is_file()
    assert (site / "share/doc/guarded-serve/operations.md").is_file()  # the unit's Documentation= names it
    entry_points = ConfigParser()
    entry_points.read(next(site.glob("guarded_serve-*.dist-info")) / "entry_points.txt")
    assert entry_points["sglang.srt.plugins"]["guarded_serve"] == "guarded_serve.engine.plugin:register"


def test_the_readme_names_every_command(root: Path) -> None:
    readme = (root / "README.md").read_text()
    assert [name for name in COMMANDS if f"guarded-serve {name}" not in readme] == []

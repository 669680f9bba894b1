"""Sets up a clone's `.venv`: third-party packages from the user's cache, the project itself from the clone.

    python3 tools/setup_venv.py --requirements requirements/engine.txt --venv .venv

An SGLang environment is 11 GB, so it is built once a machine, in a folder of the user's cache that is named by the
hash of the requirement files, Python and platform; older ones of the same name are removed. The clone's own `.venv` is
a few megabytes: a link to that folder and the project, installed editable, so that no clone runs another's code.
Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPLETE = ".complete"
UNUSED_DAYS = 1.0  # an older folder that no clone asked for in so long goes at once; a used one when it is unused


def main() -> int:
    """Exit 0 when the environment is ready, 1 with the installer's last lines when it could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requirements", type=Path, default=ROOT / "requirements/engine.txt")
    parser.add_argument("--constraints", type=Path, default=ROOT / "requirements/constraints.txt")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        print(
            f"setup: SGLang needs Python 3.11 or newer, this is {platform.python_version()}; try make PYTHON=python3.12"
        )
        return 1
    third_party = _third_party(options.requirements, options.constraints)
    return 1 if third_party is None else _project(options.venv, third_party)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "guarded-serve"


def _third_party(requirements: Path, constraints: Path) -> Path | None:
    content = requirements.read_bytes() + constraints.read_bytes()
    content += f"{sys.version_info[:2]} {platform.machine()} {sys.base_prefix}".encode()
    name = f"packages-{requirements.stem}-"
    folder = _cache() / (name + hashlib.sha256(content).hexdigest()[:16])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / COMPLETE).exists():
            _remove_old(folder, name)
            if not _install(folder, requirements, constraints):
                return None
        (folder / COMPLETE).touch()  # in use now
    return folder


def _remove_old(folder: Path, name: str) -> None:
    """Folders that other requirements made, unless a clone or a running program still uses them."""
    for other in folder.parent.glob(f"{name}*"):
        stamp = other / COMPLETE
        if not other.is_dir() or other == folder:
            continue
        age_days = (time.time() - stamp.stat().st_mtime) / 86400 if stamp.exists() else UNUSED_DAYS
        if age_days >= UNUSED_DAYS and not _in_use(other):
            print(f"setup: removing {other}, which other requirements made")
            shutil.rmtree(other, ignore_errors=True)


def _in_use(folder: Path) -> bool:
    """Whether a process has a library of this folder mapped, as far as this user may look."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"{folder}/" in maps.read_text(errors="replace"):
                return True
    return False


def _python() -> str:
    """The Python itself, also when this runs in a virtual environment (which `make` may be about to replace)."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _install(folder: Path, requirements: Path, constraints: Path) -> bool:
    print(
        f"setup: installing {requirements.name} into {folder} (once a machine, about 4 minutes and 11 GB)", flush=True
    )
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([_python(), "-m", "venv", folder], check=True)
    log = folder / "install.log"
    command = [folder / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    with log.open("w") as output:
        pip = subprocess.Popen(
            [*command, "-r", requirements, "-c", constraints], stdout=output, stderr=subprocess.STDOUT
        )
        while pip.poll() is None:
            try:
                pip.wait(30)
            except subprocess.TimeoutExpired:
                print(f"setup: {time.monotonic() - started:.0f} s: {_last_line(log)}", flush=True)
    if pip.returncode:
        print(f"setup: pip failed; the end of {log}:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-20:]))
        return False
    (folder / COMPLETE).touch()
    print(f"setup: installed in {time.monotonic() - started:.0f} s", flush=True)
    return True


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("WARNING")]
    return lines[-1].strip()[:100] if lines else "starting"


def _project(venv: Path, third_party: Path) -> int:
    stamp = venv / ".setup"
    state = f"{ROOT}\n{third_party}\n{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"
    if stamp.exists() and stamp.read_text() == state:
        return 0
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([_python(), "-m", "venv", venv], check=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = third_party / "lib" / version / "site-packages"
    path_file = venv / "lib" / version / "site-packages/third_party.pth"
    path_file.write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    for program in (third_party / "bin").iterdir():
        link = venv / "bin" / program.name
        if not link.exists() and not program.name.lower().startswith(("python", "pip", "activate")):
            link.symlink_to(program)
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    pip = subprocess.run(
        [venv / "bin/python", "-m", "pip", "install", *options, "--editable", ROOT],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if pip.returncode:
        print(f"setup: could not install the project into {venv}:\n{pip.stdout}")
        return 1
    stamp.write_text(state)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m guarded_serve``: the same as the console script ``guarded-serve``."""

from __future__ import annotations

from guarded_serve.cli import run

if __name__ == "__main__":
    run()

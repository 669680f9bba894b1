"""``python -m guarded_serve.launch_server`` takes the place of ``python -m sglang.launch_server``, flag for flag."""

from __future__ import annotations

import sys

from guarded_serve.cli import launch_main

if __name__ == "__main__":
    sys.exit(launch_main(sys.argv[1:]))

"""Writes the snapshot of SGLang's parser from the installed SGLang: ``python -m tests.support.update_snapshot``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from guarded_serve.profile import sglang_parser


def main() -> None:
    """One line an action, so that a new version's difference can be read."""
    version = sglang_parser.installed_version()
    assert version is not None, "SGLang is not installed"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "dump.json"
        sglang_parser._build(output, version)
        dump = json.loads(output.read_text())
    lines = [f'"version": "{version}"', *(f'"{key}": {json.dumps(dump[key])}' for key in ("fields", "config"))]
    actions = ",\n".join(json.dumps(action) for action in dump["actions"])
    text = "{\n" + ",\n".join([*lines, f'"actions": [\n{actions}\n]']) + "\n}\n"
    sglang_parser.SNAPSHOT.write_text(text)


if __name__ == "__main__":
    main()

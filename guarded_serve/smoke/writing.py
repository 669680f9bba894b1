"""Files that are there whole or not at all: written under another name, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write and rename, keeping what stood there until the last moment. Makes the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(0o644)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise

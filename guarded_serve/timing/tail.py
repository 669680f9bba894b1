"""Follow the newest cycle file of each rank as it grows, through rotation and restarts: what `top` looks through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from guarded_serve.timing.record import FILE_NAME, Cycle
from guarded_serve.timing.totals import Totals

LOOK_BACK = 1 << 20  # bytes of the newest file that are read at the start, so that there is something to see
MOST_AT_ONCE = 8 << 20


@dataclass
class _Followed:
    """One rank: its file, how far it was read, and its totals."""

    path: Path
    sequence: int
    position: int
    totals: Totals


class Tail:
    """The ranks of one folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ranks: dict[int, _Followed] = {}

    def read(self) -> dict[int, Totals]:
        """Read on; cumulative totals by rank, since the start. Raises OSError when the folder cannot be read."""
        newest: dict[int, tuple[int, Path]] = {}
        for path in self._directory.iterdir():
            match = FILE_NAME.match(path.name)
            if match:
                rank, sequence = int(match["rank"]), int(match["sequence"])
                if sequence > newest.get(rank, (0, path))[0]:
                    newest[rank] = (sequence, path)
        for rank, (sequence, path) in newest.items():
            followed = self._ranks.get(rank)
            if followed is None:
                start = max(path.stat().st_size - LOOK_BACK, 0)
                followed = self._ranks[rank] = _Followed(path, sequence, start, Totals())
            elif followed.sequence != sequence:
                self._advance(followed)  # the end of the old file
                followed.path, followed.sequence, followed.position = path, sequence, 0
            self._advance(followed)
        return {rank: followed.totals for rank, followed in self._ranks.items()}

    @staticmethod
    def _advance(followed: _Followed) -> None:
        try:
            with followed.path.open("rb") as stream:
                stream.seek(followed.position)
                block = stream.read(MOST_AT_ONCE)
        except FileNotFoundError:
            return  # rotated away while we looked
        whole = block.rfind(b"\n") + 1
        followed.position += whole
        for line in block[:whole].splitlines():
            try:
                followed.totals.add(Cycle.from_line(line))
            except ValueError:
                continue  # the rest of a line that `LOOK_BACK` cut, or a stranger's

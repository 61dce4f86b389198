"""What a client writes down, read as it grows: a run looks at it many times."""

from collections.abc import Sequence
from pathlib import Path

from tests.testbed.checker.publishes import Publish, publishes_in


class PublishReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._found: list[Publish] = []

    def read(self) -> Sequence[Publish]:
        """Return every attempt; a line that is not whole yet is left to the next time."""
        with self._path.open("rb") as record:
            record.seek(self._offset)
            whole, end, _ = record.read().rpartition(b"\n")
        text = (whole + end).decode()
        self._found += publishes_in(text, f"{self._path} from byte {self._offset}")
        self._offset += len(whole) + len(end)
        return self._found

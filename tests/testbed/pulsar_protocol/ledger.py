"""The ledger of one topic: a database that the brokers of one machine share.

At any time only the newest owner can append. A transaction is in the kernel when it ends: it
survives the death of this process, not that of the machine.
"""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadmanager.core.errors import LoadManagerError

_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS owners (token INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, token INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS acked (subscription TEXT, number INTEGER,
    PRIMARY KEY (subscription, number)) WITHOUT ROWID;
"""
_UNACKED = """
SELECT number, token, payload FROM entries WHERE number > ? AND NOT EXISTS
    (SELECT 1 FROM acked WHERE subscription = ? AND acked.number = entries.number)
ORDER BY number LIMIT ?
"""


class Fenced(LoadManagerError):
    """A newer owner has opened the ledger."""


class Ledger:
    """The ledger of one topic, opened under the fencing token of its bundle; raises Fenced."""

    def __init__(self, path: Path, token: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._token = token
        self._database = sqlite3.connect(path, timeout=30.0, isolation_level=None)
        try:
            self._database.executescript(_TABLES)
            self._database.execute("INSERT OR IGNORE INTO owners VALUES (?)", (token,))
            with self._writing():
                pass
        except BaseException:
            self.close()
            raise

    def append(self, payload: bytes) -> int:
        """Append an entry and return its number; it may be acknowledged then."""
        with self._writing():
            appended = self._database.execute(
                "INSERT INTO entries (token, payload) VALUES (?, ?)", (self._token, payload)
            )
        assert appended.lastrowid is not None
        return appended.lastrowid

    def ack(self, subscription: str, numbers: Collection[int]) -> None:
        with self._writing():
            self._database.executemany(
                "INSERT OR IGNORE INTO acked VALUES (?, ?)",
                [(subscription, number) for number in numbers],
            )

    def unacked(self, subscription: str, after: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return number, token and payload of the next entries to be consumed."""
        return self._database.execute(_UNACKED, (after, subscription, limit)).fetchall()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        (newest,) = self._database.execute("SELECT max(token) FROM owners").fetchone()
        if newest != self._token:
            self._database.execute("ROLLBACK")
            raise Fenced(f"token {newest} has opened this ledger, {self._token} is over")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

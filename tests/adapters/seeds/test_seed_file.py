"""Seeds in files and at URLs: what is read, what is refused, and that the loop goes on."""

import asyncio
import gzip
import os
import sys
from pathlib import Path

import fsspec
import pytest
from seed_samples import head, rates, write_seed

from loadmanager.adapters.seeds import read_seed_file, seed_at
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.core.seed import MOST_LINE_BYTES
from loadmanager.ports.history import SeedUnreadable

BUNDLES = Boundaries.even(Namespace("t/ns"), 4).bundles
SIZES = dict.fromkeys(BUNDLES, 7.0)


async def test_a_seed_is_read_from_a_file(tmp_path: Path) -> None:
    path = write_seed(tmp_path / "seed.json.gz", head(5), SIZES)
    seed = await read_seed_file(str(path), 3)
    assert seed is not None
    assert seed.head == head(5)
    assert {one: seed.bundles[one].now for one in BUNDLES} == dict.fromkeys(BUNDLES, rates(7.0))


def test_a_seed_is_read_from_a_url(tmp_path: Path) -> None:
    path = write_seed(tmp_path / "seed.json.gz", head(5), SIZES)
    with fsspec.open("memory://rollups/seed.json.gz", "wb") as file:
        file.write(path.read_bytes())
    assert seed_at("memory://rollups/seed.json.gz", 0) == seed_at(str(path), 0)


async def test_a_missing_file_is_told_with_its_address(tmp_path: Path) -> None:
    address = str(tmp_path / "none.json.gz")
    with pytest.raises(SeedUnreadable, match="No such file") as raised:
        await read_seed_file(address, 0)
    assert str(raised.value).startswith(address)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda packed: packed[: len(packed) // 2], "EOFError"),
        (lambda packed: packed[:-8] + bytes(8), "BadGzipFile: CRC"),
        (lambda _: b"nothing of the kind", "Not a gzipped file"),
        (lambda _: b"", "the end after 0 bundles"),
        (lambda packed: packed + gzip.compress(b"more"), "something after the last line"),
        (lambda _: gzip.compress(b"x" * 10 * MOST_LINE_BYTES), "16386 bytes; expected at"),
        (lambda _: gzip.compress(b'{"format": 2}\n'), "line 1: format = 2"),
    ],
)
def test_what_is_no_seed_is_refused(tmp_path: Path, spoil: object, told: str) -> None:
    path = write_seed(tmp_path / "seed.json.gz", head(5), SIZES)
    assert callable(spoil)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(SeedUnreadable) as raised:
        seed_at(str(path), 0)
    assert str(raised.value).startswith(str(path))
    assert told in str(raised.value)


def test_a_url_of_nobody_is_told(tmp_path: Path) -> None:
    with pytest.raises(SeedUnreadable, match=r"nowhere://seed: ValueError: Protocol not known"):
        seed_at("nowhere://seed", 0)
    assert not list(tmp_path.iterdir())


def test_without_fsspec_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    path = write_seed(tmp_path / "seed.json.gz", head(5), SIZES)
    assert len(seed_at(str(path), 0).bundles) == 4
    with pytest.raises(SeedUnreadable, match=r"s3://b/seed: needs fsspec; .*history"):
        seed_at("s3://b/seed", 0)


async def test_a_disk_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    """A pipe that nobody writes to, in place of a network disk that is gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = asyncio.ensure_future(read_seed_file(str(path), 0))
    answered = await asyncio.to_thread(lambda: "others are answered")
    assert answered
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    # Somebody opens the other end, and the thread ends without anybody to tell.
    with path.open("wb"):
        pass

"""The seed of a rollup, in a local file or at a URL that fsspec supports, read beside the loop."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

from loadmanager.core.errors import MalformedContent
from loadmanager.core.seed import MOST_LINE_BYTES, Seed, read_seed
from loadmanager.ports.history import SeedUnreadable

_HOW: Final = 'install it: pip install "loadmanager[history]"'


async def read_seed_file(address: str, hour: int) -> Seed:
    """Return the seed at an address, which a rollup replaces as a whole.

    Each reading has a thread of its own: one that hangs on a disk or a network that is gone
    takes none of those that the event loop has for others, and ends with the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Seed] = loop.create_future()

    def on_read(found: Seed | SeedUnreadable) -> None:
        if answer.done():
            return  # The reader has given up.
        if isinstance(found, SeedUnreadable):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def work() -> None:
        try:
            found: Seed | SeedUnreadable = seed_at(address, hour)
        except SeedUnreadable as problem:
            found = problem
        with suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(on_read, found)

    threading.Thread(target=work, name="seed", daemon=True).start()
    return await answer


def seed_at(address: str, hour: int) -> Seed:
    try:
        with _opened(address) as file, gzip.GzipFile(fileobj=file) as lines:
            seed = read_seed(address, _lines(lines), hour)
            _check_end(address, lines)
            return seed
    except (MalformedContent, SeedUnreadable) as error:
        raise SeedUnreadable(str(error)) from error
    except Exception as error:
        # Each file system has its own kinds of errors, and so has gzip.
        raise SeedUnreadable(f"{address}: {type(error).__name__}: {error}") from error


def _lines(file: gzip.GzipFile) -> Iterator[bytes]:
    while line := file.readline(MOST_LINE_BYTES + 2):
        yield line.rstrip(b"\n")


def _check_end(address: str, file: gzip.GzipFile) -> None:
    """Read to the end, where the checksum stands."""
    if file.read(1):
        raise MalformedContent(address, "something after the last line", "its end")


@contextmanager
def _opened(address: str) -> Iterator[IO[bytes]]:
    if "://" not in address:
        with open(address, "rb") as file:  # noqa: PTH123 - as fsspec's below
            yield file
        return
    try:
        import fsspec  # noqa: PLC0415 - installed only for URLs
    except ImportError:
        raise SeedUnreadable(f"{address}: needs fsspec; {_HOW}") from None
    with fsspec.open(address, "rb") as remote:
        yield remote

"""`loadmanager attach` as a process that begins at once: it is forked from one with all imports."""

import http.client
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

from loadmanager.cli import main

LIMIT_S: Final = 90.0
_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["loadmanager.pulsar.controller", "loadmanager.cli.attach_output", __name__]
)


class AttachProcess:
    """One of them; ``lines`` are those that it has written so far, errors among them."""

    def __init__(self, process: ForkServerProcess, lines: list[str]) -> None:
        self._process = process
        self.lines = lines

    def until(self, text: str, times: int = 1) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while sum(text in line for line in self.lines) < times:
            assert time.monotonic() < deadline_s, (text, self.lines)
            time.sleep(0.01)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        self._process.join(LIMIT_S)
        assert self._process.exitcode is not None, self.lines
        return self._process.exitcode

    def end(self) -> None:
        """Ask it to end, and see that it ends well."""
        self.terminate()
        assert self.wait() == 0, self.lines


@contextmanager
def attached(*options: str) -> Iterator[AttachProcess]:
    """Run the command with these options; it is killed at the end if it has not ended."""
    reader, writer = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_run, args=(options, writer))
    process.start()
    writer.close()
    found = AttachProcess(process, [])

    def listen() -> None:
        with os.fdopen(os.dup(reader.fileno()), encoding="utf-8") as text:
            found.lines.extend(text)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield found
    finally:
        process.kill()
        process.join()
        listener.join()
        reader.close()
        process.close()


def _run(options: tuple[str, ...], writer: Connection) -> None:
    for number in (1, 2):
        os.dup2(writer.fileno(), number)
    writer.close()
    # What a shell starts beside itself ignores it, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(["attach", *options])


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def event(port: int) -> tuple[str, dict[str, Any]]:
    """Return the first event of a stream; nothing while nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/live/events")
        answer = connection.getresponse()
        kind, data = answer.readline().decode(), answer.readline().decode()
        return kind.strip(), json.loads(data.removeprefix("data: "))
    except ConnectionError:
        return "", {}
    finally:
        connection.close()

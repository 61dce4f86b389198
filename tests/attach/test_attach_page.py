"""The live page of `loadmanager attach --page`."""

import http.client
import json
import socket
import time
from pathlib import Path

import pytest
from attach_process import LIMIT_S, attached
from fake_pulsar import FakePulsar


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def event(port: int) -> tuple[str, dict[str, object]]:
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


def status(port: int, path: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("GET", path, headers={"Host": host})
    found = connection.getresponse().status
    connection.close()
    return found


@pytest.mark.parametrize("mode", ["observing", "active"])
def test_what_attach_does_is_shown_to_this_host(
    pulsar: FakePulsar, tmp_path: Path, mode: str
) -> None:
    port = free_port()
    more = ["--balance", "--settle", "0"] if mode == "active" else []
    options = ["--pulsar", pulsar.url, "--interval", "0.2", "--state-dir", str(tmp_path)]
    with attached(*options, "--page", str(port), *more) as process:
        until_s = time.monotonic() + LIMIT_S
        kind, told = event(port)
        while kind != "event: overview":
            assert time.monotonic() < until_s, told
            time.sleep(0.1)
            kind, told = event(port)
        seen = told["overview"]
        assert isinstance(seen, dict)
        assert (seen["measure"], seen["balancing"]["mode"]) == ("rate", mode)
        assert len(seen["brokers"]) == seen["brokersInAll"] > 1
        assert status(port, "/", "localhost") == 200
        assert status(port, "/live/app.js", "127.0.0.1") == 200
        assert status(port, "/live/events", "evil.example") == 403
        process.terminate()
        process.wait()

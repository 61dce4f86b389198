"""The events of the live page that a process of `loadmanager attach --page` serves."""

import http.client
import json
import socket
from typing import Any, Final

LIMIT_S: Final = 90.0


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

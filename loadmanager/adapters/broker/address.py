"""Finding out where the broker answers when the configuration does not say."""

import asyncio
from dataclasses import dataclass
from typing import Final

from loadmanager.core.ids import BrokerId

_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ControlUrl:
    """Where the broker is asked and commanded, and why there."""

    url: str
    why: str


async def control_url_of(broker: BrokerId, configured: str) -> ControlUrl:
    """Return the configured URL; else loopback if anything listens there, else the broker's id.

    The broker is on this host as a rule, and what goes to loopback leaves no host. A
    broker in a container of its own does not listen on this one's loopback.
    """
    if configured:
        return ControlUrl(configured, "[broker] control_url is set")
    port = broker.rpartition(":")[2]
    loopback = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(_WAIT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    except TimeoutError:
        why = f"no connection within {_WAIT_S:g} s"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        writer.close()
        return ControlUrl(loopback, "[broker] control_url is not set, and it answers there")
    return ControlUrl(f"http://{broker}", f"nothing answers at {loopback}: {why}")

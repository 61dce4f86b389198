"""A leader that stops in the moment it is about to write orders, once a file asks for that.

With ``LEAVE_OUT`` in the environment its writes go without the check of the epoch.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from loadmanager.core import znodes
from loadmanager.ports.coordination import Check, Operation, Stat
from loadmanager.ports.session import Coordination

ASKED = Path(os.environ["STOP_FILE"])
LEAVES_OUT = "LEAVE_OUT" in os.environ
_commit = Coordination.commit


def _stop_if_asked() -> None:
    if ASKED.exists():
        ASKED.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)


async def _stop_and_commit(
    self: Coordination, operations: Sequence[Operation]
) -> tuple[Stat | None, ...]:
    if any(one.path.startswith(f"{znodes.ORDERS}/") for one in operations):
        _stop_if_asked()
    if LEAVES_OUT:
        checks = [isinstance(one, Check) and one.path == znodes.EPOCH for one in operations]
        operations = [one for one, check in zip(operations, checks, strict=True) if not check]
    return await _commit(self, operations)


Coordination.commit = _stop_and_commit  # type: ignore[method-assign]  # that is the point
sys.stderr.write("build: stops_at_orders\n")

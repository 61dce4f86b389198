"""Reads ahead: loads on the likely next leaders, and owned lists one after the other."""

from typing import Final

from loadmanager.common.context import Context
from loadmanager.leader.leadership import Leadership

_LOOK_S: Final = 1.0


class SuccessorReading:
    """Watches the loads while this sidecar leads or is one of the likely successors.

    It also reads changed owned lists that no lookup here has needed yet.
    """

    def __init__(self, context: Context, leading: Leadership) -> None:
        self._cluster_state = context.cluster_state
        self._me = context.identity.broker
        self._clock = context.clock
        self._leading = leading

    async def run(self) -> None:
        """Open and close the watches as the cluster changes, until cancelled."""
        while True:
            if self._leading.elected or self._me in self._cluster_state.successors:
                self._cluster_state.loads.open()
            else:
                self._cluster_state.loads.close()
            self._cluster_state.lists.read_next()
            await self._clock.sleep(_LOOK_S)

"""Reads ahead: loads on the likely next leaders, and owned lists one after the other."""

from dataclasses import dataclass
from typing import Final

from loadmanager.common.context import Context
from loadmanager.leader.leadership import Leadership

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class SuccessorReading:
    """Watches the loads while this sidecar leads or is one of the likely successors.

    It also reads changed owned lists that no lookup here has needed yet.
    """

    context: Context
    leading: Leadership

    async def run(self) -> None:
        """Open and close the watches as the cluster changes, until cancelled."""
        cluster_state, me = self.context.cluster_state, self.context.identity.broker
        while True:
            if self.leading.elected or me in cluster_state.successors:
                cluster_state.loads.open()
            else:
                cluster_state.loads.close()
            cluster_state.lists.read_next()
            await self.context.clock.sleep(_LOOK_S)

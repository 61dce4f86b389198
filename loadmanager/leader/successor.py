"""Reading loads ahead where the next leader probably is, so that it can decide at once."""

from typing import Final

from loadmanager.common.context import Parts
from loadmanager.leader.leadership import Leading

_LOOK_S: Final = 1.0


class Readiness:
    """Watches the loads while this sidecar leads or would be among the first to succeed."""

    def __init__(self, parts: Parts, leading: Leading) -> None:
        self._picture = parts.picture
        self._me = parts.identity.broker
        self._clock = parts.clock
        self._leading = leading

    async def run(self) -> None:
        """Open and close the watches as the cluster changes, until cancelled."""
        while True:
            if self._leading.elected or self._me in self._picture.successors:
                self._picture.loads.open()
            else:
                self._picture.loads.close()
            await self._clock.sleep(_LOOK_S)

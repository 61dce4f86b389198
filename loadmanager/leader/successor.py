from typing import Final, Never

from loadmanager.common.context import Context
from loadmanager.leader.leadership import Leadership

_LOOK_S: Final = 1.0


async def read_ahead(context: Context, leading: Leadership) -> Never:
    """Watch the loads while this sidecar leads or is one of the likely successors.

    Also read changed owned lists that no lookup here has needed yet. Runs until cancelled.
    """
    cluster_state, me = context.cluster_state, context.identity.broker
    while True:
        if leading.elected or me in cluster_state.successors:
            cluster_state.loads.open()
        else:
            cluster_state.loads.close()
        cluster_state.lists.read_next()
        await context.clock.sleep(_LOOK_S)

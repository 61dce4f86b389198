import asyncio

import numpy as np

from loadmanager.config.errors import ConfigError
from loadmanager.config.offline import Wanted, planner_for
from loadmanager.core.planner import Planner
from loadmanager.core.snapshot.encoding import in_force
from loadmanager.leader.cluster_view import Look
from loadmanager.leader.leadership import Leadership
from loadmanager.ports.administration import Unfit
from loadmanager.ports.leading import PlanOverrides, Preview
from loadmanager.ports.lookup import Unavailable


async def preview_round(leading: Leadership, wish: PlanOverrides) -> Preview:
    """Return the result of a round of the leader at this time, which is not carried out.

    Raises `LeaderElsewhere`: another sidecar leads; `Unavailable`: no sidecar leads, or no broker
    has reported yet; `Unfit`: a strategy or setting is unknown, or a value is invalid.
    """
    look = leading.require_term().look()
    if not look.view.brokers.names:
        raise Unavailable("no broker has a load report yet")
    planner = _wanted(look.planner, wish)
    # View and memory are immutable, and the leader's own generator is not used.
    rng = np.random.default_rng(wish.seed)
    return await asyncio.to_thread(_previewed, planner, look, rng)


def _previewed(planner: Planner, look: Look, rng: np.random.Generator) -> Preview:
    view = look.view
    plan = planner.round(view, look.memory, rng, draining=False)
    return Preview(
        plan=plan,
        optimality=planner.optimality(view, plan.memory),
        with_moves=planner.optimality(view, plan.memory, (*plan.moves, *plan.observed)),
        epoch=look.epoch,
        in_force=in_force(planner),
        balancing=look.balancing,
    )


def _wanted(planner: Planner, wish: PlanOverrides) -> Planner:
    if not (wish.shedder or wish.placement or wish.mode or wish.settings):
        return planner
    wanted = Wanted(
        shedder=wish.shedder or None,
        placement=wish.placement or None,
        mode=wish.mode or None,
        settings=wish.settings,
    )
    try:
        return planner_for("the leader", in_force(planner), wanted)
    except ConfigError as error:
        raise Unfit("; ".join(error.faults).replace("--set ", "set=")) from error

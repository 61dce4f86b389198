"""Where the bundles lie as a combination begins: as recorded, or as no strategy chose."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.placement import RoundRobin
from loadmanager.core.planner import Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.shedding import ThresholdShedder
from loadmanager.pipeline.what_if.frames import Frame
from loadmanager.pipeline.what_if.views import other_view


def spread_anew(frame: Frame, planner: Planner, rng: np.random.Generator) -> Indices:
    """Return the broker row of each bundle, -1 for none: dealt out in turn, in random order.

    Every broker gets as many bundles as any other, whatever they carry, within the isolation
    policies, anti-affinity groups and drains of ``planner``. A bundle stays where it was recorded
    if it belongs to its broker, is not to be moved, or no broker may have it.
    """
    staying = np.zeros(len(frame.owner), dtype=np.bool_)
    for name in frame.policies.staying:
        row = frame.bundles.index.get(name)
        if row is not None and row < len(staying):
            staying[row] = True
    dealt = frame.present & (frame.owner >= 0) & ~frame.bundles.system & ~staying
    owner = np.where(dealt, -1, frame.owner)
    rows = rng.permutation(np.flatnonzero(dealt)).tolist()
    dealer = replace(
        planner,
        shedder=ThresholdShedder(),
        placement=RoundRobin(),
        settings=replace(
            planner.settings, observe=False, shedding=False, placements_per_round=len(rows)
        ),
    )
    plan = dealer.round(
        other_view(frame, frame.brokers, owner, MappingProxyType({}), like_java=False),
        RoundMemory(),
        rng,
        unowned=[frame.bundles.names[row] for row in rows],
        draining=False,
    )
    owner = frame.owner.copy()
    for move in plan.moves:
        owner[frame.bundles.index[move.bundle]] = frame.brokers.index[move.target]
    return owner

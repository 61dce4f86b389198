"""A canned overview of a cluster, for tests of what serves it and of the page that shows it."""

from leader_queries import AT_MS, B1, B2, ENDED, LEFT_ALONE, LIVE, MOVED

from loadmanager.core.balance_course import BalancePoint
from loadmanager.core.balancing import Balancing
from loadmanager.core.plan import Reason
from loadmanager.ports.leading import TaskList
from loadmanager.ports.overview import (
    BrokerUse,
    MissingBroker,
    Overview,
    RefusalCount,
    ResourceUse,
    TaskGain,
)

OVERVIEW = Overview(
    cluster="east",
    leader=B1,
    epoch=4,
    since_ms=AT_MS,
    at_ms=AT_MS + 90_000,
    measure="use",
    balancing=Balancing(),
    course=(BalancePoint(at_ms=AT_MS, gap=0.25, largest=0.5, bound=0.4),),
    brokers=(BrokerUse(broker=B1, cpu_fraction=0.5, bundles=3, msgs_per_s=10.0),),
    brokers_in_all=2,
    resources=(ResourceUse(resource="cpu", mean_fraction=0.4, highest_fraction=0.5, broker=B1),),
    bundles=3,
    unowned=0,
    missing=(MissingBroker(broker=B2, why="left, or crashed", since_ms=AT_MS),),
    tasks=TaskList(
        tasks=(LIVE, ENDED), found=2, leader=B1, epoch=4, at_ms=AT_MS + 90_000, now_s=190.0
    ),
    gains={LIVE.number: TaskGain(before=0.5, expected=0.4)},
    refusals=(RefusalCount(reason=Reason.ROUND_BUDGET, count=7, subject="", detail="5 of 5"),),
    decisions=(LEFT_ALONE, MOVED),
    actions=("pause",),
)

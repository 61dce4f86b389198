from dataclasses import dataclass, field
from typing import Final

from loadmanager.core.cluster import ClusterView
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Offer, Reason, Refusal
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed
from loadmanager.core.shedding.selection import offers_of

_EXTRA: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadShedder(Settings):
    """Offer bundles of every broker with a usage of ``overloaded`` or more.

    A broker at usage u offers its largest bundles by throughput until they reach its
    throughput times (u - overloaded + 0.05), and at least one. It keeps no memory.

    Pulsar's accident `all-overloaded`: it ignores all other brokers, so that if all are
    overloaded, all shed, and bundles move around without effect. In safe mode the planner
    refuses a move if no other broker is better.
    """

    overloaded: float = setting(
        "Usage from which a broker sheds.",
        "fraction",
        "loadBalancerBrokerOverloadedThresholdPercentage",
        default=0.85,
        within=(0.0, 10.0),
        pulsar_divisor=100.0,
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        offers: list[Offer] = []
        refusals: list[Refusal] = []
        usage = view.scores(self.weights)
        need = view.brokers.bytes_per_s * (usage - self.overloaded + _EXTRA)
        overloaded = usage >= self.overloaded
        for row, name in enumerate(view.brokers.names):
            if not overloaded[row]:
                refusals.append(Refusal(name, Reason.WITHIN_THRESHOLD, f"{usage[row]:.3f}"))
                continue
            picked = offers_of(view, row, float(need[row]))
            if isinstance(picked, Refusal):
                refusals.append(picked)
            else:
                offers += picked
        return Shed(tuple(offers), tuple(refusals), memory)

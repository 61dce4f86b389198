import math
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Cause, Offer, Reason, Refusal
from loadmanager.core.policies import open_to
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed, Spread
from loadmanager.core.shedding.offload import Offload

_LEAST_MULTIPLIER = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferShedder(Settings):
    """Reduce the standard deviation of the brokers' load to ``target_std``.

    After more than ``hits`` consecutive rounds out of balance, the most loaded broker sheds half
    of the difference to the least loaded one, in at most ``brokers_per_round`` pairs per round. A
    bundle too large for the rest of that half may be swapped for smaller ones of the
    other broker. Load is the exponential average in the view, and only the heaviest bundles of
    each broker are considered.

    Pulsar's accidents: `stale-pairs` excludes a broker whose load data is too old from
    the mean, but still pairs it with another; `nan-spread` takes the root of a variance
    that rounding made negative. `Offload` has more.
    """

    target_std: float = setting(
        "Acceptable standard deviation of the brokers' load.",
        "fraction",
        "loadBalancerBrokerLoadTargetStd",
        default=0.25,
        within=(0.0, 10.0),
    )
    hits: int = setting(
        "Consecutive rounds out of balance after which the next one moves bundles.",
        "rounds",
        "loadBalancerSheddingConditionHitCountThreshold",
        default=3,
        within=(0, 1_000_000),
    )
    transfer: bool = setting(
        "Name the destination and allow swaps.",
        default=True,
        pulsar_key="loadBalancerTransferEnabled",
    )
    brokers_per_round: int = setting(
        "Maximum number of brokers that shed in one round.",
        "brokers",
        "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
        default=3,
        within=(0, 1_000_000),
    )
    shedding_delay_s: float = setting(
        "Time after a move until a report of its brokers counts again.",
        "seconds",
        "loadBalanceSheddingDelayInSeconds",
        default=180.0,
        within=(0.0, 1e9),
    )
    load_ttl_s: float = setting(
        "Load data older than this is ignored.",
        "seconds",
        "loadBalancerBrokerLoadDataTTLInSeconds",
        default=1800.0,
        within=(0.0, 1e9),
    )
    overloaded: float = setting(
        "Usage above which the most loaded broker sheds regardless of the deviation.",
        "fraction",
        "loadBalancerBrokerOverloadedThresholdPercentage",
        default=0.85,
        within=(0.0, 10.0),
        pulsar_divisor=100.0,
    )
    restricted_too: bool = setting(
        "Also move bundles whose namespace has isolation or anti-affinity policies. Otherwise they "
        "stay, and count among the heaviest nevertheless.",
        default=False,
        pulsar_key="loadBalancerSheddingBundlesWithPoliciesEnabled",
    )
    excluded_namespaces: frozenset[Namespace] = setting(
        "Namespaces whose bundles are never shed.",
        default=frozenset(),
        pulsar_key="loadBalancerSheddingExcludedNamespaces",
    )
    count_swapped_back: bool = setting(
        "In parity mode, count the traffic that a swap returns, as Pulsar does only in its "
        "debug mode. In safe mode it always counts.",
        default=False,
        pulsar_key="loadBalancerDebugModeEnabled",
    )
    like_java: bool = False

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        measured = self._measure(view, memory)
        if isinstance(measured, Refusal):
            refusal, memory = measured, self._warm(view, memory)
            return Shed((), (refusal,), memory)
        memory = self._warm(view, memory)
        order = np.argsort(view.brokers.load_ema, kind="stable").tolist()
        if not self.like_java:  # stale-pairs
            order = [row for row in order if view.age_s[row] <= self.load_ttl_s]
        least, most = order[0], order[-1]
        out_of_balance = (
            measured.std > self.target_std
            or self._underloaded(view, least, most, measured.mean)
            or self._overloaded(view, most, measured.mean)
        )
        hits = memory.rounds_over + 1 if out_of_balance else 0
        memory = replace(memory, rounds_over=hits)
        if hits <= self.hits:
            detail = f"{hits} of {self.hits} rounds, deviation {measured.std:.3f}"
            return Shed((), (Refusal("", Reason.HITS_PENDING, detail),), memory, measured)
        return self._even_out(view, memory, order, measured)

    def may_take(self, view: ClusterView, bundle: BundleId, target: BrokerId) -> bool:
        """Return whether policies, and `restricted_too`, let a bundle go to ``target``."""
        namespace, policies = namespace_of(bundle), view.policies
        policy = policies.governing(namespace)
        if not self.restricted_too and (policy or namespace in policies.anti_affinity):
            return False
        return bool(open_to(policies, policy, view.brokers.names)[view.row(target)])

    def _measure(self, view: ClusterView, memory: Memory) -> Spread | Refusal:
        brokers = view.brokers
        fresh = (view.age_s <= self.load_ttl_s) & ~np.isnan(brokers.load_ema)
        for row in np.flatnonzero(fresh).tolist():
            if self._is_cooling(view, memory, row):
                return Refusal("", Reason.COOLING_DOWN, f"{brokers.names[row]} moved bundles")
        count = int(np.count_nonzero(fresh))
        if count == 0:
            stale = bool((view.age_s > self.load_ttl_s).any())
            return Refusal("", Reason.LOAD_OUTDATED if stale else Reason.TOO_FEW_BROKERS)
        unknown = np.flatnonzero(np.isnan(brokers.load_ema)).tolist()
        if unknown:
            return Refusal("", Reason.LOAD_UNKNOWN, min(brokers.names[row] for row in unknown))
        load = brokers.load_ema[fresh]
        mean = float(load.sum()) / count
        variance = float((load * load).sum()) / count - mean * mean
        if self.like_java and variance < 0:  # nan-spread
            return Spread(mean, math.nan)
        return Spread(mean, math.sqrt(max(variance, 0.0)))

    def _is_cooling(self, view: ClusterView, memory: Memory, row: int) -> bool:
        shed_at_s = memory.shed_at_s.get(view.brokers.names[row])
        return (
            shed_at_s is not None
            and float(view.brokers.seen_s[row]) - shed_at_s < self.shedding_delay_s
        )

    def _warm(self, view: ClusterView, memory: Memory) -> Memory:
        """Forget the moves of brokers whose reports are recent enough after them."""
        index = view.brokers.index
        kept = {
            broker: at_s
            for broker, at_s in memory.shed_at_s.items()
            if broker not in index
            or view.age_s[index[broker]] > self.load_ttl_s
            or self._is_cooling(view, memory, index[broker])
        }
        return replace(memory, shed_at_s=kept)

    def _underloaded(self, view: ClusterView, row: int, most: int, mean: float) -> bool:
        brokers = view.brokers
        multiplier = min(_LEAST_MULTIPLIER, max(0.0, self.target_std / 2.0))
        return bool(
            brokers.load_ema[row] < mean * multiplier
            or brokers.bytes_ema[row] < brokers.bytes_ema[most] * multiplier
        )

    def _overloaded(self, view: ClusterView, row: int, mean: float) -> bool:
        load = float(view.brokers.load_ema[row])
        return load > self.overloaded and load > mean + self.target_std

    def _even_out(
        self, view: ClusterView, memory: Memory, order: list[int], spread: Spread
    ) -> Shed:
        load, names = view.brokers.load_ema, view.brokers.names
        count = int(np.count_nonzero(view.age_s <= self.load_ttl_s))
        square_sum = float((load[view.age_s <= self.load_ttl_s] ** 2).sum())
        offers: list[Offer] = []
        refusals: list[Refusal] = []
        lowest, highest, pairs, std = 0, len(order) - 1, 0, spread.std
        while pairs < self.brokers_per_round and lowest < highest:
            most, least = order[highest], order[lowest]
            cause = self._cause(view, least, most, Spread(spread.mean, std))
            if cause is None:
                break
            highest -= 1
            offload = Offload.between(self, view, most, least, cause)
            if isinstance(offload, Refusal):
                refusals.append(offload)
                continue
            offload.run()
            if not offload.out_bytes_per_s > 0:
                refusals.append(Refusal(names[most], Reason.TOO_FEW_BUNDLES, "none may move"))
                continue
            offers += offload.offers
            moved = offload.moved_load()
            high, low = float(load[most]), float(load[least])
            square_sum -= high * high + low * low
            square_sum += max(0.0, high - moved) ** 2 + (low + moved) ** 2
            std = math.sqrt(abs(square_sum / count - spread.mean * spread.mean))
            pairs += 1
            lowest += 1
        if offers:
            memory = replace(memory, rounds_over=0)
        else:
            refusals.insert(0, Refusal("", _why_nothing(refusals)))
        return Shed(tuple(offers), tuple(refusals), memory, spread)

    def _cause(self, view: ClusterView, least: int, most: int, spread: Spread) -> Cause | None:
        if spread.std > self.target_std:
            return Cause.OVERLOADED
        if self._underloaded(view, least, most, spread.mean):
            return Cause.UNDERLOADED
        if self._overloaded(view, most, spread.mean):
            return Cause.OVERLOADED
        return None


def _why_nothing(refusals: list[Refusal]) -> Reason:
    reasons = {refusal.reason for refusal in refusals}
    for reason in (Reason.LOAD_UNKNOWN, Reason.TOO_FEW_BUNDLES):
        if reason in reasons:
            return reason
    return Reason.HITS_PENDING

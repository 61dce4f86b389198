"""One observation of a cluster: the distribution of its traffic, and the proposed changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.splitting import SplitProposal, proposed_splits
from loadmanager.attach.strategy import (
    Chosen,
    GreedyRate,
    Look,
    Strategy,
)
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.even_rates import CLOSE_ENOUGH, GREEDY_RATE, RatePlan
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.plan import Cause, Refusal
from loadmanager.core.reason_texts import REASONS
from loadmanager.core.wire.policies import isolation_to_json

GREEDY: Final = GreedyRate()
_PULSARS_OWN: Final = ("pulsar/system", "public/functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits on what is proposed.

    Attributes:
        exclude: patterns of namespaces (``tenant/name``, with ``*``) that are left alone.
        move_non_persistent: whether bundles with non-persistent topics may move, which loses
            the messages in flight.
        most_moves: the most moves proposed in one round.
        move_partial: whether a bundle may move if one of its topics was loaded within the
            window, so that its rates are lower bounds.
        split: whether bundles that are too large to even out by moves may be split.
        place_new: whether bundles of new namespaces are placed before their first lookup.
    """

    exclude: tuple[str, ...] = ()
    move_non_persistent: bool = False
    most_moves: int = 20
    move_partial: bool = True
    split: bool = False
    place_new: bool = False

    def why_stays(self, bundle: BundleId, traffic: BundleTraffic) -> str:
        """Return why a bundle is never moved, "" if it may be."""
        namespace = namespace_of(bundle)
        non_persistent = traffic.non_persistent and not self.move_non_persistent
        excluded = any(fnmatchcase(namespace, pattern) for pattern in self.exclude)
        reasons = (
            (belongs_to_a_broker(bundle), "belongs to its broker"),
            (namespace in _PULSARS_OWN, f"{namespace} is Pulsar's own"),
            (traffic.internal, f"holds {traffic.internal}, a topic of Pulsar's own services"),
            (non_persistent, "has non-persistent topics, which lose messages when they move"),
            (excluded, f"{namespace} is excluded"),
            (
                traffic.partial and not self.move_partial,
                "a topic was loaded within the window: its rates are not known yet",
            ),
        )
        return next((why for applies, why in reasons if applies), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One proposed move; ``cause`` is why the strategy chose it.

    ``weighed`` describes the benefit and cost that were compared, "" if the strategy compares
    none.
    """

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    msgs_per_s: float
    bytes_per_s: float
    max_over_mean: float
    strategy: str = GREEDY_RATE
    cause: Cause = Cause.IMBALANCE
    weighed: str = ""

    def reason(self) -> str:
        """Return why, in one line."""
        why = f"{self.source} is fullest"
        if self.strategy != GREEDY_RATE:
            why = f"{self.strategy} takes it off {self.source} ({self.cause})"
        return (
            f"{why}; {self.msgs_per_s:,.0f} msg/s go to {self.target}, "
            f"then the fullest broker has {self.max_over_mean:.2f} times the mean"
            f"{f'; {self.weighed}' if self.weighed else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProposal:
    """A bundle of a new namespace that no broker serves, and the broker that is to serve it."""

    bundle: BundleId
    target: BrokerId

    def reason(self) -> str:
        """Return why, in one line."""
        return f"its namespace is new; {self.target} has the fewest of its bundles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One observation of a cluster.

    Attributes:
        cluster: as it was discovered.
        samples: of each broker that could be read twice.
        missing: why the others have no sample; no bundle moves to or from them.
        plan: None if no bundle has traffic.
        proposals: the proposed moves, in order.
        staying: bundles with traffic that never move, with the reason.
        splits: proposed splits, which precede the moves because moves are not enough.
        strategy: the name of the strategy that chose the moves.
        refusals: the strategy's reasons for leaving other bundles and brokers alone.
        still: all bundles that never move, including those without traffic.
        placements: proposed placements of bundles that no broker serves yet.
    """

    cluster: PulsarCluster
    samples: Mapping[BrokerId, BrokerSample]
    missing: Mapping[BrokerId, str]
    plan: RatePlan | None
    proposals: tuple[Proposal, ...]
    staying: Mapping[BundleId, str]
    splits: tuple[SplitProposal, ...] = ()
    strategy: str = GREEDY_RATE
    refusals: tuple[Refusal, ...] = ()
    still: frozenset[BundleId] = frozenset()
    placements: tuple[PlacementProposal, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every broker has a sample, and every topic was loaded for the whole window."""
        bundles = (one for sample in self.samples.values() for one in sample.bundles.values())
        return not self.missing and not any(one.partial for one in bundles)

    @property
    def verdict(self) -> str:
        """The balance of the cluster, in one sentence."""
        if self.plan is None:
            why = "no traffic was counted" if self.samples else "no broker has figures"
            return f"nothing to judge yet: {why}"
        if not self.proposals:
            return f"nothing would be moved: {self._why_nothing(self.plan)}"
        count = len(self.proposals)
        return (
            f"{count} {'move' if count == 1 else 'moves'} would bring the fullest broker from "
            f"{self.plan.max_over_mean:.2f} to {self.plan.planned_max_over_mean:.2f} "
            "times the mean"
        )

    def _why_nothing(self, plan: RatePlan) -> str:
        if self.strategy == GREEDY_RATE:
            even = plan.max_over_mean <= 1.0 + CLOSE_ENOUGH
            return "it is even" if even else "no move that is allowed makes it better"
        whole = next((one for one in self.refusals if not one.subject), None)
        if whole is None:
            return f"{self.strategy} chooses no move"
        return f"{self.strategy}: {refusal_text(whole)}"


def refusal_text(refusal: Refusal) -> str:
    """Return a refusal as text."""
    detail = f" ({refusal.detail})" if refusal.detail else ""
    return f"{REASONS[refusal.reason].meaning.removesuffix('.')}{detail}"


def observe(
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
    missing: Mapping[BrokerId, str],
    rules: Rules,
    grouped: Collection[Namespace] = (),
    *,
    strategy: Strategy = GREEDY,
) -> Observation:
    """Return the observation of these samples; brokers without a sample are left out.

    Bundles of ``grouped`` namespaces do not move, because those have an anti-affinity group.
    """
    rows = tuple(
        (bundle, broker, traffic)
        for broker, sample in samples.items()
        for bundle, traffic in sample.bundles.items()
    )
    stays = {
        bundle: why for bundle, _, traffic in rows if (why := rules.why_stays(bundle, traffic))
    }
    for bundle, *_ in rows:
        if namespace_of(bundle) in grouped:
            stays.setdefault(bundle, "its namespace has an anti-affinity group")
    busy = {bundle for bundle, _, traffic in rows if traffic.msgs_per_s > 0}
    staying = {bundle: why for bundle, why in stays.items() if bundle in busy}
    seen = Observation(
        cluster=cluster,
        samples=samples,
        missing=missing,
        plan=None,
        proposals=(),
        staying=staying,
        strategy=strategy.name,
        still=frozenset(stays),
    )
    if not busy:
        return seen
    look = Look(
        cluster=cluster, samples=samples, rows=rows, stays=stays, most_moves=rules.most_moves
    )
    chosen = strategy.choose(look)
    return replace(
        seen,
        plan=chosen.plan,
        proposals=_proposals(look, chosen, strategy.name),
        splits=_splits(look, chosen, strategy) if rules.split else (),
        refusals=chosen.refusals,
    )


def _proposals(look: Look, chosen: Chosen, strategy: str) -> tuple[Proposal, ...]:
    brokers = look.brokers
    return tuple(
        Proposal(
            bundle=look.rows[move.bundle][0],
            source=brokers[move.source],
            target=brokers[move.target],
            msgs_per_s=look.rows[move.bundle][2].msgs_per_s,
            bytes_per_s=look.rows[move.bundle][2].bytes_per_s,
            max_over_mean=move.max_over_mean,
            strategy=strategy,
            cause=cause,
            weighed=weighed,
        )
        for move, cause, weighed in zip(
            chosen.plan.moves, chosen.causes, chosen.weighed, strict=True
        )
    )


def _splits(look: Look, chosen: Chosen, strategy: Strategy) -> tuple[SplitProposal, ...]:
    """Return the splits; by the moves of `GREEDY`, whichever strategy chose the moves."""
    plan = chosen.plan if strategy.name == GREEDY_RATE else GREEDY.choose(look).plan
    return proposed_splits(look.samples, look.stays, plan)


def document(
    seen: Observation, *, requests: int, answer_bytes: int, traffic: bool = False
) -> dict[str, Any]:
    """Return an observation as the JSON object that ``attach --json`` prints.

    With ``traffic`` it also has the isolation policies and, for each broker, the traffic of each
    of its bundles in columns, which `attach.what_if` reads.
    """
    plan = seen.plan
    return {
        "cluster": seen.cluster.name,
        "version": seen.cluster.version,
        "manager": seen.cluster.manager,
        "balancer": {str(name): dict(one) for name, one in seen.cluster.settings.items()},
        "strategy": seen.strategy,
        "verdict": seen.verdict,
        "whole": seen.whole,
        "maxOverMean": plan and plan.max_over_mean,
        "plannedMaxOverMean": plan and plan.planned_max_over_mean,
        "leastMaxOverMean": plan and plan.least_max_over_mean,
        "brokers": [
            {**_broker(name, sample), **({"traffic": _traffic(sample)} if traffic else {})}
            for name, sample in seen.samples.items()
        ],
        "missing": dict(seen.missing),
        "proposals": [
            {
                "bundle": one.bundle,
                "source": one.source,
                "target": one.target,
                "msgsPerS": one.msgs_per_s,
                "bytesPerS": one.bytes_per_s,
                "maxOverMean": one.max_over_mean,
                "cause": one.cause.value,
                "weighed": one.weighed,
                "reason": one.reason(),
            }
            for one in seen.proposals
        ],
        "refusals": [
            {"about": one.subject, "reason": one.reason.value, "detail": one.detail}
            for one in seen.refusals
        ],
        "splits": [
            {"bundle": one.bundle, "broker": one.broker, "cut": one.cut, "reason": one.reason()}
            for one in seen.splits
        ],
        "placements": [
            {"bundle": one.bundle, "target": one.target, "reason": one.reason()}
            for one in seen.placements
        ],
        "staying": dict(seen.staying),
        **({"isolation": _isolation(seen.cluster)} if traffic else {}),
        "cost": {"requests": requests, "answerBytes": answer_bytes},
    }


def _isolation(cluster: PulsarCluster) -> dict[str, Any]:
    return {name: isolation_to_json(one) for name, one in cluster.isolation.isolation.items()}


def _broker(name: BrokerId, sample: BrokerSample) -> dict[str, Any]:
    traffic = sample.bundles.values()
    return {
        "broker": name,
        "windowS": sample.window_s,
        "bundles": len(sample.bundles),
        "topics": sum(one.topics for one in traffic),
        "msgsInPerS": sum(one.msgs_in_per_s for one in traffic),
        "msgsOutPerS": sum(one.msgs_out_per_s for one in traffic),
        "bytesInPerS": sum(one.bytes_in_per_s for one in traffic),
        "bytesOutPerS": sum(one.bytes_out_per_s for one in traffic),
        "cpuCores": sample.cpu_cores,
        "usagePercent": dict(sample.usages),
        "homelessTopics": sample.homeless_topics,
    }


def _traffic(sample: BrokerSample) -> dict[str, Any]:
    every = sample.bundles.values()
    return {
        "bundle": list(sample.bundles),
        "topics": [one.topics for one in every],
        "msgsInPerS": [one.msgs_in_per_s for one in every],
        "msgsOutPerS": [one.msgs_out_per_s for one in every],
        "bytesInPerS": [one.bytes_in_per_s for one in every],
        "bytesOutPerS": [one.bytes_out_per_s for one in every],
    }

"""One look at a cluster: how its traffic lies, how it could lie, and what would be moved."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.splitting import SplitProposal, proposed_splits
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.even_rates import CLOSE_ENOUGH, RatePlan, plan_even_rates
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.policies import IsolationPolicy, open_to

_PULSARS_OWN: Final = ("pulsar/system", "public/functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is never proposed.

    Attributes:
        exclude: patterns of namespaces (``tenant/name``, with ``*``) that stay where they are.
        move_non_persistent: whether bundles with non-persistent topics may move, which loses
            the messages that are under way.
        most_moves: proposed at once.
        move_partial: whether bundles may move of which a topic was loaded within the window, so
            that their rates are lower bounds.
        split: whether bundles may be cut that are too large to even out by moves.
    """

    exclude: tuple[str, ...] = ()
    move_non_persistent: bool = False
    most_moves: int = 20
    move_partial: bool = True
    split: bool = False

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
    """One move that would be made."""

    bundle: BundleId
    source: BrokerId
    target: BrokerId
    msgs_per_s: float
    bytes_per_s: float
    max_over_mean: float

    def reason(self) -> str:
        """Return why, in one line."""
        return (
            f"{self.source} is fullest; {self.msgs_per_s:,.0f} msg/s go to {self.target}, "
            f"then the fullest broker has {self.max_over_mean:.2f} times the mean"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at a cluster.

    Attributes:
        cluster: as it was discovered.
        samples: of each broker that could be read twice.
        missing: why the others have no sample; they neither give nor take.
        plan: None where no broker has a sample or nothing has traffic.
        proposals: what would be moved, in order.
        staying: bundles with traffic that never move, with the reason.
        splits: what would be cut first, because moves are not enough.
    """

    cluster: PulsarCluster
    samples: Mapping[BrokerId, BrokerSample]
    missing: Mapping[BrokerId, str]
    plan: RatePlan | None
    proposals: tuple[Proposal, ...]
    staying: Mapping[BundleId, str]
    splits: tuple[SplitProposal, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every broker was seen, and every topic over the whole window."""
        bundles = (one for sample in self.samples.values() for one in sample.bundles.values())
        return not self.missing and not any(one.partial for one in bundles)

    @property
    def verdict(self) -> str:
        """How even it is, in one sentence."""
        if self.plan is None:
            return "nothing to judge yet: no traffic was counted"
        if not self.proposals:
            even = self.plan.max_over_mean <= 1.0 + CLOSE_ENOUGH
            why = "it is even" if even else "no move that is allowed makes it better"
            return f"nothing would be moved: {why}"
        count = len(self.proposals)
        return (
            f"{count} {'move' if count == 1 else 'moves'} would bring the fullest broker from "
            f"{self.plan.max_over_mean:.2f} to {self.plan.planned_max_over_mean:.2f} "
            "times the mean"
        )


def observe(
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
    missing: Mapping[BrokerId, str],
    rules: Rules,
    grouped: Collection[Namespace] = (),
) -> Observation:
    """Return what a look shows; a broker without a sample counts for nothing.

    Bundles of ``grouped`` namespaces stay, because those have an anti-affinity group.
    """
    brokers = tuple(samples)
    rows = [
        (bundle, broker, traffic)
        for broker, sample in samples.items()
        for bundle, traffic in sample.bundles.items()
    ]
    stays = {
        bundle: why for bundle, _, traffic in rows if (why := rules.why_stays(bundle, traffic))
    }
    for bundle, *_ in rows:
        if namespace_of(bundle) in grouped:
            stays.setdefault(bundle, "its namespace has an anti-affinity group")
    plan = _plan(cluster, rows, brokers, stays.keys(), rules.most_moves) if rows else None
    if plan is not None and not any(traffic.msgs_per_s for *_, traffic in rows):
        plan = None
    proposals = tuple(
        Proposal(
            bundle=rows[move.bundle][0],
            source=brokers[move.source],
            target=brokers[move.target],
            msgs_per_s=rows[move.bundle][2].msgs_per_s,
            bytes_per_s=rows[move.bundle][2].bytes_per_s,
            max_over_mean=move.max_over_mean,
        )
        for move in (plan.moves if plan else ())
    )
    busy = {bundle for bundle, _, traffic in rows if traffic.msgs_per_s > 0}
    return Observation(
        cluster=cluster,
        samples=samples,
        missing=missing,
        plan=plan,
        proposals=proposals,
        staying={bundle: why for bundle, why in stays.items() if bundle in busy},
        splits=proposed_splits(samples, stays.keys(), plan) if plan and rules.split else (),
    )


def _plan(
    cluster: PulsarCluster,
    rows: list[tuple[BundleId, BrokerId, BundleTraffic]],
    brokers: tuple[BrokerId, ...],
    stays: Collection[BundleId],
    most_moves: int,
) -> RatePlan:
    place = {broker: number for number, broker in enumerate(brokers)}
    kinds: dict[IsolationPolicy | None, int] = {}
    governing = cluster.isolation.governing
    kind = [kinds.setdefault(governing(namespace_of(one)), len(kinds)) for one, *_ in rows]
    return plan_even_rates(
        np.array([(one.msgs_per_s, one.bytes_per_s) for *_, one in rows], dtype=float),
        np.array([place[broker] for _, broker, _ in rows], dtype=np.intp),
        len(place),
        movable=np.array([bundle not in stays for bundle, *_ in rows], dtype=bool),
        kind=np.array(kind, dtype=np.intp),
        gives=np.ones(len(place), dtype=bool),
        takes=np.array([open_to(cluster.isolation, policy, brokers) for policy in kinds]),
        most_moves=most_moves,
    )


def document(
    seen: Observation, *, requests: int, answer_bytes: int, traffic: bool = False
) -> dict[str, Any]:
    """Return an observation as the JSON object that ``attach --json`` prints.

    With ``traffic`` brokers tell that of each of their bundles, in columns.
    """
    plan = seen.plan
    return {
        "cluster": seen.cluster.name,
        "version": seen.cluster.version,
        "manager": seen.cluster.manager,
        "balancer": {str(name): dict(one) for name, one in seen.cluster.settings.items()},
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
                "reason": one.reason(),
            }
            for one in seen.proposals
        ],
        "splits": [
            {"bundle": one.bundle, "broker": one.broker, "cut": one.cut, "reason": one.reason()}
            for one in seen.splits
        ],
        "staying": dict(seen.staying),
        "cost": {"requests": requests, "answerBytes": answer_bytes},
    }


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

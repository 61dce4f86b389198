from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic.alias_generators import to_camel

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.strategy import (
    ChosenMoves,
    GreedyRate,
    Strategy,
    StrategyInput,
)
from loadmanager.attach.tasks import Proposal
from loadmanager.core.bundle_task import TaskKind
from loadmanager.core.bundle_traffic import BundleTraffic, topics_in
from loadmanager.core.even_rates import CLOSE_ENOUGH, GREEDY_RATE, RatePlan
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    range_of,
)
from loadmanager.core.plan import Cause, Refusal
from loadmanager.core.rate_splits import evenest_cut, worth_cutting
from loadmanager.core.rates import total
from loadmanager.core.reason_texts import REASONS
from loadmanager.core.wire.policies import isolation_to_json


def proposed_splits(
    samples: Mapping[BrokerId, BrokerSample], stays: Collection[BundleId], plan: RatePlan
) -> tuple[Proposal, ...]:
    whole = total([sample.total for sample in samples.values()])
    msgs, size = (rate / max(len(samples), 1) for rate in (whole.msgs_per_s, whole.bytes_per_s))
    found: list[tuple[float, Proposal]] = []
    for broker, sample in samples.items():
        for bundle, one in sample.bundles.items():
            share = max(_share(one.msgs_per_s, msgs), _share(one.bytes_per_s, size))
            if bundle in stays or not worth_cutting(share, plan.planned_max_over_mean):
                continue
            cut = evenest_cut(range_of(bundle)[1], topic_loads(sample, bundle, msgs, size))
            if cut is None:
                continue
            reason = f"it has {share:.2f} times the mean of a broker, and moves alone do not "
            proposal = Proposal(
                kind=TaskKind.SPLIT,
                bundle=bundle,
                source=broker,
                target=broker,
                cause=Cause.OVERSIZED,
                reason=f"{reason}even out the load",
                cut=cut,
            )
            found.append((share, proposal))
    found.sort(key=lambda one: (-one[0], one[1].bundle))
    return tuple(proposal for _, proposal in found)


def topic_loads(
    sample: BrokerSample, bundle: BundleId, msgs: float, size: float
) -> Iterator[tuple[int, float]]:
    """Yield hash position and load of each topic in a bundle, relative to ``msgs`` and ``size``."""
    for name, _, at in topics_in(bundle, sample.topics):
        rates = sample.topics[name]
        yield at, _share(rates.msgs_per_s, msgs) + _share(rates.bytes_per_s, size)


def _share(value: float, mean: float) -> float:
    return value / mean if mean > 0 else 0.0


GREEDY: Final = GreedyRate()
_RATES: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
_PULSARS_OWN: Final = ("pulsar/system", "public/functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits on what is proposed.

    ``exclude`` are patterns of namespaces (``tenant/name``, with ``*``) that are left alone. Moves
    of bundles with non-persistent topics lose the messages in flight. With ``move_partial`` a
    bundle may move if one of its topics was loaded within the window, so that its rates are lower
    bounds. With ``place_new`` bundles of new namespaces are placed before their first lookup.
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
class Observation:
    """One observation of a cluster.

    No bundle moves to or from the brokers in ``missing``, which are without sample. Splits precede
    the moves, because moves are not enough. ``plan`` is None if no bundle has traffic; ``staying``
    are the bundles with traffic that never move, with the reason, ``still`` also those without.
    """

    cluster: PulsarCluster
    samples: Mapping[BrokerId, BrokerSample]
    missing: Mapping[BrokerId, str]
    plan: RatePlan | None
    proposals: tuple[Proposal, ...]
    staying: Mapping[BundleId, str]
    splits: tuple[Proposal, ...] = ()
    strategy: str = GREEDY_RATE
    refusals: tuple[Refusal, ...] = ()
    still: frozenset[BundleId] = frozenset()
    placements: tuple[Proposal, ...] = ()

    @property
    def whole(self) -> bool:
        bundles = (one for sample in self.samples.values() for one in sample.bundles.values())
        return not self.missing and not any(one.partial for one in bundles)

    @property
    def verdict(self) -> str:
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
    given = StrategyInput(
        cluster=cluster, samples=samples, rows=rows, stays=stays, most_moves=rules.most_moves
    )
    chosen = strategy.choose(given)
    return replace(
        seen,
        plan=chosen.plan,
        proposals=_proposals(given, chosen, strategy.name),
        splits=_splits(given, chosen, strategy) if rules.split else (),
        refusals=chosen.refusals,
    )


def _proposals(given: StrategyInput, chosen: ChosenMoves, strategy: str) -> tuple[Proposal, ...]:
    found = []
    for move in chosen.plan.moves:
        bundle, _, traffic = given.rows[move.bundle]
        source, target = given.brokers[move.source], given.brokers[move.target]
        cause = chosen.causes.get(bundle, Cause.IMBALANCE)
        weighed = chosen.weighed.get(bundle, "")
        why = f"{source} is fullest"
        if strategy != GREEDY_RATE:
            why = f"{strategy} takes it off {source} ({cause})"
        reason = (
            f"{why}; {traffic.msgs_per_s:,.0f} msg/s go to {target}, "
            f"then the fullest broker has {move.max_over_mean:.2f} times the mean"
            f"{f'; {weighed}' if weighed else ''}"
        )
        found.append(
            Proposal(
                kind=TaskKind.MOVE,
                bundle=bundle,
                source=source,
                target=target,
                cause=cause,
                reason=reason,
                msgs_per_s=traffic.msgs_per_s,
                bytes_per_s=traffic.bytes_per_s,
                max_over_mean=move.max_over_mean,
                weighed=weighed,
            )
        )
    return tuple(found)


def _splits(given: StrategyInput, chosen: ChosenMoves, strategy: Strategy) -> tuple[Proposal, ...]:
    """Return the splits; by the moves of `GREEDY`, whichever strategy chose the moves."""
    plan = chosen.plan if strategy.name == GREEDY_RATE else GREEDY.choose(given).plan
    return proposed_splits(given.samples, given.stays, plan)


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
                **_fields(one, "bundle", "source", "target", "msgs_per_s", "bytes_per_s"),
                **_fields(one, "max_over_mean", "weighed", "reason"),
                "cause": one.cause.value,
            }
            for one in seen.proposals
        ],
        "refusals": [
            {"about": one.subject, "reason": one.reason.value, "detail": one.detail}
            for one in seen.refusals
        ],
        "splits": [
            {"broker": one.target, **_fields(one, "bundle", "cut", "reason")} for one in seen.splits
        ],
        "placements": [_fields(one, "bundle", "target", "reason") for one in seen.placements],
        "staying": dict(seen.staying),
        **({"isolation": _isolation(seen.cluster)} if traffic else {}),
        "cost": {"requests": requests, "answerBytes": answer_bytes},
    }


def _fields(one: object, *names: str) -> dict[str, Any]:
    return {to_camel(name): getattr(one, name) for name in names}


def _isolation(cluster: PulsarCluster) -> dict[str, Any]:
    return {name: isolation_to_json(one) for name, one in cluster.isolation.isolation.items()}


def _broker(name: BrokerId, sample: BrokerSample) -> dict[str, Any]:
    return {
        "broker": name,
        "windowS": sample.window_s,
        "bundles": len(sample.bundles),
        "topics": sample.topics_in_bundles,
        **_fields(sample.total, *_RATES),
        "cpuCores": sample.cpu_cores,
        "usagePercent": dict(sample.usages),
        "homelessTopics": sample.homeless_topics,
    }


def _traffic(sample: BrokerSample) -> dict[str, Any]:
    every = sample.bundles.values()
    columns = {
        to_camel(name): [getattr(one, name) for one in every] for name in ("topics", *_RATES)
    }
    return {"bundle": list(sample.bundles), **columns}

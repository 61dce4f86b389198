from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from pydantic.alias_generators import to_camel

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind, TaskState, task_of
from loadmanager.core.bundle_traffic import BundleTraffic, placed
from loadmanager.core.duty_moves import Duties
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    range_of,
)
from loadmanager.core.joint.standing import QUIET, TOLERANCE
from loadmanager.core.max_over_mean import RatePlan, best_split_point, rate_plan, worth_cutting
from loadmanager.core.memory import RoundMemory
from loadmanager.core.move_limits import HeldReason
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause, Move, Refusal, cut_short
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import Decided, Playback
from loadmanager.core.policies import Policies
from loadmanager.core.rates import Rates, total
from loadmanager.core.shedding.contract import Shedder
from loadmanager.core.shedding.joint import JointShedder
from loadmanager.core.wire.policies import isolation_to_json
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.moves import CUT_AT, cut_of
from loadmanager.pulsar.sampling import BrokerSample, Hosts, SampledLoads, Samples


def proposed_splits(
    samples: Mapping[BrokerId, BrokerSample], stays: Collection[BundleId]
) -> tuple[BundleTask, ...]:
    least = rate_plan({at: one.bundles for at, one in samples.items()}).least_max_over_mean
    whole = total([sample.total for sample in samples.values()])
    msgs, size = (rate / max(len(samples), 1) for rate in (whole.msgs_per_s, whole.bytes_per_s))
    found: list[tuple[float, BundleTask]] = []
    for broker, sample in samples.items():
        shares = {
            bundle: max(_share(one.msgs_per_s, msgs), _share(one.bytes_per_s, size))
            for bundle, one in sample.bundles.items()
            if bundle not in stays
        }
        large = {one: share for one, share in shares.items() if worth_cutting(share, least)}
        for bundle, loads in topic_loads(sample, large, msgs, size).items():
            share, cut = large[bundle], best_split_point(range_of(bundle)[1], loads)
            if cut is None:
                continue
            reason = f"it has {share:.2f} times the mean of a broker, and moves alone do not "
            reason += "even out the load"
            task = task_of(
                *(Move(bundle, broker, broker, Cause.OVERSIZED), AskedBy.BALANCING),
                planned={bundle: broker},
                splits={bundle: SplitOrder(CUT_AT, (cut,))},
                reason=reason,
            )
            found.append((share, task))
    found.sort(key=lambda one: (-one[0], one[1].bundle))
    return tuple(task for _, task in found)


def topic_loads(
    sample: BrokerSample, bundles: Collection[BundleId], msgs: float, size: float
) -> dict[BundleId, list[tuple[int, float]]]:
    """Return hash position and load of each topic of bundles, relative to ``msgs`` and ``size``."""
    found: dict[BundleId, list[tuple[int, float]]] = {bundle: [] for bundle in bundles}
    for name, _, at, bundle in placed(bundles, sample.topics) if bundles else ():
        if bundle is not None:
            rates = sample.topics[name]
            load = _share(rates.msgs_per_s, msgs) + _share(rates.bytes_per_s, size)
            found[bundle].append((at, load))
    return found


def _share(value: float, mean: float) -> float:
    return value / mean if mean > 0 else 0.0


_SEED: Final = 16
_SLACK_S: Final = 1e-3
_PAUSES: Final = 20
_LONGEST_PAUSE_S: Final = 60.0
_MEAN_S: Final = 60.0


@dataclass(slots=True)
class Strategy:
    """Chooses the moves of each round as the leader of sidecars does.

    ``loads`` has one sample of each bundle per window, and ``hosts`` reads host usage, None if the
    planner needs none. The joint strategy decides in each window, by rates until brokers' CPU
    says more, and by what the broker's process takes of its CPU in the same window. Where that is
    known only from what brokers measure once per interval, and for strategies that need it, a
    decision is made once per interval, and not before the measured period begins after the end of
    the last move. If it ``acts``, moves are made; otherwise the last ones are shown until it
    decides again. ``decided`` is the decision in this window, None without one.
    """

    name: str = "joint"
    planner: Planner = field(
        default_factory=lambda: Planner(
            shedder=JointShedder(), settings=PlannerSettings(settle_s=0.0)
        )
    )
    loads: SampledLoads = field(default_factory=lambda: SampledLoads("http://{}".format))
    hosts: Hosts | None = None
    acts: bool = True
    decided: Decided | None = None
    _memory: RoundMemory = field(default_factory=RoundMemory)
    _choice: Decided | None = None
    _last: Decided | None = None
    _rounds: int = 0
    _last_end_s: float = float("-inf")
    _under_way: set[BundleId] = field(default_factory=set)
    _pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PAUSES))

    @property
    def by_rates(self) -> bool:
        """Whether it can decide without any usage of hosts."""
        return self.hosts is None or isinstance(self.planner.shedder, JointShedder)

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Mapping[BrokerId, str]
    ) -> tuple[Samples, Mapping[BrokerId, str]]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises `LoadManagerError`: no broker reports all figures, now or soon.
        """
        unknown = {
            broker: one.host
            for broker, one in samples.items()
            if one.host is not None and one.host.unknown and not self.by_rates
        }
        why = "what it uses of its CPU is not known"
        whys = {broker: f"{why}: {one.unknown}" for broker, one in unknown.items()}
        never = len(unknown) == len(samples) and not any(one.pending for one in unknown.values())
        if samples and never and not self.loads.ticks:
            broker = next(iter(unknown))
            raise LoadManagerError(
                f"strategy {self.name} decides by brokers' usage and limit of CPU, and no broker "
                f"reports them (such as {broker}: {whys[broker]}); expected a strategy that needs "
                "none (joint, uniform), or --cores"
            )
        known = {broker: one for broker, one in samples.items() if broker not in unknown}
        self.decided = self._choice = None
        self.loads.take(cluster, known)
        return known, {**missing, **whys}

    def decide(
        self,
        cluster: PulsarCluster,
        samples: Samples,
        stays: Collection[BundleId],
        duties: Duties,
        *,
        eases: bool,
    ) -> Decided:
        """Return a round's decision; may be called more than once for the same samples."""
        every = [one for sample in samples.values() for one in sample.bundles.values()]
        busy = any(one.msgs_per_s > 0 for one in every)
        early = self._too_early(cluster, samples) if busy else "no traffic was counted"
        # Without moves the last decision is made again until the next is due.
        last = self._last if busy and early and not self.acts else None
        playback = Playback(
            replace(self.planner, shedder=self._on_windows(self.planner.shedder)),
            # Ties are broken alike however often a window is decided on.
            np.random.default_rng((_SEED, self._rounds - (last is not None))),
            self._memory if last is None else last.memory,
        )
        policies = replace(cluster.isolation, staying=frozenset(stays))
        rests = early if last is None else ""
        found = playback.round_with_duties(
            self.loads.view, policies, duties, rests=rests, eases=eases
        )
        self._choice = None if early else found
        return found

    def _on_windows(self, shedder: Shedder) -> Shedder:
        """Return a shedder for single windows, with the measured pauses in half seconds."""
        if not isinstance(shedder, JointShedder):
            return shedder
        pause_s = round(2 * median(self._pauses_s)) / 2 if self._pauses_s else 0.0
        pause_s = max(shedder.pause_s, min(pause_s, _LONGEST_PAUSE_S))
        return replace(shedder, pause_s=pause_s, mean_s=max(shedder.mean_s, _MEAN_S))

    def record_choice(self) -> None:
        self.decided = self._choice
        if self._choice is None:
            return
        self._rounds += 1
        self._last = self._choice
        self._memory = self._choice.plan.memory_before_orders(self._memory)

    def task(self, task: BundleTask) -> None:
        if task.cause is Cause.COUNT:
            return  # Without traffic it changes no host's figures.
        if task.pause is not None and task.pause_s is not None:
            self._pauses_s.append(task.pause_s)
        if task.state is TaskState.ORDERED:
            self._under_way.add(task.bundle)
            if self._last is not None and task.kind is TaskKind.MOVE:
                self._memory = self._last.plan.memory_after_orders(self._memory, {task.bundle})
        elif task.state.ended and task.bundle in self._under_way:
            self._under_way.discard(task.bundle)
            self._last_end_s = self.loads.monotonic_s()

    def _too_early(self, cluster: PulsarCluster, samples: Samples) -> str:
        # By rates it waits only where CPU counts, and brokers' own measurements alone show it.
        if self.by_rates and not any(
            one.host is not None
            and one.window_cpu is None
            and (cpu := one.host.usages.get("cpu")) is not None
            and (cpu.fraction or 0.0) >= QUIET
            for one in samples.values()
        ):
            return ""
        shows_since_s = min((one.shows_since_s for one in samples.values()), default=0.0)
        if shows_since_s < self._last_end_s:
            return "the figures of hosts began before the last move ended"
        every_s = cluster.host_interval_s if self.hosts is not None else 0.0
        decided_s = float("-inf") if self._last is None else self._last.view.now_s
        left_s = decided_s + every_s - self.loads.now_s
        if left_s > _SLACK_S:
            return (
                f"brokers measure their hosts every {every_s:g} s; "
                f"the next decision is in {left_s:.0f} s"
            )
        return ""


_RATES: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
_PULSARS_OWN: Final = (Namespace("pulsar/system"), Namespace("public/functions"))
_PARTIAL: Final = "a topic was loaded within the last windows: its rates are not known yet"
_GROUPED: Final = "its namespace has an anti-affinity group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits on what is proposed.

    ``exclude`` are patterns of namespaces (``tenant/name``, with ``*``) that are left alone. Moves
    of bundles with non-persistent topics lose the messages in flight. With ``move_partial`` a
    bundle may move if one of its topics was loaded within the window, so that its rates are lower
    bounds. With ``move_system`` bundles of Pulsar's own namespaces may move; ``pinned`` are the
    names, or their begins, of topics that others need whose bundles stay. With ``place_new``
    bundles of new namespaces are placed before their first lookup. No namespace is split into more
    than ``most_bundles`` bundles. A broker that is drained (``drains``) gives all but its own, what
    is excluded and what is pinned: once it stops, the clients of the rest are interrupted anyway.
    """

    exclude: tuple[str, ...] = ()
    move_non_persistent: bool = False
    most_moves: int = 20
    move_partial: bool = True
    split: bool = False
    place_new: bool = False
    move_system: bool = False
    pinned: tuple[str, ...] = ()
    most_bundles: int = 128
    drains: bool = False

    def why_stays(self, bundle: BundleId, traffic: BundleTraffic) -> str:
        """Return why a bundle is never moved, "" if it may be."""
        return next(self.reasons(bundle, traffic), ("", ""))[1]

    def reasons(self, bundle: BundleId, traffic: BundleTraffic) -> Iterator[tuple[str, str]]:
        """Yield what kind of bundle is never moved, and why."""
        namespace, needed = namespace_of(bundle), traffic.needed.rpartition("/")[2]
        if belongs_to_a_broker(bundle):
            yield "system", "belongs to its broker"
        if namespace in _PULSARS_OWN and not (self.move_system or self.drains):
            yield "system", f"{namespace} is Pulsar's own"
        if traffic.internal and not self.drains:
            yield "system", f"holds {traffic.internal}, a topic of Pulsar's own services"
        if traffic.non_persistent and not (self.move_non_persistent or self.drains):
            why = "has non-persistent topics, which lose messages when they move"
            yield "non-persistent", why
        if any(fnmatchcase(namespace, pattern) for pattern in self.exclude):
            yield "excluded", f"{namespace} is excluded"
        if needed and needed.startswith(self.pinned):
            yield "system", f"holds {traffic.needed}, which other topics of its namespace need"
        if traffic.partial and not (self.move_partial or self.drains):
            yield "partial", _PARTIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One observation of a cluster.

    No bundle moves to or from the brokers in ``missing``, which are without sample. Splits precede
    the moves, because moves are not enough. ``plan`` is None if no bundle has traffic; ``staying``
    are the bundles with traffic that never move, with the reason, and ``late`` those that move
    last; ``staying_rates`` are the rates of those that never move, by what kind they are of.
    ``holds`` is why nothing moves now, or not all that should; ``lost`` are brokers that have left.
    ``outlook`` is how full the fullest broker is after each move and all before it, and the
    benefit and cost of the move, "" if none are compared. ``twice`` are the bundles that more than
    one broker lists, with these brokers. ``leaving`` are the bundles that are left on each draining
    broker that is gone or has a sample, with the reason of those that will stay, "" for others.
    """

    cluster: PulsarCluster
    samples: Mapping[BrokerId, BrokerSample]
    missing: Mapping[BrokerId, str]
    plan: RatePlan | None
    proposals: tuple[BundleTask, ...]
    staying: Mapping[BundleId, str]
    splits: tuple[BundleTask, ...] = ()
    strategy: str = "joint"
    refusals: tuple[Refusal, ...] = ()
    placements: tuple[BundleTask, ...] = ()
    late: Mapping[BundleId, str] = field(default_factory=dict)
    holds: Mapping[HeldReason, str] = field(default_factory=dict)
    lost: tuple[BrokerId, ...] = ()
    staying_rates: Mapping[str, Rates] = field(default_factory=dict)
    outlook: Mapping[BundleId, tuple[float, str]] = field(default_factory=dict)
    twice: Mapping[BundleId, tuple[BrokerId, ...]] = field(default_factory=dict)
    leaving: Mapping[BrokerId, Mapping[BundleId, str]] = field(default_factory=dict)

    @property
    def shares(self) -> Mapping[str, float]:
        """The shares of the cluster's traffic that are ``counted`` and ``mayMove``.

        The others are why the rest is held. They are of bytes, or of messages if no bytes are.
        """
        samples = self.samples.values()
        lasting = total([one.total for one in samples])
        passing = total([one.passing for one in samples])
        away = total([rates for one in samples for rates in (one.homeless, one.homeless.passing)])
        by_bytes = total((lasting, passing, away)).bytes_per_s > 0

        def size(rates: Rates) -> float:
            return rates.bytes_per_s if by_bytes else rates.msgs_per_s

        counted = size(lasting) + size(passing)
        whole = counted + size(away)
        if whole <= 0:
            return {}
        held = {kind: size(rates) for kind, rates in self.staying_rates.items()}
        held["passing"] = size(passing)
        may_move = max(counted - sum(held.values()), 0.0)
        found = {"counted": counted, "mayMove": may_move, **held}
        return {name: one / whole for name, one in found.items()}

    @property
    def urgent(self) -> bool:
        """Whether moves may use the part of the budget that is kept for such times."""
        return bool(self.lost) or any(one.cause is Cause.DRAINING for one in self.proposals)

    @property
    def whole(self) -> bool:
        bundles = (one for sample in self.samples.values() for one in sample.bundles.values())
        return not self.missing and not any(one.partial for one in bundles)

    @property
    def verdict(self) -> str:
        return "; held: ".join((self._judged, *self.holds.values()))

    @property
    def _judged(self) -> str:
        if self.plan is None and self.proposals:
            return f"{len(self.proposals)} moves spread bundles without traffic"
        if self.plan is None:
            why = "no traffic was counted" if self.samples else "no broker has figures"
            return f"nothing to judge yet: {why}"
        if not self.proposals:
            why = "no move that is allowed is worth its price"
            if self.plan.max_over_mean <= TOLERANCE:
                why = "it is even"
            for one in [one for one in self.refusals if not one.subject][:1]:
                why = f"{self.strategy}: {refusal_text(one)}"
            return f"nothing would be moved: {why}; {self.coverage}"
        count = len(self.proposals)
        due = Counter(str(one.cause) for one in self.proposals if one.cause in _DUTIES)
        whys = f" ({', '.join(f'{n} by {cause}' for cause, n in due.items())})" if due else ""
        moves = f"{count} {'move' if count == 1 else 'moves'}{whys}"
        return (
            f"{moves} would bring the fullest broker from "
            f"{self.plan.max_over_mean:.2f} to {self.plan.planned_max_over_mean:.2f} "
            f"times the mean; {self.coverage}"
        )

    @property
    def coverage(self) -> str:
        shares = {name: round(100 * one) for name, one in self.shares.items()}
        held = [f"{name} {one} %" for name, one in shares.items() if one and name not in _SHARES]
        why = f" (held: {', '.join(held)})" if held else ""
        counted, may_move = (shares.get(name, 0) for name in _SHARES)
        of = " of the other brokers" if self.missing else ""
        text = f"{counted} % of the traffic{of} is counted, {may_move} % may move{why}"
        if repeated := [one for one in self.samples.values() if one.repeated_s]:
            longest_s = max(one.window_s + one.repeated_s for one in repeated)
            text += f"; {len(repeated)} brokers repeat pages: their rates are of {longest_s:.0f} s"
        return text


_SHARES: Final = ("counted", "mayMove")


def refusal_text(refusal: Refusal) -> str:
    detail = f" ({refusal.detail})" if refusal.detail else ""
    return f"{refusal.reason.meaning.removesuffix('.')}{detail}"


_NOTHING: Final[Mapping[Namespace, str]] = MappingProxyType({})
_DUTIES: Final = frozenset({Cause.DRAINING, Cause.ISOLATION, Cause.ANTI_AFFINITY, Cause.COUNT})
_NOWHERE: Final = "no broker that may serve it takes bundles"


def observe(
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
    missing: Mapping[BrokerId, str],
    rules: Rules,
    *,
    strategy: Strategy,
    unknown: Mapping[Namespace, str] = _NOTHING,
    idle: Collection[BundleId] = (),
) -> Observation:
    """Return the observation of these samples; brokers without a sample are left out.

    Bundles of namespaces that have an anti-affinity group do not move for traffic; those of
    ``unknown`` ones stay, for the reason given. ``idle`` bundles are spread by count, and those
    with topics that others need move late.
    """
    listing: dict[BundleId, tuple[BrokerId, ...]] = {}
    for broker, sample in samples.items():
        for bundle in sample.bundles:
            listing[bundle] = (*listing.get(bundle, ()), broker)
    twice = {bundle: brokers for bundle, brokers in listing.items() if len(brokers) > 1}
    stays, late, held, rates = _staying(cluster, samples, rules, twice, unknown)
    owned = {broker: sample.bundles for broker, sample in samples.items()}
    every = {bundle: one for bundles in owned.values() for bundle, one in bundles.items()}
    busy = {bundle for bundle, one in every.items() if one.msgs_per_s > 0}
    splits = proposed_splits(samples, stays) if rules.split else ()
    splits = tuple(one for one in splits if one.target not in cluster.draining)
    duties = Duties(
        registered=cluster.brokers,
        most=rules.most_moves,
        held=held,
        idle=idle,
        late=late,
        apart=_PULSARS_OWN,
        cordoned=cluster.cordoned,
        draining=cluster.draining,
    )
    decided = strategy.decide(cluster, samples, stays, duties, eases=not splits)
    plan, cut = rate_plan(owned, decided.moves), cut_short(decided.plan.refusals)
    weigher = decided.planner.weigher(decided.view, decided.memory)
    whys = {
        move.bundle: weighing.describe_move(move.target)
        for move in decided.plan.moves
        if weigher and (weighing := weigher.weighing(move.source, move.bundle)) is not None
    }
    outlook = {
        move.bundle: (after, whys.get(move.bundle, ""))
        for move, after in zip(decided.moves, plan.after, strict=True)
    }
    return Observation(
        cluster=cluster,
        samples=samples,
        missing=missing,
        plan=plan if busy else None,
        proposals=tuple(
            _proposal(
                cluster.isolation, move, every[move.bundle], strategy.name, outlook[move.bundle]
            )
            for move in decided.moves
        ),
        staying={bundle: why for bundle, why in stays.items() if bundle in busy},
        splits=() if decided.urgent else splits,
        strategy=strategy.name,
        refusals=decided.plan.refusals if busy else (),
        late={bundle: why for bundle, why in late.items() if bundle in busy},
        holds={HeldReason.WORK: f"the round was cut short: {cut}"} if cut else {},
        staying_rates=rates,
        outlook=outlook,
        twice=twice,
        leaving=_leaving(
            cluster,
            samples,
            {bundle: stays[bundle] for bundle in held},
            {one.bundle for one in decided.moves},
            # In a full round others wait for their turn.
            "" if len(decided.moves) >= rules.most_moves else _NOWHERE,
        ),
    )


def _leaving(
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
    held: Mapping[BundleId, str],
    moving: Collection[BundleId],
    otherwise: str,
) -> dict[BrokerId, dict[BundleId, str]]:
    return {
        broker: {
            bundle: held.get(bundle, "" if bundle in moving else otherwise)
            for bundle in (samples[broker].bundles if broker in samples else ())
            if not belongs_to_a_broker(bundle)
        }
        for broker in sorted(cluster.draining)
        if broker in samples or broker not in cluster.brokers
    }


def _staying(
    cluster: PulsarCluster,
    samples: Mapping[BrokerId, BrokerSample],
    rules: Rules,
    twice: Mapping[BundleId, tuple[BrokerId, ...]],
    unknown: Mapping[Namespace, str],
) -> tuple[dict[BundleId, str], dict[BundleId, str], set[BundleId], dict[str, Rates]]:
    """Return why bundles stay, why they are late, those held from all moves, and kinds' rates."""
    stays: dict[BundleId, str] = {}
    late: dict[BundleId, str] = {}
    held: set[BundleId] = set()
    rates: dict[str, Rates] = {}
    drained = replace(rules, drains=True)
    for broker, bundle, traffic in (
        (broker, *one) for broker, sample in samples.items() for one in sample.bundles.items()
    ):
        namespace = namespace_of(bundle)
        of = drained if broker in cluster.draining else rules
        kind, why = next(of.reasons(bundle, traffic), ("", ""))
        if bundle in twice:
            kind, why = "listed twice", f"listed by {' and '.join(twice[bundle])}"
        elif namespace in unknown:
            kind, why = kind or "policies unknown", why or unknown[namespace]
        if why and (kind != "partial" or namespace in unknown):
            held.add(bundle)
        if namespace in cluster.isolation.anti_affinity and not why:
            kind, why = "anti-affinity", _GROUPED
        if why:
            stays[bundle] = why
            rates[kind] = total((rates.get(kind, Rates()), traffic))
        elif traffic.needed:
            late[bundle] = f"holds {traffic.needed}, which others need: it moves last"
    return stays, late, held, rates


def _proposal(
    policies: Policies,
    move: Move,
    traffic: BundleTraffic,
    strategy: str,
    outlook: tuple[float, str],
) -> BundleTask:
    (max_over_mean, weighed_by), source = outlook, move.source
    namespace = namespace_of(move.bundle)
    if move.cause is Cause.DRAINING:
        why = f"{source} is drained"
    elif move.cause is Cause.COUNT:
        why = f"{source} has the most bundles without traffic"
    elif move.cause is Cause.ANTI_AFFINITY:
        group = policies.anti_affinity[namespace]
        why = f"{source} serves other namespaces of the anti-affinity group {group}"
    elif move.cause is Cause.ISOLATION:
        governing = policies.governing(namespace)
        names = [name for name, one in policies.isolation.items() if governing in (None, one)]
        why = f"isolation policy {', '.join(sorted(names))} keeps it off {source}"
    else:
        why = f"{strategy} takes it off {source} ({move.cause})"
        if traffic.needed:
            why = f"{why}, and no bundle without topics that others need helps"
    reason = (
        f"{why}; {traffic.msgs_per_s:,.0f} msg/s go to {move.target}, "
        f"then the fullest broker has {max_over_mean:.2f} times the mean"
        f"{f'; {weighed_by}' if weighed_by else ''}"
    )
    # It is outdated once the bundle has left its source.
    planned = {move.bundle: move.source}
    influence = total((traffic,))
    return task_of(move, AskedBy.BALANCING, planned=planned, influence=influence, reason=reason)


def document(
    seen: Observation, *, requests: int, answer_bytes: int, traffic: bool = False
) -> dict[str, Any]:
    """Return an observation as the JSON object that ``attach --json`` prints.

    With ``traffic`` it also has the isolation policies and, for each broker, the traffic of each
    of its bundles in columns, which `pulsar.what_if` reads.
    """
    plan, policies = seen.plan, seen.cluster.isolation.isolation
    isolation = {name: isolation_to_json(one) for name, one in policies.items()}
    return {
        "cluster": seen.cluster.name,
        "version": seen.cluster.version,
        "manager": seen.cluster.manager,
        "balancer": {str(name): dict(one) for name, one in seen.cluster.settings.items()},
        "strategy": seen.strategy,
        "verdict": seen.verdict,
        "holds": {reason.value: why for reason, why in seen.holds.items()},
        "traffic": dict(seen.shares),
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
                **_fields(one, "bundle", "source", "target"),
                **_fields(one.influence or Rates(), "msgs_per_s", "bytes_per_s"),
                **dict(zip(("maxOverMean", "weighed"), seen.outlook[one.bundle], strict=True)),
                "reason": one.reason,
                "cause": one.cause.value,
            }
            for one in seen.proposals
        ],
        "refusals": [
            {"about": one.subject, "reason": one.reason.value, "detail": one.detail}
            for one in seen.refusals
        ],
        "splits": [
            {"broker": one.target, "cut": cut_of(one), **_fields(one, "bundle", "reason")}
            for one in seen.splits
        ],
        "placements": [_fields(one, "bundle", "target", "reason") for one in seen.placements],
        "staying": dict(seen.staying),
        "movingLast": dict(seen.late),
        "cordoned": sorted(seen.cluster.cordoned),
        "draining": {broker: dict(left) for broker, left in seen.leaving.items()},
        **({"isolation": isolation} if traffic else {}),
        "cost": {"requests": requests, "answerBytes": answer_bytes},
    }


def _fields(one: object, *names: str) -> dict[str, Any]:
    return {to_camel(name): getattr(one, name) for name in names}


def _broker(name: BrokerId, sample: BrokerSample) -> dict[str, Any]:
    return {
        "broker": name,
        "windowS": sample.window_s,
        "bundles": len(sample.bundles),
        "topics": sample.topics_in_bundles,
        **_fields(sample.total, *_RATES),
        "cpuCores": sample.cpu_cores,
        "usagePercent": dict(sample.usages),
        "passing": _fields(sample.passing, *_RATES),
        "homelessTopics": sample.homeless.topics,
        "repeatedS": sample.repeated_s,
    }


def _traffic(sample: BrokerSample) -> dict[str, Any]:
    every = sample.bundles.values()
    columns = {
        to_camel(name): [getattr(one, name) for one in every] for name in ("topics", *_RATES)
    }
    return {"bundle": list(sample.bundles), **columns}

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from loadmanager.core.bundle_task import BundleTask, TaskState
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker, namespace_of
from loadmanager.core.joint.weighing import Payback, Weighing
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode
from loadmanager.core.projection import loads, loads_with
from loadmanager.core.scores import FloatArray

_OPEN = frozenset({None, Reason.NO_IMPROVEMENT})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker considered for the bundle, with its score now and with the bundle.

    ``refused`` is why the broker may not or should not take the bundle, or None. ``payback`` is
    set if the strategy weighs moves itself.
    """

    broker: BrokerId
    score: float
    score_with: float
    refused: Reason | None
    payback: Payback | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The leader's state at the time of a request.

    ``refusals`` are those of the last round, None before the first round.
    """

    view: ClusterView
    planner: Planner
    memory: RoundMemory
    refusals: Mapping[str, Sequence[Refusal]] | None


def candidates_for(
    known: Known, bundle: BundleId, owner: BrokerId | None, weighing: Weighing | None
) -> tuple[Candidate, ...]:
    """Return every broker except the owner, best first, each with the reason against it."""
    view, planner = known.view, known.planner
    names = view.brokers.names
    scores = loads(view, planner.weights)
    rows = np.arange(len(names))
    cost = planner.costs(known.memory.shedder)
    usage = cost.elsewhere(view, bundle, owner, cost.usage(view, bundle, owner), rows)
    msgs_per_s = float(view.short_rates(bundle)[:2].sum())
    with_it = loads_with(view, planner.weights, rows, usage, msgs_per_s)
    refused: dict[str, Reason] = {
        refusal.subject: refusal.reason
        for refusal in planner.filters.eligible(view, bundle).refusals()
    }
    paybacks = {} if weighing is None else weighing.paybacks
    for name in (name for name, one in paybacks.items() if not one.worth_it):
        refused.setdefault(name, Reason.NO_IMPROVEMENT)
    if owner is not None and weighing is None and planner.settings.mode is Mode.SAFE:
        before = scores[view.row(owner)]
        for row in np.flatnonzero(with_it + planner.settings.margin > before).tolist():
            refused.setdefault(names[row], Reason.NO_IMPROVEMENT)
    found = [
        Candidate(
            name, float(scores[row]), float(with_it[row]), refused.get(name), paybacks.get(name)
        )
        for row, name in enumerate(names)
        if name != owner
    ]
    return tuple(sorted(found, key=_best_first))


def _best_first(one: Candidate) -> tuple[bool, float, float]:
    saving = 0.0 if one.payback is None else one.payback.saving
    return one.refused is not None, -saving, one.score_with


def why_kept(bundle: BundleId, candidates: Sequence[Candidate]) -> Refusal | None:
    """Return why the most valuable move is not made, with its figures.

    None if the strategy does not weigh moves itself.
    """
    weighed = [(one, one.payback) for one in candidates if one.payback is not None]
    if not weighed:
        return None
    open_to = [(one, paid) for one, paid in weighed if one.refused in _OPEN]
    if not open_to:
        reasons = Counter(one.refused for one, _ in weighed if one.refused is not None)
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return Refusal(bundle, Reason.NO_CANDIDATE, text)
    best, paid = max(open_to, key=lambda one: one[1].saving)
    detail = (
        f"to {best.broker}, {paid.use:.3f} of {paid.resource} and {paid.use_with:.3f} with it: "
        f"saves {paid.saving:.4f} and costs {paid.price:.4f}"
    )
    reason = Reason.NOT_OFFERED if paid.worth_it else Reason.NO_IMPROVEMENT
    return Refusal(bundle, reason, detail)


class Outcome(StrEnum):
    MOVED = "moved"
    OBSERVED = "observed"
    PLACED = "placed"
    LEFT_ALONE = "left_alone"


class Kind(StrEnum):
    MOVE = "move"
    OBSERVED = "observed"
    PLACEMENT = "placement"
    DRAIN = "drain"
    UNLOAD = "unload"
    LEFT_ALONE = "left_alone"


_KINDS: Final[Mapping[Cause | Reason, Kind]] = MappingProxyType(
    {Cause.UNOWNED: Kind.PLACEMENT, Cause.DRAINING: Kind.DRAIN, Cause.REQUESTED: Kind.UNLOAD}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision about one bundle, one broker, or, with an empty subject, one round.

    ``at_ms`` is on the leader's wall clock. ``round`` counts from 1 in each epoch and is
    0 for a bundle placed between two rounds. ``code`` is a `Cause` if a bundle moves. ``number``
    counts the decisions of one epoch; 0 if the decision was never recorded. ``task`` is the
    number of the bundle task that carries it out, 0 for none; ``task_state`` is the state of
    that task when the decision is read, None if it is no longer kept.
    """

    at_ms: int
    epoch: int
    round: int
    subject: str
    outcome: Outcome
    code: Cause | Reason
    detail: str = ""
    source: BrokerId | None = None
    target: BrokerId | None = None
    number: int = field(default=0, compare=False)
    task: int = field(default=0, compare=False)
    task_state: TaskState | None = field(default=None, compare=False)

    @property
    def kind(self) -> Kind:
        """The kind of decision; for a bundle without an owner a placement, whatever the cause."""
        if self.outcome is Outcome.LEFT_ALONE:
            return Kind.LEFT_ALONE
        if self.outcome is Outcome.OBSERVED:
            return Kind.OBSERVED
        if self.source is None:
            return Kind.PLACEMENT
        return _KINDS.get(self.code, Kind.MOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of the current state of one bundle or broker.

    ``owner`` is the broker that lists a bundle, ``target`` its next owner. ``score`` is the
    score of the bundle's owner or of the broker itself; ``mean``, ``highest`` and ``lowest`` are
    over all brokers. ``decisions`` are the last decisions about the subject, newest first;
    ``grounds`` are the reasons why it stays, most important first. ``bundles`` is the bundle
    count of a broker, 1 for a bundle. ``weighing`` is how the strategy weighs the subject, None
    if the strategy leaves this to the planner.
    """

    subject: str
    kind: Literal["bundle", "broker"]
    owner: BrokerId | None
    target: BrokerId | None
    msgs_per_s: float
    bytes_per_s: float
    bundles: int
    score: float | None
    mean: float
    highest: float
    lowest: float
    decisions: tuple[Decision, ...]
    grounds: tuple[Refusal, ...]
    candidates: tuple[Candidate, ...] = ()
    weighing: Weighing | None = None


def refusal_decision(refusal: Refusal, *, at_ms: int, epoch: int, number: int = 0) -> Decision:
    return Decision(
        at_ms=at_ms,
        epoch=epoch,
        round=number,
        subject=refusal.subject,
        outcome=Outcome.LEFT_ALONE,
        code=refusal.reason,
        detail=refusal.detail,
    )


def move_decision(
    move: Move | BundleTask, outcome: Outcome, *, at_ms: int, epoch: int, number: int = 0
) -> Decision:
    return Decision(
        at_ms=at_ms,
        epoch=epoch,
        round=number,
        subject=move.bundle,
        outcome=Outcome.PLACED if move.source is None else outcome,
        code=move.cause,
        source=move.source,
        target=move.target,
    )


def explain_bundle(known: Known, bundle: BundleId, decisions: Sequence[Decision]) -> Explanation:
    view = known.view
    owner = view.listed_owner(bundle)
    rates = view.short_rates(bundle)
    scores = loads(view, known.planner.weights)
    weighing = _weighing(known, owner, bundle)
    candidates = candidates_for(known, bundle, owner, weighing)
    return Explanation(
        subject=bundle,
        kind="bundle",
        owner=owner,
        target=view.moved.get(bundle),
        msgs_per_s=float(rates[:2].sum()),
        bytes_per_s=float(rates[2:].sum()),
        bundles=1,
        score=None if owner is None else float(scores[view.row(owner)]),
        mean=_mean(scores),
        highest=float(scores.max(initial=0.0)),
        lowest=float(scores.min()) if len(scores) else 0.0,
        decisions=tuple(decisions),
        grounds=_grounds_of_bundle(known, bundle, owner, candidates),
        candidates=candidates,
        weighing=weighing,
    )


def explain_broker(known: Known, broker: BrokerId, decisions: Sequence[Decision]) -> Explanation:
    """Raises `UnknownBroker`: the broker has no report."""
    view = known.view
    row = view.row(broker)
    scores = loads(view, known.planner.weights)
    weighing = _weighing(known, broker)
    return Explanation(
        subject=broker,
        kind="broker",
        owner=None,
        target=None,
        msgs_per_s=float(view.brokers.msgs_per_s[row]),
        bytes_per_s=float(view.brokers.bytes_per_s[row]),
        bundles=len(view.bundles_of(broker)),
        score=float(scores[row]),
        mean=_mean(scores),
        highest=float(scores.max()),
        lowest=float(scores.min()),
        decisions=tuple(decisions),
        grounds=_grounds_of_broker(known, broker, weighing),
        weighing=weighing,
    )


def _grounds_of_bundle(
    known: Known, bundle: BundleId, owner: BrokerId | None, candidates: Sequence[Candidate]
) -> tuple[Refusal, ...]:
    found = [*_own_grounds(known, bundle)]
    if known.refusals is None:
        return tuple(found)
    for about in (bundle, owner, ""):
        if about is not None:
            found += known.refusals.get(about, ())
    if not any(one.subject == bundle for one in found):
        kept = why_kept(bundle, candidates)
        found[:0] = [] if kept is None else [kept]
    return tuple(found) or (Refusal(bundle, Reason.NOT_OFFERED),)


def _own_grounds(known: Known, bundle: BundleId) -> list[Refusal]:
    """Return the reasons for the bundle to stay that do not depend on a round."""
    view, settings = known.view, known.planner.settings
    found: list[Refusal] = []
    target = view.moved.get(bundle)
    if target is not None:
        found.append(Refusal(bundle, Reason.IN_FLIGHT, f"to {target}"))
    rests_s = known.memory.rests_s(bundle, view.now_s, settings.cool_down_s)
    if rests_s > 0:
        ago_s = settings.cool_down_s - rests_s
        detail = f"moved {ago_s:.0f} s ago, rests {rests_s:.0f} s more"
        found.append(Refusal(bundle, Reason.RECENTLY_MOVED, detail))
    if belongs_to_a_broker(bundle):
        found.append(Refusal(bundle, Reason.NAMESPACE_EXCLUDED, "it is a broker's own bundle"))
    elif namespace_of(bundle) in settings.excluded_namespaces:
        found.append(Refusal(bundle, Reason.NAMESPACE_EXCLUDED, namespace_of(bundle)))
    if why := view.policies.refusal(namespace_of(bundle)):
        found.append(Refusal(bundle, Reason.ISOLATED, why))
    if view.bundles.measured_row(bundle) is None:
        found.append(Refusal(bundle, Reason.LOAD_UNKNOWN, "no sample of its traffic yet"))
    return found


def _grounds_of_broker(
    known: Known, broker: BrokerId, weighing: Weighing | None
) -> tuple[Refusal, ...]:
    view, row = known.view, known.view.row(broker)
    found: list[Refusal] = []
    if view.brokers.draining[row]:
        found.append(Refusal(broker, Reason.DRAINING))
    elif not view.brokers.persistent[row]:
        found.append(Refusal(broker, Reason.DOMAIN_UNSUPPORTED))
    age_s = float(view.age_s[row])
    if age_s > known.planner.filters.max_report_age_s:
        found.append(Refusal(broker, Reason.REPORT_STALE, f"{age_s:.0f} s old"))
    if known.refusals is None:
        return tuple(found)
    for about in (broker, ""):
        found += known.refusals.get(about, ())
    detail = "" if weighing is None else weighing.description
    return tuple(found) or (Refusal(broker, Reason.NOT_OFFERED, detail),)


def _weighing(
    known: Known, broker: BrokerId | None, bundle: BundleId | None = None
) -> Weighing | None:
    weigher = known.planner.weigher(known.view, known.memory)
    return None if weigher is None else weigher.weighing(broker, bundle)


def _mean(scores: FloatArray) -> float:
    return float(scores.mean()) if len(scores) else 0.0

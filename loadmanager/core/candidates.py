from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.weighing import Payback, Weighing
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode
from loadmanager.core.projection import loads, loads_with
from loadmanager.core.round_memory import RoundMemory

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


def candidates_for(
    bundle: BundleId,
    owner: BrokerId | None,
    *,
    view: ClusterView,
    planner: Planner,
    memory: RoundMemory,
    weighing: Weighing | None,
) -> tuple[Candidate, ...]:
    """Return every broker except the owner, best first, each with the reason against it."""
    names = view.brokers.names
    scores = loads(view, planner.weights)
    rows = np.arange(len(names))
    cost = planner.costs(memory.shedder)
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

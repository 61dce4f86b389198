"""One round of the joint strategy: learn, predict usage, choose moves, give reasons."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Mask
from loadmanager.core.filters import Limits
from loadmanager.core.joint.ages import Ages
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.search import Search, Stuck
from loadmanager.core.joint.served import fractions
from loadmanager.core.joint.standing import RATES_ALONE, STANDS_OUT, Standing, shares
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.plan import Cause, Offer, Reason, Refusal
from loadmanager.core.scores import RESOURCES, FloatArray, ResourceWeights

CONTRADICTED_S: Final = 300.0
"""How long reports are above the level by `STANDS_OUT`, and predictions are not, for an alert."""

_BUSY: Final = 0.25
"""The level below which rates decide rather than reports."""


def learned_from(view: ClusterView, former: JointState | None) -> JointState:
    state = former or JointState(learned=Learned.nothing(view))
    now_s, brokers = view.now_s, view.brokers
    learned = state.learned.after(view)
    short, long, others_changed = shares(view, learned)
    persistence = state.persistence.after(
        now_s,
        view.bundles.names,
        short,
        long,
        owner=view.owned.listed_by,
        others_changed=others_changed,
    )
    restarts = state.restarts.after(now_s, brokers.names, brokers.started_at_ms)
    return replace(state, learned=learned, persistence=persistence, restarts=restarts)


def decided(by: Weigher) -> tuple[tuple[Offer, ...], tuple[Refusal, ...], JointState]:
    """Return the moves of a round, the reasons why other brokers shed nothing, and the state."""
    at, view, limits = by.at, by.view, by.limits
    if at is None:
        return (), (), by.state
    ages, beyond = by.ages(at), _beyond(view, at, by.weights)
    contradicted = by.state.contradicted.after(view.now_s, view.brokers.names, beyond)
    held = limits.gives & ~at.urgent & by.state.restarts.under_way(view.now_s)
    limits = replace(limits, gives=limits.gives & ~held)
    search = by.search(at, ages, limits)
    search.run()
    names, bundles = view.brokers.names, view.bundles.names
    offers = tuple(
        Offer(bundles[one.bundle], names[one.source], _cause(at, one.source, swap=one.swap),
              names[one.target])
        for one in search.found.values()
    )  # fmt: skip
    refusals = tuple(_refusals(view, limits, search, contradicted, held))
    return offers, refusals, replace(by.state, ages=ages, contradicted=contradicted)


def _cause(at: Standing, source: int, *, swap: bool) -> Cause:
    if swap:
        return Cause.SWAP
    return Cause.OVERLOADED if at.urgent[source] else Cause.IMBALANCE


def _beyond(view: ClusterView, at: Standing, weights: ResourceWeights) -> FloatArray:
    """Return (B,): how far reports are above the level where predictions are not, else 0."""
    if at.level < _BUSY or at.resources == RATES_ALONE:
        return np.zeros(len(at.low))
    columns, numbers = view.brokers.reported, [RESOURCES.index(one) for one in at.resources]
    use = (fractions(columns.usage, columns.limit) * weights.as_array())[:, numbers] / at.level
    beyond = use.max(axis=1, initial=0.0) - 1.0
    return np.where((beyond > STANDS_OUT) & (at.over == 0), beyond, 0.0)


def _refusals(
    view: ClusterView, limits: Limits, search: Search, contradicted: Ages, held: Mask
) -> Iterator[Refusal]:
    at, names = search.at, view.brokers.names
    for row in np.flatnonzero(held).tolist():
        why = "brokers restart one after the other, and some have yet to"
        yield Refusal(names[row], Reason.ROLLING_RESTART, f"{_load_text(at, row)}; {why}")
    given = {one.source for one in search.found.values()}
    for row in np.flatnonzero(limits.gives).tolist():
        load = _load_text(at, row)
        if row in search.stuck:
            yield from _why_stuck(view, search, row, search.stuck[row], load)
        elif row in search.unreached:
            code = Reason.ROUND_BUDGET if limits.steps.left > 0 else Reason.WORK_BUDGET
            why = f"{len(search.found)} moves are as much as this round may make"
            yield Refusal(names[row], code, f"{load}; {why}")
        elif row not in given and contradicted.age_s[row] > CONTRADICTED_S:
            why = f"reports are {contradicted.over[row]:.0%} above the level"
            yield Refusal(names[row], Reason.CONTRADICTED, f"{load}; {why}")
        elif row not in given:
            yield Refusal(names[row], Reason.WITHIN_THRESHOLD, load)


def _why_stuck(
    view: ClusterView, search: Search, row: int, stuck: Stuck, load: str
) -> Iterator[Refusal]:
    names = view.brokers.names
    if stuck.bundle is None or stuck.target is None:
        why = "no bundle of it may move to any broker"
        yield Refusal(names[row], Reason.NO_CANDIDATE, f"{load}; {why}")
        return
    bundle, target = view.bundles.names[stuck.bundle], names[stuck.target]
    price = float(search.prices[stuck.bundle])
    worth = f"saves {stuck.saving:.4f} and costs {price:.4f}"
    where = f"{target} at {search.at.high[stuck.target].max():.2f} of the level"
    yield Refusal(names[row], Reason.NO_BUNDLE_FITS, f"{load}; the best move {worth}: {bundle}")
    yield Refusal(bundle, Reason.NO_IMPROVEMENT, f"to {where} {worth}")


def _load_text(at: Standing, row: int) -> str:
    column = int(at.low[row].argmax())
    use = float(at.low[row, column])
    resource = at.resources[column]
    amount = f"{use * at.level:.3f} of {resource}"
    return f"uses {amount}, {use:.2f} of the level {at.level:.3f} (gives above {at.tolerance:g})"

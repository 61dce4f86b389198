"""Codec of the joint strategy's learned state: unit costs, broker figures, persistence.

It does not contain rates of bundles: these are learned again within minutes.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from loadmanager.core.bounds import DURATION_S, TIME_MS, Bound
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, packed, unpacked_object
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.joint.broker_figures import BrokerFigures
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.persistence import Persistence
from loadmanager.core.joint.restarts import Restarts
from loadmanager.core.joint.served import KINDS
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.unit_costs import CostSums
from loadmanager.core.scores import RESOURCES, FloatArray

FORMAT: Final = 1
MOST_BYTES: Final = 256 * 1024
MOST_BROKERS: Final = 2000
"""This many always fit; the others of a larger cluster are learned again, and those whose figures
are beyond what is read, as where a broker reported a usage of 1e18 times its limit."""

_MOST_RESTARTS: Final = 500
_MOST_UNPACKED: Final = 4 * 1024 * 1024
_MOST: Final = 1e30
_FIGURE: Final = Bound(-_MOST, _MOST, "a finite number")
_DIGITS: Final = 4
_ROUNDED: Final = 1.0 + 1e-6
_R: Final = len(RESOURCES)
_F: Final = len(KINDS)
_FIGURES: Final = 5 * _R


def encode_joint(state: JointState) -> bytes:
    """Return the encoded state."""
    learned, persistence = state.learned, state.persistence
    brokers = learned.brokers
    rows = np.concatenate(
        [brokers.background, brokers.speed, brokers.covariance.reshape(len(brokers.names), 3 * _R)],
        axis=1,
    )
    kept = np.flatnonzero((np.abs(rows) <= _MOST).all(axis=1))[:MOST_BROKERS].tolist()
    found = {
        "format": FORMAT,
        "costs": _listed(learned.unit_costs),
        "gram": _listed(learned.sums.gram),
        "moment": _listed(learned.sums.moment),
        "weight": _listed(learned.sums.weight),
        "shown": _listed(learned.sums.shown),
        "noise": _listed(learned.noise),
        "looks": _listed(learned.looks),
        "restarted_ago_s": {
            name: round(learned.at_s - back_s, 3)
            for name, back_s in list(state.restarts.back_s.items())[-_MOST_RESTARTS:]
        },
        "persistence": [
            *_listed(persistence.lasted),
            *_listed(persistence.looked_at[np.triu_indices(2)]),
            persistence.lasting,
            persistence.lasting_new,
        ],
        "brokers": {
            brokers.names[row]: [brokers.started_at_ms[row], *_listed(rows[row], _DIGITS)]
            for row in kept
        },
    }
    return packed(json.dumps(found, separators=(",", ":"), allow_nan=False).encode())


def decode_joint(where: str, data: bytes, now_s: float) -> JointState:
    """Return the state in ``data`` for a leader at time ``now_s``.

    Raises:
        MalformedContent: the data has another format, or a figure is missing or impossible.
    """
    found = unpacked_object(where, data, _MOST_UNPACKED)
    if found.get("format") != FORMAT:
        Fields(where, found).refuse("format", f"{FORMAT}, the only one this version knows")
    sums = CostSums(
        gram=_array(where, found, "gram", _R * _F * _F).reshape(_R, _F, _F),
        moment=_array(where, found, "moment", _R * _F).reshape(_R, _F),
        weight=_array(where, found, "weight", _R),
        shown=_array(where, found, "shown", _R),
    )
    if min(sums.weight.min(), np.einsum("rff->rf", sums.gram).min()) < 0:
        raise MalformedContent(where, "gram, weight", "sums of squares, none below 0")
    learned = Learned(
        at_s=now_s,
        unit_costs=_array(where, found, "costs", _R * _F).reshape(_R, _F),
        sums=sums,
        noise=_array(where, found, "noise", _R),
        looks=_array(where, found, "looks", _R),
        brokers=_brokers(where, found),
    )
    figures = learned.brokers
    restarts = Restarts(
        lives=dict(zip(figures.names, figures.started_at_ms, strict=True)),
        back_s=_restarted(where, found, now_s),
    )
    return JointState(learned=learned, persistence=_persistence(where, found), restarts=restarts)


def _persistence(where: str, found: dict[str, Any]) -> Persistence:
    values = _array(where, found, "persistence", 7)
    first, both, second = values[2:5].tolist()
    if min(first, second) < 0 or both**2 > first * second * _ROUNDED:
        raise MalformedContent(where, "persistence", "sums of squares and products of two parts")
    lasting, lasting_new = np.clip(values[5:], 0.0, 1.0).tolist()
    return Persistence(
        lasted=values[:2],
        looked_at=np.array([[first, both], [both, second]]),
        lasting=lasting,
        lasting_new=lasting_new,
    )


def _brokers(where: str, found: dict[str, Any]) -> BrokerFigures:
    brokers = found.get("brokers")
    if not isinstance(brokers, dict):
        raise MalformedContent(where, "brokers", "an object of lists of figures")
    rows = [_figures(where, name, row) for name, row in brokers.items()]
    names = tuple(_broker(where, name) for name in brokers)
    figures = BrokerFigures.unknown(names, tuple(int(row[0]) for row in rows))
    values = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), _FIGURES)
    figures.background[:] = values[:, :_R]
    figures.speed[:] = np.clip(values[:, _R : 2 * _R], 0.1, 10.0)
    figures.covariance[:] = values[:, 2 * _R :].reshape(len(rows), _R, 3)
    figures.least[:] = figures.background
    figures.most[:] = figures.background
    return figures


def _restarted(where: str, found: dict[str, Any], now_s: float) -> dict[BrokerId, float]:
    """Return when brokers restarted; empty if an older version did not record it."""
    ago_s = found.get("restarted_ago_s", {})
    if not isinstance(ago_s, dict) or not all(map(DURATION_S.holds, ago_s.values())):
        raise MalformedContent(where, "restarted_ago_s", "an object of seconds")
    return {_broker(where, name): now_s - ago for name, ago in ago_s.items()}


def _broker(where: str, name: str) -> BrokerId:
    try:
        return parse_broker(name)
    except InvalidName as problem:
        raise MalformedContent(where, str(problem), problem.expected) from None


def _figures(where: str, name: str, row: object) -> Sequence[float]:
    if (
        not isinstance(row, list)
        or len(row) != 1 + _FIGURES
        or type(row[0]) is not int
        or not TIME_MS.holds(row[0])
        or not all(map(_possible, row[1:]))
    ):
        expected = f"when it started, and {_FIGURES} finite numbers"
        raise MalformedContent(where, f'brokers["{name}"]', expected)
    return row


def _array(where: str, found: dict[str, Any], name: str, count: int) -> FloatArray:
    value = found.get(name)
    if not isinstance(value, list) or len(value) != count or not all(map(_possible, value)):
        raise MalformedContent(where, name, f"a list of {count} finite numbers")
    return np.array(value, dtype=np.float64)


def _possible(value: object) -> bool:
    return _FIGURE.holds(value)


def _listed(values: FloatArray, digits: int = 9) -> list[float]:
    """Return the flattened figures, rounded to ``digits`` significant digits."""
    return [_rounded(value, digits) for value in values.ravel().tolist()]


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")

"""Codec of the joint strategy's learned state: unit costs, broker figures, persistence.

It does not contain rates of bundles: these are learned again within minutes.
"""

import json
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from loadmanager.core.bounds import DURATION_S, TIME_MS, Bound
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields, packed, unpacked_object
from loadmanager.core.ids import parse_broker
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
_F: Final = len(KINDS) + 1
_FIGURES: Final = 5 * _R


def encode_joint(state: JointState) -> bytes:
    learned, persistence = state.learned, state.persistence
    brokers = learned.brokers
    rows = np.concatenate(
        [brokers.background, brokers.speed, brokers.covariance.reshape(len(brokers.names), 3 * _R)],
        axis=1,
    )
    kept = np.flatnonzero((np.abs(rows) <= _MOST).all(axis=1))[:MOST_BROKERS].tolist()
    found = {
        "format": FORMAT,
        "costs": _listed(learned.costs),
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
            persistence.turnover,
        ],
        "brokers": {
            brokers.names[row]: [brokers.started_at_ms[row], *_listed(rows[row], _DIGITS)]
            for row in kept
        },
    }
    return packed(json.dumps(found, separators=(",", ":"), allow_nan=False).encode())


def decode_joint(where: str, data: bytes, now_s: float) -> JointState:
    """Return the state for a leader at time ``now_s``. Raises `MalformedContent`."""
    fields = Fields(where, unpacked_object(where, data, _MOST_UNPACKED))
    if fields.count("format", None) != FORMAT:
        fields.refuse("format", f"{FORMAT}, the only one this version knows")

    def array(name: str, *shape: int) -> FloatArray:
        return np.array(fields.rates(name, prod(shape), _FIGURE)).reshape(shape)

    sums = CostSums(
        gram=array("gram", _R, _F, _F),
        moment=array("moment", _R, _F),
        weight=array("weight", _R),
        shown=array("shown", _R),
    )
    if min(sums.weight.min(), np.einsum("rff->rf", sums.gram).min()) < 0:
        raise MalformedContent(where, "gram, weight", "sums of squares, none below 0")
    figures = _brokers(fields)
    learned = Learned(
        at_s=now_s,
        costs=array("costs", _R, _F),
        sums=sums,
        noise=array("noise", _R),
        looks=array("looks", _R),
        brokers=figures,
    )
    ago_s = fields.mapped(
        "restarted_ago_s", parse_broker, lambda one, name: one.rate(name, bound=DURATION_S)
    )
    restarts = Restarts(
        lives=dict(zip(figures.names, figures.started_at_ms, strict=True)),
        back_s={broker: now_s - ago for broker, ago in ago_s.items()},
    )
    persistence = _persistence(fields, array("persistence", 8))
    return JointState(learned=learned, persistence=persistence, restarts=restarts)


def _persistence(fields: Fields, values: FloatArray) -> Persistence:
    first, both, second = values[2:5].tolist()
    if min(first, second) < 0 or both**2 > first * second * _ROUNDED:
        fields.refuse("persistence", "sums of squares and products of two parts")
    lasting, lasting_new, turnover = np.clip(values[5:], 0.0, 1.0).tolist()
    return Persistence(
        lasted=values[:2],
        looked_at=np.array([[first, both], [both, second]]),
        lasting=lasting,
        lasting_new=lasting_new,
        turnover=turnover,
    )


def _brokers(fields: Fields) -> BrokerFigures:
    rows = fields.mapped("brokers", parse_broker, _row)
    started_at_ms = tuple(int(row[0]) for row in rows.values())
    figures = BrokerFigures.unknown(tuple(rows), started_at_ms)
    values = np.array([row[1:] for row in rows.values()], dtype=np.float64)
    values = values.reshape(len(rows), _FIGURES)
    figures.background[:] = values[:, :_R]
    figures.speed[:] = np.clip(values[:, _R : 2 * _R], 0.1, 10.0)
    figures.covariance[:] = values[:, 2 * _R :].reshape(len(rows), _R, 3)
    return figures


def _row(brokers: Fields, name: str) -> Sequence[float]:
    """Return when a broker started, in milliseconds since 1970, and its figures."""
    row = brokers.rates(name, 1 + _FIGURES, _FIGURE)
    if not (row[0].is_integer() and TIME_MS.holds(int(row[0]))):
        brokers.refuse(name, f"when it started, and {_FIGURES} finite numbers")
    return row


def _listed(values: FloatArray, digits: int = 9) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.ravel().tolist()]

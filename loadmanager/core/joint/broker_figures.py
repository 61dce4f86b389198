from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.columns import BrokerColumns, Mask
from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.served import KINDS
from loadmanager.core.scores import RESOURCES, FloatArray

_BACKGROUND_SD: Final = 0.1
_SPEED_SD: Final = 0.3
_DRIFT_PER_MIN: Final = 0.003
_JUMP_SDS: Final = 4.0
SPEEDS: Final = (0.1, 10.0)
_SPANS: Final = 5
_SPAN_S: Final = 60.0
"""Number and least length of the spans of recent reports."""

_KEPT: Final = 0.6
"""Weight of the reports before the last one in what counts as measured now."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BrokerFigures:
    """The learned figures of each broker; rows are ``names``, columns `RESOURCES`.

    ``background`` is a fraction of the limit beyond what every broker uses, ``speed`` the cost of
    work on this broker relative to its cost elsewhere. ``covariance`` is (B, R, 3): the variances
    of background and speed, and their covariance. ``spans`` (spans, B, R + F) are the mean usage
    and work of the reports of each of the last time spans, newest first; the newest began at
    ``span_s``. ``last`` (B, R + F) are those of the last reports. ``weights`` (spans, B) and
    ``last_weight`` (B,) are the weights of these means, 0 where there is no report. ``seen_s`` is
    the time of the last report used.
    """

    names: tuple[BrokerId, ...]
    started_at_ms: tuple[int, ...]
    seen_s: FloatArray
    background: FloatArray
    speed: FloatArray
    covariance: FloatArray
    spans: FloatArray
    weights: FloatArray
    last: FloatArray
    last_weight: FloatArray
    span_s: FloatArray

    @classmethod
    def unknown(
        cls, names: tuple[BrokerId, ...] = (), started_at_ms: tuple[int, ...] = ()
    ) -> "BrokerFigures":
        shape = (len(names), len(RESOURCES))
        return cls(
            names=names,
            started_at_ms=started_at_ms,
            seen_s=np.full(len(names), -np.inf),
            background=np.zeros(shape),
            speed=np.ones(shape),
            covariance=np.tile([_BACKGROUND_SD**2, _SPEED_SD**2, 0.0], (*shape, 1)),
            spans=np.zeros((_SPANS, len(names), len(RESOURCES) + len(KINDS))),
            weights=np.zeros((_SPANS, len(names))),
            last=np.zeros((len(names), len(RESOURCES) + len(KINDS))),
            last_weight=np.zeros(len(names)),
            span_s=np.full(len(names), -np.inf),
        )

    def of(self, columns: BrokerColumns) -> "BrokerFigures":
        """Return the figures of these brokers; those of a restarted broker are unknown."""
        names, started = columns.names, columns.started_at_ms
        if names == self.names and started == self.started_at_ms:
            return self
        former = {
            (name, began): row
            for row, (name, began) in enumerate(zip(self.names, self.started_at_ms, strict=True))
        }
        lives = list(zip(names, started, strict=True))
        to = [row for row, life in enumerate(lives) if life in former]
        taken = [former[lives[row]] for row in to]
        found = BrokerFigures.unknown(names, started)
        found.span_s[to] = self.span_s[taken]
        for name in ("seen_s", "background", "speed", "covariance", "last", "last_weight"):
            getattr(found, name)[to] = getattr(self, name)[taken]
        for name in ("spans", "weights"):
            getattr(found, name)[:, to] = getattr(self, name)[:, taken]
        return found

    def expected(self, varying: FloatArray) -> FloatArray:
        """Return (B, R): the expected usage for work that uses ``varying`` at speed 1."""
        return np.asarray(self.background + self.speed * varying)

    def after(
        self,
        usage: FloatArray,
        varying: FloatArray,
        error: FloatArray,
        teaches: Mask,
        minutes: float,
    ) -> "BrokerFigures":
        """Return the figures after a measured ``usage``, updated where ``teaches`` is set.

        ``error`` is the mean squared error of the measured usage. A usage far from the expected
        one is attributed to the background: another process started or ended.
        """
        drift = _DRIFT_PER_MIN**2 * minutes
        of_background, of_speed, joint = np.moveaxis(self.covariance, -1, 0)
        of_background, of_speed = of_background + drift, of_speed + drift
        surprise = usage - self.expected(varying)
        spread = of_background + 2 * varying * joint + varying**2 * of_speed + error
        jump = np.where(teaches & (surprise**2 > _JUMP_SDS**2 * spread), surprise**2, 0.0)
        of_background, spread = of_background + jump, spread + jump
        to_background = of_background + varying * joint
        to_speed = joint + varying * of_speed
        first = np.where(teaches, to_background / spread, 0.0)
        second = np.where(teaches, to_speed / spread, 0.0)
        covariance = [
            of_background - first * to_background,
            of_speed - second * to_speed,
            joint - first * to_speed,
        ]
        return replace(
            self,
            background=self.background + first * surprise,
            speed=np.clip(self.speed + second * surprise, *SPEEDS),
            covariance=np.stack(covariance, axis=-1),
        )

    def seen(
        self,
        seen_s: FloatArray,
        fresh: Mask,
        usage: FloatArray,
        work: FloatArray,
        weight: FloatArray,
    ) -> "BrokerFigures":
        """Return the figures with ``fresh`` reports of ``usage`` and ``work`` in the means."""
        begins = fresh & (seen_s - self.span_s >= _SPAN_S)
        seen, weight = np.concatenate([usage, work], axis=1), np.where(fresh, weight, 0.0)
        spans, weights = (
            np.where(
                begins.reshape(-1, *(1,) * (of.ndim - 2)),
                np.concatenate([np.zeros_like(of[:1]), of[:-1]]),
                of,
            )
            for of in (self.spans, self.weights)
        )
        kept = np.where(fresh, _KEPT * self.last_weight, self.last_weight)
        spans[0], weights[0] = _mean(spans[0], weights[0], seen, weight)
        last, last_weight = _mean(self.last, kept, seen, weight)
        return replace(
            self,
            seen_s=np.where(fresh, seen_s, self.seen_s),
            spans=spans,
            weights=weights,
            last=last,
            last_weight=last_weight,
            span_s=np.where(begins, seen_s, self.span_s),
        )


def _mean(
    mean: FloatArray, weight: FloatArray, seen: FloatArray, added: FloatArray
) -> tuple[FloatArray, FloatArray]:
    total = weight + added
    step = np.divide(added, total, out=np.zeros_like(total), where=total > 0)
    return mean + step[:, np.newaxis] * (seen - mean), total

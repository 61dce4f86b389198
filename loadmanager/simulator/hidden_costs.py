"""Costs of bundles that do not follow from rates: a factor per bundle, and costs of moves."""

import math

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.hand_overs import HandOvers
from loadmanager.simulator.scenario.model import HiddenSettings


class HiddenCosts:
    """The hidden costs of K bundles, step by step.

    ``cpu_factor`` (K,) is the CPU cost of the traffic of a bundle as a multiple of the cost by its
    rates, without the costs of moves.

    Args:
        settings: settings of the scenario.
        clients: (K,) the number of clients that reconnect when a bundle has moved.
        rng: draws the factors of bundles.
    """

    def __init__(
        self, settings: HiddenSettings, clients: FloatArray, rng: np.random.Generator
    ) -> None:
        self._settings = settings
        self._clients = clients
        self.cpu_factor = _unlike(settings.bundle_cpu_spread, len(clients), rng)
        self._waiting_s = np.zeros(len(clients))
        self._now_s = self._step_s = 0.0
        self._age_s = np.full(len(clients), np.inf)

    def advance(self, now_s: float, hand_overs: HandOvers) -> None:
        """Add the arrivals and the backlogs of the step that ends at ``now_s``."""
        self._step_s, self._now_s = now_s - self._now_s, now_s
        self._age_s = now_s - hand_overs.served_since_s
        waited_s = self._waiting_s + hand_overs.take_waited_s()
        self._waiting_s = np.minimum(waited_s, self._settings.backlog_s)

    def cpu_factor_now(self) -> FloatArray:
        """Return (K,) `cpu_factor` with the effect of cold caches, mean over the step."""
        cold_s = self._settings.cold_s
        more = self._settings.cold_cpu_factor - 1.0
        if self._step_s <= 0 or cold_s <= 0 or not (self._age_s < cold_s + self._step_s).any():
            return self.cpu_factor
        # The extra cost falls linearly: its integral up to the age a is a - a^2 / (2 cold_s).
        until, since = (age_s - age_s**2 / (2 * cold_s) for age_s in self._ages_within(cold_s))
        return np.asarray(self.cpu_factor * (1.0 + more * (until - since) / self._step_s))

    def reconnecting_cores(self, owner: Indices, brokers: int) -> FloatArray:
        """Return (brokers,) the CPU for reconnecting clients in cores, mean over the step."""
        spread_s = self._settings.reconnect_spread_s
        if self._step_s <= 0 or not (self._age_s < spread_s + self._step_s).any():
            return np.zeros(brokers)
        until_s, since_s = self._ages_within(spread_s)
        share = (until_s - since_s) / spread_s / self._step_s
        cores = self._clients * share * self._settings.reconnect_cpu_ms / 1000.0
        taken = np.bincount(owner + 1, cores, minlength=brokers + 1)
        return np.asarray(taken[1:], dtype=np.float64)

    def catch_up(self) -> FloatArray:
        if self._step_s <= 0:
            return np.zeros(len(self._waiting_s))
        return np.minimum(self._waiting_s / self._step_s, self._settings.catch_up_factor)

    def served(self, fraction: FloatArray, caught_up: FloatArray) -> None:
        """Update the backlog after a step.

        Both (K,) are multiples of the traffic: the served traffic (NaN for unserved bundles, whose
        backlog is added when their hand-over ends), and the served backlog.
        """
        left = np.nan_to_num(1.0 - fraction, nan=0.0) - caught_up
        waiting_s = self._waiting_s + left * self._step_s
        self._waiting_s = np.clip(waiting_s, 0.0, self._settings.backlog_s)

    def _ages_within(self, limit_s: float) -> tuple[FloatArray, FloatArray]:
        """Return the times since bundles arrived, at the end and the beginning of the step.

        Both are limited to the range from 0 to ``limit_s``.
        """
        begun_s = self._age_s - self._step_s
        return np.clip(self._age_s, 0.0, limit_s), np.clip(begun_s, 0.0, limit_s)


def _unlike(spread: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Return log-normal factors with mean 1 and standard deviation ``spread``."""
    variance = math.log1p(spread * spread)
    return np.asarray(rng.lognormal(-variance / 2.0, math.sqrt(variance), count))

"""Small scenarios for tests of the simulator, and a world that is asked step by step."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Move
from loadmanager.simulator.run import Why
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.world import Moment, World

NAMESPACE = "tenant/space"

FREE = {
    "cpu_us_per_msg": 0.0,
    "cpu_ns_per_byte": 0.0,
    "cpu_us_per_topic_s": 0.0,
    "cpu_us_per_connection_s": 0.0,
    "wire_bytes_per_msg": 0.0,
    "memory_kib_per_topic": 0.0,
    "memory_kib_per_connection": 0.0,
    "memory_kib_per_msg_per_s": 0.0,
}
"""A broker whose work costs nothing but the network its content needs."""

QUIET = {"cores": 0.0, "memory_mib": 0.0}
"""Nobody else on the host."""

EXACT = {"usage_fraction": 0.0, "rate_fraction": 0.0, "delay_s": 0.0}
"""Agents that measure without error, and are seen at once."""


PLAIN = {
    "bundle_cpu_spread": 0.0,
    "cpu_growth": 0.0,
    "cold_cpu_factor": 1.0,
    "reconnect_cpu_ms": 0.0,
    "backlog_s": 0.0,
}
"""Work that costs what its rates say, and nothing more after a move."""


def scenario(
    *,
    brokers: int | Sequence[Mapping[str, object]] = 2,
    load: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
    **others: object,
) -> Scenario:
    """Return a scenario of brokers ``b-1`` and so on, and loads of `NAMESPACE` unless said."""
    usual = {"namespace": NAMESPACE, "bundles": 4, "topics": 40, "msgs_in_per_s": 4000.0}
    loads = [load or {}] if load is None or isinstance(load, Mapping) else list(load)
    classes = [{"name": "b", "count": brokers}] if isinstance(brokers, int) else list(brokers)
    content = {
        "title": "A small one",
        "duration_s": 600.0,
        "step_s": 1.0,
        "brokers": classes,
        "hidden": PLAIN,
        "load": [{**usual, **each} for each in loads],
        **others,
    }
    return Scenario.model_validate(content)


def broker(name: str) -> BrokerId:
    return BrokerId(f"{name}:8080")


class Stepped:
    def __init__(self, played: Scenario, seed: int = 1) -> None:
        self.scenario = played
        self.world = World(played, None, np.random.default_rng(seed))
        self.now_s = 0.0
        self.moment: Moment = self.world.advance(0.0)

    def until(self, now_s: float) -> Moment:
        """Go on step by step to ``now_s``."""
        while self.now_s < now_s:
            self.now_s += self.scenario.step_s
            self.moment = self.world.advance(self.now_s)
        return self.moment

    def order(self, bundle: BundleId, target: str, cause: Cause = Cause.OVERLOADED) -> None:
        """Order that the broker of that name is to have ``bundle``."""
        row = self.world.bundles.index(bundle)
        holder = int(self.world.hand_overs.holder[row])
        source = self.world.brokers[holder] if holder >= 0 else None
        move = Move(bundle, source, broker(target), cause)
        self.world.order([move], self.now_s, Why.SHED)

    def owner(self, bundle: BundleId) -> str | None:
        """Return the name of the broker that serves ``bundle``, None for nobody."""
        row = int(self.moment.measured.owner[self.world.bundles.index(bundle)])
        return None if row < 0 else self.world.brokers[row].removesuffix(":8080")

    def owners(self) -> list[str | None]:
        return [self.owner(bundle) for bundle in self.world.bundles]

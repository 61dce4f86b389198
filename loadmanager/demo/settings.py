"""The settings of a demo."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

LEADER: Final = "leader"
AFTER_KILL_S: Final = 40.0
"""How long a demo without a duration goes on after the last kill: ten takeovers."""

MEAN_LOAD_FRACTION: Final = 0.40
CPU_BUDGET_CORES: Final = 0.24
"""CPU that all brokers together spend on messages: little enough for two cores."""

MAX_CPU_MS_PER_MESSAGE: Final = 2.0
OVERHEAD_MS_PER_MESSAGE: Final = 1.0
"""CPU that a broker needs for the HTTP request of a message, besides the configured one."""

IDLE_CORES: Final = 0.01
"""CPU that a broker needs for the requests of its sidecar alone."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a broker, by number or the ``leader``, so long after the traffic began."""

    target: str
    at_s: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the kill of a text such as ``leader@15``, ``2@15`` or ``broker-2@15``."""
        target, _, at_s = text.partition("@")
        target = target.removeprefix("broker-")
        if target != LEADER:
            if not (target.isdecimal() and int(target) > 0):
                raise ValueError(f"{text!r}: expected leader@SECONDS or NUMBER@SECONDS")
            target = str(int(target))
        try:
            seconds = float(at_s)
        except ValueError:
            raise ValueError(f"{text!r}: expected seconds after the @") from None
        if not 0 < seconds < float("inf"):
            raise ValueError(f"{text!r}: expected more than 0 seconds")
        return cls(target, seconds)

    def __str__(self) -> str:
        return f"{self.target}@{self.at_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of a demo, checked on construction.

    ``duration_s`` counts from the beginning of the traffic; see `ends_at_s` for None. ``program``
    is the command that starts `loadmanager`. Without ``port_base`` ports are any free ones.
    """

    data_dir: Path
    brokers: int = 4
    bundles: int = 32
    topics: int = 200
    duration_s: float | None = None
    seed: int = 1
    kills: tuple[Kill, ...] = ()
    rate_per_s: float = 120.0
    port_base: int | None = None
    history_dir: Path | None = None
    program: str = "loadmanager"

    def __post_init__(self) -> None:
        if self.bundles < self.brokers:
            raise ValueError(f"--bundles {self.bundles}: expected at least one a broker")
        if self.topics < self.bundles:
            raise ValueError(f"--topics {self.topics}: expected at least one a bundle")
        if len(self.kills) > self.brokers - 1:
            raise ValueError(f"--kill: expected at most {self.brokers - 1}, so that one remains")
        for kill in self.kills:
            if self.duration_s is not None and kill.at_s >= self.duration_s:
                raise ValueError(f"--kill {kill}: expected before the end at {self.duration_s:g} s")
            if kill.target != LEADER and int(kill.target) > self.brokers:
                raise ValueError(f"--kill {kill}: expected broker 1 to {self.brokers}")
        numbers = Counter(kill.target for kill in self.kills if kill.target != LEADER)
        for number, times in numbers.items():
            if times > 1:
                raise ValueError(f"--kill {number}@...: given {times} times; expected once")

    @property
    def ends_at_s(self) -> float | None:
        """The end, counted from the beginning of the traffic; None for Ctrl-C."""
        if self.duration_s is not None or not self.kills:
            return self.duration_s
        return max(kill.at_s for kill in self.kills) + AFTER_KILL_S

    @property
    def cpu_ms_per_message(self) -> float:
        """The CPU time of a broker for each message; less for many messages."""
        return min(MAX_CPU_MS_PER_MESSAGE, 1000 * CPU_BUDGET_CORES / self.rate_per_s)

    @property
    def cores_per_broker(self) -> float:
        """The cores that count as all that a broker has: the mean load is about 40 percent then."""
        cost_s = (self.cpu_ms_per_message + OVERHEAD_MS_PER_MESSAGE) / 1000
        mean_cores = self.rate_per_s / self.brokers * cost_s + IDLE_CORES
        return round(mean_cores / MEAN_LOAD_FRACTION, 3)

    def to_json(self) -> dict[str, object]:
        return {
            "brokers": self.brokers,
            "bundles": self.bundles,
            "topics": self.topics,
            "duration_s": self.duration_s,
            "seed": self.seed,
            "kill": [str(kill) for kill in self.kills],
            "rate_per_s": self.rate_per_s,
            "cpu_ms_per_message": self.cpu_ms_per_message,
            "cores_per_broker": self.cores_per_broker,
        }

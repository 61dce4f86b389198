"""Two strategies compared in two small scenarios, as the command does it, and their report."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from loadmanager.core.ids import Namespace
from loadmanager.simulator.report import write_report
from loadmanager.simulator.scenario import (
    BrokerClass,
    Expectation,
    Load,
    LogNormal,
    Membership,
    Scenario,
)
from loadmanager.simulator.simulation_jobs import Compared, Comparison, Finding
from loadmanager.simulator.strategies import parse_strategies

EVIL = "</title><script>document.title = 'taken over'</script><b>bold</b>"
"""A title that would run if it were not escaped."""

THRESHOLD = "threshold+least_long_term_message_rate"
AVG = "avg+avg"
FAILURE = "it <never> moves so much"
SEEDS = 2


def _load(brokers: int) -> Load:
    return Load(
        namespace=Namespace("shop/orders"),
        bundles=8 * brokers,
        topics=32 * brokers,
        msgs_in_per_s=33_000 * brokers,
        skew=LogNormal(kind="log_normal", sigma=0.5),
        over="bundles",
    )


def _scenario(title: str, brokers: int, event: Membership) -> Scenario:
    return Scenario(
        title=title,
        description="A broker & an event.",
        duration_s=900.0,
        warm_up_s=300.0,
        brokers=(
            BrokerClass(name="old", count=brokers, cores=2),
            BrokerClass(name="new", count=1, cores=2, joined=False),
        ),
        load=(_load(brokers),),
        events=(event,),
        expect=(
            Expectation(score="overload_min", most=1e6),
            Expectation(score="moves", most=-1.0, strategies=(AVG,)),
            Expectation(score="moves", least=0.0, strategies=(AVG,), known_failure=FAILURE),
        ),
    )


SCENARIOS: Mapping[str, Scenario] = {
    "few": _scenario(EVIL, 3, Membership(kind="join", at_s=300.0, brokers=("new-1",))),
    "many": _scenario("Many brokers", 13, Membership(kind="crash", at_s=600.0, brokers=("old-1",))),
}


@cache
def findings() -> tuple[Finding, ...]:
    strategies = parse_strategies(f"{THRESHOLD},{AVG}")
    comparison = Comparison(scenarios=SCENARIOS, strategies=strategies, seeds=SEEDS, pictured=True)
    return tuple(comparison.findings(1))


def found() -> list[Compared]:
    return [one for finding in findings() for one in finding.found]


def write(path: Path, *names: str) -> int:
    shown = [one for one in findings() if one.name in (names or SCENARIOS)]
    return write_report(path, shown, {"set": "threshold=0.1"})

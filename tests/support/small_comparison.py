"""Two strategies compared in two small scenarios, as the command does it, and their report."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from loadmanager.core.ids import Namespace
from loadmanager.simulator.report import Pictures, write_report
from loadmanager.simulator.results import Scores
from loadmanager.simulator.scenario import (
    BrokerClass,
    Crash,
    Expectation,
    Join,
    Load,
    LogNormal,
    Scenario,
)
from loadmanager.simulator.simulation_jobs import (
    Compared,
    Examination,
    Examined,
    Job,
    compared,
    jobs_of,
    judged,
    results_of,
)
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


def _scenario(title: str, brokers: int, event: Join | Crash) -> Scenario:
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
    "few": _scenario(EVIL, 3, Join(kind="join", at_s=300.0, brokers=("new-1",))),
    "many": _scenario("Many brokers", 13, Crash(kind="crash", at_s=600.0, brokers=("old-1",))),
}


@cache
def results() -> tuple[tuple[Job, Examined], ...]:
    strategies = parse_strategies(f"{THRESHOLD},{AVG}")
    jobs = jobs_of(SCENARIOS.items(), strategies, SEEDS)
    look = Examination(pictured=True, first_seed=None, witnessed=None)
    return tuple(results_of(jobs, look, processes=1))


def found() -> list[Compared]:
    def scores() -> Iterator[tuple[Job, Scores]]:
        return ((job, seen.scores) for job, seen in results())

    return list(compared(scores()))


def write(path: Path, *names: str) -> int:
    scenarios = {name: one for name, one in SCENARIOS.items() if name in (names or SCENARIOS)}
    pictures: Pictures = {
        (job.name, job.strategy): seen.picture for job, seen in results() if seen.picture
    }
    shown = [one for one in found() if one.name in scenarios]
    verdicts = [verdict for one in shown for verdict in judged(scenarios[one.name].expect, one)]
    return write_report(
        path,
        scenarios=scenarios,
        found=shown,
        judged=verdicts,
        pictures=pictures,
        settings={"set": "threshold=0.1"},
    )

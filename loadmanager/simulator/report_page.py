"""The report of the simulator: one HTML file that compares strategies.

Sizes: plotly.js is 4.8 MB of every page. A run of few brokers adds about 10 kB, one of 200 brokers
over a day about 60 kB: its series are downsampled (`thinning`) and compressed, and drawn when their
part of the page is opened.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadmanager.charts import (
    Cell,
    Column,
    Html,
    contents,
    folded,
    section,
    table,
    tag,
    write_page,
)
from loadmanager.simulator.picture import LINES, MARKS, POINTS, ROWS, TOP, Picture
from loadmanager.simulator.scenario import BrokerClass, Load, Scenario
from loadmanager.simulator.score_charts import highest_loads, legend, overview, score_table
from loadmanager.simulator.scores import SCORE_NAMES
from loadmanager.simulator.simulation_jobs import (
    RANKING,
    Compared,
    Judged,
    Outcome,
    modes_of,
    ranked,
)
from loadmanager.simulator.strategies import Strategy


def facts_of(name: str, scenario: Scenario) -> list[tuple[str, str]]:
    facts = [
        ("scenario", name),
        ("brokers", "; ".join(map(_broker_class, scenario.brokers))),
        ("load", "; ".join(map(_load, scenario.load)) or "none but the trace"),
        ("time", f"{_span(scenario.duration_s)}, the first {_span(scenario.warm_up_s)} warm-up"),
        ("events", str(len(scenario.events)) if scenario.events else "none"),
    ]
    if scenario.trace is not None:
        facts.append(("trace", str(scenario.trace)))
    return facts


def _broker_class(group: BrokerClass) -> str:
    later = "" if group.joined else ", join later"
    return (
        f"{group.count} {group.name} ({group.cores:g} cores, "
        f"{group.network_mbit_per_s / 1000:g} Gbit/s, {group.memory_mib / 1024:g} GiB{later})"
    )


def _load(load: Load) -> str:
    return (
        f"{load.namespace}: {load.topics:,} topics in {load.bundles:,} bundles, "
        f"{load.msgs_in_per_s:,.0f} messages/s of {load.message_bytes:,.0f} bytes"
    )


def _span(seconds: float) -> str:
    for unit, unit_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


_OPENED: Final = 3
"""The most scenarios that are initially unfolded."""

_READ_AT_ONCE: Final = 12
"""The most expectations that are initially unfolded."""

_EXPECTED: Final = "What the scenario expects of the medians, and what was found"

_READING: Final = f"The best of a column is marked; a click on it sorts. Rows stand {RANKING}."


Pictures = Mapping[tuple[str, Strategy], Picture]
"""By name of the scenario and strategy, as in `Finding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    name: str
    scenario: Scenario
    found: Mapping[str, Compared]
    pictures: Mapping[str, Picture]
    judged: Sequence[tuple[str, Judged]]


def write_report(
    path: Path,
    *,
    scenarios: Mapping[str, Scenario],
    found: Sequence[Compared],
    judged: Sequence[Judged],
    pictures: Pictures,
    settings: Mapping[str, str],
) -> int:
    """Write the report and return its size in bytes; it only depends on the arguments.

    Args:
        path: the HTML file; an existing one is replaced.
        scenarios: the scenarios by name, which the other arguments refer to.
        found: the scores of strategies; they are shown best first, by `ranked`.
        judged: the judged expectations.
        pictures: pictures of one run of each strategy in each scenario.
        settings: the command's arguments as text, shown at the top.

    Raises:
        MissingCharts: plotly is not installed.
        OSError: the file cannot be written.
    """
    several = len(modes_of(one.strategy for one in found)) > 1
    results = [
        _results(name, scenario, found, judged, pictures, several_modes=several)
        for name, scenario in scenarios.items()
    ]
    return write_page(path, _title(results), *_body(results, settings))


def _body(results: Sequence[_Results], settings: Mapping[str, str]) -> list[Html]:
    overviews = [_overview(results)] if len(results) > 1 else []
    anchors = [f"scenario-{number}" for number in range(1, len(results) + 1)]
    parts = list(zip(results, anchors, strict=True))
    links = [
        *((title, "") for title in ("What was compared", *("Overview" for _ in overviews))),
        *((one.scenario.title, anchor) for one, anchor in parts),
        ("What it means", ""),
    ]
    opened = len(results) <= _OPENED
    return [
        contents(links),
        _compared(results, settings),
        *overviews,
        *(_part(one, anchor, opened=opened) for one, anchor in parts),
        _meaning(),
    ]


def _results(
    name: str,
    scenario: Scenario,
    found: Iterable[Compared],
    judged: Iterable[Judged],
    pictures: Pictures,
    *,
    several_modes: bool,
) -> _Results:
    def called(strategy: Strategy) -> str:
        return f"{strategy.name} ({strategy.mode})" if several_modes else strategy.name

    mine = ranked(one for one in found if one.name == name)
    return _Results(
        name=name,
        scenario=scenario,
        found={called(one.strategy): one for one in mine},
        pictures={called(one.strategy): pictures[name, one.strategy] for one in mine},
        judged=[(called(one.strategy), one) for one in judged if one.name == name],
    )


def _title(results: Sequence[_Results]) -> str:
    if len(results) == 1:
        return f"Simulated: {results[0].scenario.title}"
    return f"{len(results)} scenarios simulated"


def _facts(facts: Iterable[tuple[str, str]]) -> Html:
    pairs = ((tag("dt", name), tag("dd", said)) for name, said in facts)
    return tag("dl", *(part for pair in pairs for part in pair))


def _compared(results: Sequence[_Results], settings: Mapping[str, str]) -> Html:
    compared = [one for result in results for one in result.found.values()]
    seeds = sorted({seed for one in compared for seed in one.seeds})
    judged = [one for result in results for _, one in result.judged]
    facts = [
        ("scenarios", str(len(results))),
        ("strategies", ", ".join(dict.fromkeys(one.strategy.name for one in compared))),
        ("mode", ", ".join(sorted(modes_of(one.strategy for one in compared)))),
        ("seeds", ", ".join(map(str, seeds))),
        *settings.items(),
    ]
    if judged:
        facts.append(("expectations", _counted(judged)))
    return section("What was compared", _facts(facts))


def _counted(judged: Sequence[Judged]) -> str:
    counts = Counter(one.outcome for one in judged)
    return ", ".join(f"{outcome} {counts[outcome]}" for outcome in Outcome if counts[outcome])


def _overview(results: Sequence[_Results]) -> Html:
    found = {result.name: result.found for result in results}
    return section("Overview", overview(found).html())


def _part(result: _Results, anchor: str, *, opened: bool) -> Html:
    scenario = result.scenario
    seeds = max(len(one.seeds) for one in result.found.values())
    caption = (
        f"Medians over {seeds} seeds, least to most in small." if seeds > 1 else "Of one seed."
    )
    several = len(result.found) > 1
    return section(
        scenario.title,
        tag("p", scenario.description),
        _facts(facts_of(result.name, scenario)),
        score_table(f"{caption} {_READING}", result.found),
        _expectations(result.judged),
        folded("All scores", score_table(caption, result.found, SCORE_NAMES)),
        folded(
            "Over time, side by side",
            highest_loads(result.pictures).html(),
            opened=opened and several,
        ),
        *(_run(result, name, opened=opened and not several) for name in result.found),
        anchor=anchor,
    )


def _run(result: _Results, name: str, *, opened: bool) -> Html:
    found = result.found[name]
    remark = [tag("p", found.strategy.remark)] if found.strategy.remark else []
    note = f"load of every broker, seed {found.seeds[0]}"
    return folded(name, *remark, result.pictures[name].chart, note=note, opened=opened)


_TONES: Final = {
    Outcome.HELD: "good",
    Outcome.FAILED: "bad",
    Outcome.SHOWN: "known",
    Outcome.NOT_SHOWN: "bad",
}


def _expectations(judged: Sequence[tuple[str, Judged]]) -> Html:
    if not judged:
        return tag("p", "The scenario expects nothing of these strategies.")
    columns = [Column(name=name) for name in ("strategy", "expected", "found", "outcome")]
    rows = [
        [
            Cell(name),
            Cell(one.expected),
            Cell(one.figures),
            Cell(one.outcome, note=one.expectation.known_failure, tone=_TONES[one.outcome]),
        ]
        for name, one in judged
    ]
    counts = _counted([one for _, one in judged])
    opened = len(rows) <= _READ_AT_ONCE
    return folded("Expectations", table(_EXPECTED, columns, rows), note=counts, opened=opened)


def _meaning() -> Html:
    return section(
        "What it means",
        tag(
            "p",
            "Loads are the truth of the simulated brokers, which no strategy sees: the demand on "
            "the resource a broker has least of, as a fraction of its capacity. Above 100 % it "
            "serves less than it is asked for. The lower bound is proven: no assignment of the "
            "bundles, found by any strategy, has a highest load below it.",
        ),
        tag(
            "p",
            "A mark is a move, or several of one moment, broker and reason. It stands at the load "
            "of the broker they left (or, if unowned before, went to), or in its row of colours; "
            "bundles, brokers, reason and traffic show on hover. Of more than "
            f"{MARKS} marks those with the most traffic are shown; the bars below count all moves. "
            "Vertical dotted lines are "
            "events, the grey part is the warm-up, which no score counts.",
        ),
        tag(
            "p",
            f"Series are thinned to {POINTS} points; each is the highest of its interval, so that "
            f"no peak is lost. Up to {LINES} brokers have a line each; of more there are "
            f"percentiles over the brokers, the {TOP} with the highest peaks, and a row of colours "
            f"for each of up to {ROWS}.",
        ),
        tag("h3", "Scores"),
        legend(),
    )

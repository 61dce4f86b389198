"""The report of the simulator: one HTML file that compares strategies.

Sizes: plotly.js is 4.8 MB of every page. A run of few brokers adds about 10 kB, one of 200 brokers
over a day about 60 kB: its series are downsampled and compressed, and drawn when their
part of the page is opened.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from loadmanager.charts import (
    Best,
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
from loadmanager.simulator.picture import LINES, MARKS, POINTS, ROWS
from loadmanager.simulator.results import FIRST_SCORES, SCORE_DOCS, ScoreDoc
from loadmanager.simulator.scenario import BrokerClass, Load, Scenario
from loadmanager.simulator.simulation_jobs import RANKING, Compared, Finding, Judged, Outcome
from loadmanager.simulator.strategies import Strategy

_OPENED: Final = 3
"""The most scenarios that are initially unfolded."""

_READ_AT_ONCE: Final = 12
"""The most expectations that are initially unfolded."""

_REFERRING: Final = ("The same", "Messages that came then")
_NEITHER_GOOD_NOR_BAD: Final = frozenset({"bound", "placed", "drained", "refusals"})
_TONES: Final = {
    Outcome.HELD: "good",
    Outcome.FAILED: "bad",
    Outcome.SHOWN: "known",
    Outcome.NOT_SHOWN: "bad",
}


def write_report(path: Path, findings: Sequence[Finding], settings: Mapping[str, str]) -> int:
    """Write the report and return its size in bytes; it only depends on the arguments.

    ``settings`` are the command's arguments as texts, shown at the top. Raises `MissingCharts`:
    plotly is not installed; `OSError`: the file cannot be written.
    """
    anchors = [f"scenario-{number}" for number in range(1, len(findings) + 1)]
    several = len(findings) > 1
    title = f"{len(findings)} scenarios" if several else findings[0].scenario.title
    every = [one for finding in findings for one in finding.found]
    modes = sorted({one.strategy.mode for one in every})

    def called(strategy: Strategy) -> str:
        return f"{strategy.name} ({strategy.mode})" if len(modes) > 1 else strategy.name

    results = {
        finding.name: {called(one.strategy): one for one in finding.found} for finding in findings
    }
    facts = [
        ("scenarios", str(len(findings))),
        ("strategies", ", ".join(dict.fromkeys(one.strategy.name for one in every))),
        ("mode", ", ".join(modes)),
        ("seeds", ", ".join(map(str, sorted({seed for one in every for seed in one.seeds})))),
        *settings.items(),
    ]
    if judged := [one for finding in findings for one in finding.judged]:
        facts.append(("expectations", _counted(judged)))
    links = [
        ("What was compared", ""),
        *((one.scenario.title, anchor) for one, anchor in zip(findings, anchors, strict=True)),
        ("What it means", ""),
    ]
    opened = len(findings) <= _OPENED
    return write_page(
        path,
        f"{title} simulated" if several else f"Simulated: {title}",
        contents(links),
        section("What was compared", _facts(facts)),
        *(
            _part(one, results[one.name], anchor, opened=opened)
            for one, anchor in zip(findings, anchors, strict=True)
        ),
        _meaning(),
    )


def _facts(facts: Iterable[tuple[str, str]]) -> Html:
    pairs = ((tag("dt", name), tag("dd", said)) for name, said in facts)
    return tag("dl", *(part for pair in pairs for part in pair))


def _counted(judged: Iterable[Judged]) -> str:
    counts = Counter(one.outcome for one in judged)
    return ", ".join(f"{outcome} {counts[outcome]}" for outcome in Outcome if counts[outcome])


def _part(finding: Finding, found: Mapping[str, Compared], anchor: str, *, opened: bool) -> Html:
    """Return the part of a scenario; ``found`` are its strategies as they are called here."""
    scenario = finding.scenario
    seeds = max(len(one.seeds) for one in found.values())
    caption = (
        f"Medians over {seeds} seeds, least to most in small." if seeds > 1 else "Of one seed."
    )
    reading = f"The best of a column is marked; a click on it sorts. Rows stand {RANKING}."
    runs = []
    for name, one in found.items():
        remark = [tag("p", one.strategy.remark)] if one.strategy.remark else []
        note = f"load of every broker, seed {one.seeds[0]}"
        picture = finding.pictures[one.strategy]
        opens = opened and len(found) == 1
        runs.append(folded(name, *remark, picture, note=note, opened=opens))
    return section(
        scenario.title,
        tag("p", scenario.description),
        _facts(facts_of(finding.name, scenario)),
        _score_table(f"{caption} {reading}", found, FIRST_SCORES),
        _expectations({one.strategy: name for name, one in found.items()}, finding.judged),
        folded("All scores", _score_table(caption, found, SCORE_DOCS)),
        *runs,
        anchor=anchor,
    )


def facts_of(name: str, scenario: Scenario) -> list[tuple[str, str]]:
    def broker_class(group: BrokerClass) -> str:
        later = "" if group.joined else ", join later"
        return (
            f"{group.count} {group.name} ({group.cores:g} cores, "
            f"{group.network_mbit_per_s / 1000:g} Gbit/s, {group.memory_mib / 1024:g} GiB{later})"
        )

    def load(one: Load) -> str:
        return (
            f"{one.namespace}: {one.topics:,} topics in {one.bundles:,} bundles, "
            f"{one.msgs_in_per_s:,.0f} messages/s of {one.message_bytes:,.0f} bytes"
        )

    return [
        ("scenario", name),
        ("brokers", "; ".join(map(broker_class, scenario.brokers))),
        ("load", "; ".join(map(load, scenario.load)) or "none but the trace"),
        ("time", f"{_span(scenario.duration_s)}, the first {_span(scenario.warm_up_s)} warm-up"),
        ("events", str(len(scenario.events)) if scenario.events else "none"),
        *([("trace", str(scenario.trace))] if scenario.trace is not None else []),
    ]


def _span(seconds: float) -> str:
    for unit, unit_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def _expectations(names: Mapping[Strategy, str], judged: Sequence[Judged]) -> Html:
    if not judged:
        return tag("p", "The scenario expects nothing of these strategies.")
    columns = [Column(name=name) for name in ("strategy", "expected", "found", "outcome")]
    rows = [
        [
            Cell(names[one.strategy]),
            Cell(one.expected),
            Cell(one.figures),
            Cell(one.outcome, note=one.expectation.known_failure, tone=_TONES[one.outcome]),
        ]
        for one in judged
    ]
    shown_table = table(
        "What the scenario expects of the medians, and what was found", columns, rows
    )
    opened = len(rows) <= _READ_AT_ONCE
    return folded("Expectations", shown_table, note=_counted(judged), opened=opened)


def _score_table(caption: str, found: Mapping[str, Compared], names: Iterable[str]) -> Html:
    docs = [SCORE_DOCS[name] for name in names]
    columns = [Column(name="strategy"), *(_column(doc) for doc in docs)]
    rows = [[Cell(strategy), *(_cell(one, doc) for doc in docs)] for strategy, one in found.items()]
    return table(caption, columns, rows)


def _column(doc: ScoreDoc) -> Column:
    better = Best.NEITHER if doc.name in _NEITHER_GOOD_NOR_BAD else Best.LEAST
    said = [doc.what, *([] if better is Best.NEITHER else ["Less is better."])]
    every = list(SCORE_DOCS.values())
    place = every.index(doc)
    while every[place].what.startswith(_REFERRING):  # to the score before
        place -= 1
    if every[place] is not doc:
        said.insert(0, every[place].what)
    return Column(name=doc.title, unit=doc.unit, explanation=" ".join(said), best=better)


def _cell(found: Compared, doc: ScoreDoc) -> Cell:
    spread = found.spreads[doc.name]
    middle, least, most = (_never(one) for one in (spread.median, spread.least, spread.most))
    each = ", ".join(written(_never(getattr(scores, doc.name))) for scores in found.runs)
    return Cell(
        written(middle),
        middle,
        note=f"{written(least)} to {written(most)}" if written(least) != written(most) else "",
        hover=f"{doc.title}, each seed: {each}" if len(found.runs) > 1 else "",
    )


def _never(value: float | None) -> float:
    """Return a score, with infinity for "never" and unknown."""
    return math.inf if value is None or math.isnan(value) else value


def written(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - where fractions say nothing
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _meaning() -> Html:
    texts = (
        (
            "Loads are the truth of the simulated brokers, which no strategy sees: the demand on "
            "the resource a broker has least of, as a fraction of its capacity. Above 100 % it "
            "serves less than it is asked for. The lower bound is proven: no assignment of the "
            "bundles, found by any strategy, has a highest load below it."
        ),
        (
            "A mark is a move, or several of one moment, broker and reason. It stands at the load "
            "of the broker they left (or, if unowned before, went to), or in its row of colours; "
            "bundles, brokers, reason and traffic show on hover. Of more than "
            f"{MARKS} marks those with the most traffic are shown; the bars below count all moves. "
            "Vertical dotted lines are "
            "events, the grey part is the warm-up, which no score counts."
        ),
        (
            f"Series are thinned to {POINTS} points; each is the highest of its interval, so that "
            f"no peak is lost. Up to {LINES} brokers have a line each; of more there are "
            f"the highest load and a row of colours for each of up to {ROWS}."
        ),
    )
    legend: list[Html] = []
    for doc in SCORE_DOCS.values():
        unit = f" ({doc.unit})" if doc.unit else ""
        legend += [tag("dt", doc.title + unit), tag("dd", doc.what, " ", tag("small", doc.name))]
    return section(
        "What it means",
        *(tag("p", text) for text in texts),
        tag("h3", "Scores"),
        tag("dl", *legend),
    )

"""The strategy guide: strategies, advice, and measured ratings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from loadmanager.config.guide import strategy_guide
from loadmanager.config.pairs import SHEDDER_NAMES, placements_of
from loadmanager.simulator.pip_364 import MODEL, SEEDS, Cell, Figures, measured
from loadmanager.simulator.ratings import PROBLEMS, Problem, Rating, problem_of
from loadmanager.simulator.scenario import FORMER_MODEL
from loadmanager.simulator.strategies import MODES, Mode, every_pair
from loadmanager.simulator.strategy_advice import AVOID, CHOOSE, COMMENTS, PIP_364_RATINGS, Advice

_HOW: Final = f"""\
PIP-364, which brought AvgShedder, names five problems of balancing strategies and rates three pairs
of a shedder and a placement at them, by argument and some tests. Here each problem is a scenario
that `loadmanager simulate` runs, and every pair that can be configured is rated by what happens
in it: by the median over the seeds of the figures below, each pair by its worst figure.

`parity` is how Pulsar decides; `safe`, the default, is how the same strategies do here. Settings
are the defaults. The simulator's former model, that of 0.1, was measured with
{SEEDS[FORMER_MODEL]} seeds; a move costs nothing there but its pause
([simulator.md](simulator.md)). The last tables are by the model that `loadmanager simulate` has
now (seeds: {SEEDS[MODEL]}). `loadmanager rate-strategies` measures these again, and with
`--model 1` the others. What both say is solid; where they differ, a cheap move made the
difference, or so few seeds are too few. The figures of `joint+joint` by the
former model are older than its present form (commit 63548b9);
[its own page](joint-strategy.md#what-it-comes-to) has more of them."""

_ADVICE: Final = """\
What follows is for safe mode, the default, and from what happened in the scenarios that come with
the simulator: `loadmanager simulate SCENARIO` shows it, and each is held to it by a test.
`parity` mode is for comparing with Pulsar."""

_TABLES: Final[Mapping[Mode, str]] = {
    "parity": 'As Pulsar decides: `mode = "parity"`.',
    "safe": 'As the planner lets them: `mode = "safe"`, the default.',
}


def strategies_document() -> str:
    """Return docs/strategies.md: the guide with measured ratings, as Markdown."""
    chapters = [
        "## Which to choose",
        "",
        *_choosing(measured(FORMER_MODEL)),
        "## The five problems of PIP-364, measured",
        "",
        *_measured(measured(), measured(FORMER_MODEL)),
    ]
    return strategy_guide("\n".join(chapters) + "\n")


def differing(figures: Figures) -> Iterator[Cell]:
    """Yield the cells whose measured rating in parity mode differs from that of PIP-364."""
    for pair, theirs in PIP_364_RATINGS.items():
        for scenario, rating in theirs.items():
            cell = Cell(scenario, "parity", pair)
            if figures.rating(cell) is not rating:
                yield cell


def _choosing(figures: Figures) -> Iterator[str]:
    yield _ADVICE
    yield ""
    yield "| situation | choose | why | scenario |"
    yield from _advice(CHOOSE)
    yield ""
    yield "| situation | rather not | why | scenario |"
    yield from _advice(AVOID)
    yield ""
    yield "At the five problems below, these pairs are good in safe mode:"
    yield ""
    for problem in PROBLEMS:
        good = [
            pair.name
            for pair in every_pair()
            if figures.rating(Cell(problem.scenario, "safe", pair.name)) is Rating.GOOD
        ]
        yield f"- {problem.name}: {', '.join(f'`{one}`' for one in _shortened(good)) or 'none'}"
    yield ""


def _advice(given: Sequence[Advice]) -> Iterator[str]:
    yield "|---|---|---|---|"
    for one in given:
        yield f"| {one.situation} | `{one.pair}` | {one.why} | `{one.scenario}` |"


def _shortened(pairs: Sequence[str]) -> list[str]:
    """Return pairs with ``shedder+*`` in place of all placements of a shedder."""
    found = []
    for shedder in SHEDDER_NAMES:
        mine = [pair for pair in pairs if pair.startswith(f"{shedder}+")]
        every = len(mine) > 1 and len(mine) == len(placements_of(shedder))
        found += [f"{shedder}+*"] if every else mine
    return found


def _measured(figures: Figures, former: Figures) -> Iterator[str]:
    yield _HOW
    yield ""
    yield from _thresholds()
    yield "### What PIP-364 says, and what was measured by model 1"
    yield ""
    yield from _beside_theirs(former)
    yield "Where they differ:"
    yield ""
    for cell in differing(former):
        yield f"- **{cell.pair}, {problem_of(cell.scenario).name}**: {_comment(cell, former)}"
    yield ""
    yield "### All pairs, by model 1"
    yield from _tables(former)
    yield ""
    yield "### All pairs, by model 2"
    missing = [problem.name for problem in PROBLEMS if problem not in figures.problems]
    if missing:
        yield ""
        yield f"Not measured by it yet: {', '.join(missing)}."
    yield from _tables(figures)


def _tables(figures: Figures) -> Iterator[str]:
    for mode in reversed(MODES):
        yield ""
        yield _TABLES[mode]
        yield ""
        yield from _all_pairs(figures, mode)


def _thresholds() -> Iterator[str]:
    yield "| problem | scenario | figure | unit | good up to | normal up to |"
    yield "|---|---|---|---|---|---|"
    for problem in PROBLEMS:
        for measure in problem.measures:
            limits = f"{_number(measure.good_to)} | {_number(measure.normal_to)}"
            yield (
                f"| {problem.name} | `{problem.scenario}` | {measure.says} | {measure.unit} "
                f"| {limits} |"
            )
    yield ""


def _beside_theirs(figures: Figures) -> Iterator[str]:
    yield f"| pair | | {' | '.join(problem.name for problem in PROBLEMS)} |"
    yield f"|---|---|{'---|' * len(PROBLEMS)}"
    for pair, theirs in PIP_364_RATINGS.items():
        said = " | ".join(theirs[problem.scenario] for problem in PROBLEMS)
        yield f"| `{pair}` | PIP-364 | {said} |"
        for mode in reversed(MODES):
            yield f"| | `{mode}` | {_row(figures, mode, pair)} |"
    yield ""


def _all_pairs(figures: Figures, mode: Mode) -> Iterator[str]:
    problems = figures.problems
    yield f"| pair | {' | '.join(problem.name for problem in problems)} |"
    yield f"|---|{'---|' * len(problems)}"
    for pair in (one for one in every_pair() if one.name in figures.pairs):
        yield f"| `{pair.name}` | {_row(figures, mode, pair.name)} |"


def _row(figures: Figures, mode: Mode, pair: str) -> str:
    return " | ".join(
        _shown(problem, figures, Cell(problem.scenario, mode, pair)) for problem in figures.problems
    )


def _shown(problem: Problem, figures: Figures, cell: Cell) -> str:
    medians = figures.medians(cell)
    rating = problem.rate(medians)
    text = ", ".join(_rounded(medians[measure.key]) for measure in problem.measures)
    return f"{'**bad**' if rating is Rating.BAD else rating} ({text})"


def _rounded(figure: float) -> str:
    return "never" if math.isinf(figure) else f"{figure:.3g}"


def _comment(cell: Cell, figures: Figures) -> str:
    theirs = PIP_364_RATINGS[cell.pair][cell.scenario]
    ours = figures.rating(cell)
    found = {key: _rounded(median) for key, median in figures.medians(cell).items()}
    return f"{theirs} there, {ours} here. {COMMENTS[cell.pair, cell.scenario].format(**found)}"


def _number(value: float) -> str:
    return "any" if math.isinf(value) else f"{value:g}"

"""The strategy guide: strategies, advice, and measured ratings (strategy_guide.md)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources

from loadmanager.config.pairs import SHEDDER_NAMES, placements_of
from loadmanager.config.strategy_guide import strategy_guide
from loadmanager.simulator.pip_364 import MODEL, SEEDS, Cell, Figures, measured
from loadmanager.simulator.ratings import PROBLEMS, Problem, Rating, problem_of
from loadmanager.simulator.scenario import FORMER_MODEL
from loadmanager.simulator.strategies import MODES, Mode, every_pair
from loadmanager.simulator.strategy_advice import AVOID, CHOOSE, COMMENTS, PIP_364_RATINGS, Advice


def strategies_document() -> str:
    """Return docs/strategies.md: the guide with measured ratings, as Markdown."""
    figures, former = measured(), measured(FORMER_MODEL)
    page = (resources.files(__package__) / "strategy_guide.md").read_text(encoding="utf-8")
    return strategy_guide(
        page.format(
            seeds=SEEDS[MODEL],
            former_seeds=SEEDS[FORMER_MODEL],
            choose=_advice("choose", CHOOSE),
            avoid=_advice("rather not", AVOID),
            good="\n".join(_good_pairs(former)),
            thresholds=_thresholds(),
            compared=_compared(former),
            differences="\n".join(_differences(former)),
            former_parity=_all_pairs(former, "parity"),
            former_safe=_all_pairs(former, "safe"),
            not_measured=_not_measured(figures),
            parity=_all_pairs(figures, "parity"),
            safe=_all_pairs(figures, "safe"),
        )
    )


def differing(figures: Figures) -> Iterator[Cell]:
    """Yield the cells whose measured rating in parity mode differs from that of PIP-364."""
    for pair, theirs in PIP_364_RATINGS.items():
        for scenario, rating in theirs.items():
            cell = Cell(scenario, "parity", pair)
            if figures.rating(cell) is not rating:
                yield cell


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (columns, *rows))
    header = next(lines)
    return "\n".join([header, f"|{'---|' * len(columns)}", *lines])


def _advice(column: str, given: Iterable[Advice]) -> str:
    rows = [(one.situation, f"`{one.pair}`", one.why, f"`{one.scenario}`") for one in given]
    return _table(("situation", column, "why", "scenario"), rows)


def _good_pairs(figures: Figures) -> Iterator[str]:
    for problem in PROBLEMS:
        good = [
            pair.name
            for pair in every_pair()
            if figures.rating(Cell(problem.scenario, "safe", pair.name)) is Rating.GOOD
        ]
        yield f"- {problem.name}: {', '.join(f'`{one}`' for one in _shortened(good)) or 'none'}"


def _shortened(pairs: Sequence[str]) -> list[str]:
    """Return pairs with ``shedder+*`` in place of all placements of a shedder."""
    found = []
    for shedder in SHEDDER_NAMES:
        mine = [pair for pair in pairs if pair.startswith(f"{shedder}+")]
        every = len(mine) > 1 and len(mine) == len(placements_of(shedder))
        found += [f"{shedder}+*"] if every else mine
    return found


def _thresholds() -> str:
    rows = [
        (
            problem.name,
            f"`{problem.scenario}`",
            measure.says,
            measure.unit,
            *(
                "any" if math.isinf(most) else f"{most:g}"
                for most in (measure.good_to, measure.normal_to)
            ),
        )
        for problem in PROBLEMS
        for measure in problem.measures
    ]
    return _table(("problem", "scenario", "figure", "unit", "good up to", "normal up to"), rows)


def _compared(figures: Figures) -> str:
    """Return the table of the ratings in PIP-364 and the measured ones."""
    rows: list[Sequence[str]] = []
    for pair, theirs in PIP_364_RATINGS.items():
        rows.append((f"`{pair}`", "PIP-364", *(theirs[one.scenario] for one in PROBLEMS)))
        rows += [("", f"`{mode}`", *_ratings(figures, mode, pair)) for mode in reversed(MODES)]
    return _table(("pair", "", *(one.name for one in PROBLEMS)), rows)


def _differences(figures: Figures) -> Iterator[str]:
    for cell in differing(figures):
        theirs, ours = PIP_364_RATINGS[cell.pair][cell.scenario], figures.rating(cell)
        found = {key: _rounded(median) for key, median in figures.medians(cell).items()}
        comment = COMMENTS[cell.pair, cell.scenario].format(**found)
        problem = problem_of(cell.scenario).name
        yield f"- **{cell.pair}, {problem}**: {theirs} there, {ours} here. {comment}"


def _not_measured(figures: Figures) -> str:
    missing = [problem.name for problem in PROBLEMS if problem not in figures.problems]
    return f"Not measured by it yet: {', '.join(missing)}.\n\n" if missing else ""


def _all_pairs(figures: Figures, mode: Mode) -> str:
    columns = ("pair", *(problem.name for problem in figures.problems))
    pairs = [pair.name for pair in every_pair() if pair.name in figures.pairs]
    return _table(columns, [(f"`{pair}`", *_ratings(figures, mode, pair)) for pair in pairs])


def _ratings(figures: Figures, mode: Mode, pair: str) -> list[str]:
    return [
        _shown(problem, figures, Cell(problem.scenario, mode, pair)) for problem in figures.problems
    ]


def _shown(problem: Problem, figures: Figures, cell: Cell) -> str:
    medians = figures.medians(cell)
    rating = problem.rate(medians)
    text = ", ".join(_rounded(medians[measure.key]) for measure in problem.measures)
    return f"{'**bad**' if rating is Rating.BAD else rating} ({text})"


def _rounded(figure: float) -> str:
    return "never" if math.isinf(figure) else f"{figure:.3g}"

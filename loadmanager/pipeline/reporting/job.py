"""The job ``report``: one HTML file with the results of all jobs, and next steps at its top."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from loadmanager.charts import Html, contents, page, section, tag
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.replay.measures import LEAST_HISTORY_S
from loadmanager.pipeline.reporting.capacity import CAPACITY
from loadmanager.pipeline.reporting.cost_parts import QUALITY, SPEEDS
from loadmanager.pipeline.reporting.formats import many, span
from loadmanager.pipeline.reporting.loads import BALANCE, DISTANCE, HOTTEST
from loadmanager.pipeline.reporting.moves import MOVES
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, next_steps
from loadmanager.pipeline.reporting.runs import INTAKE, REPLAYED
from loadmanager.pipeline.reporting.shapes import CUTS, NAMESPACES
from loadmanager.pipeline.reporting.sources import Tables, bounds_ms, clusters, sound

SECTIONS: Final = (
    *(BALANCE, DISTANCE, MOVES, HOTTEST, CUTS, NAMESPACES),
    *(CAPACITY, SPEEDS, QUALITY, REPLAYED, INTAKE),
)

FILE: Final = "report.html"

MOST_CLUSTERS: Final = 5
"""The most clusters in a report."""

_TO_DO: Final = "What to do next"


def run(work: Work) -> list[str]:
    """Write the report and return its path.

    Raises:
        PipelineError: nothing was ingested.
    """
    text, findings = written(work)
    where = f"{work.store.out}/{FILE}"
    work.store.files.write(where, text)
    steps = [f"- {one.text}" for one in findings if one.weight is Weight.ACT]
    return [f"{where}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser", *steps]


def written(work: Work) -> tuple[str, Sequence[Finding]]:
    names = clusters([work.store.table("broker_load")])
    shown = names[:MOST_CLUSTERS]
    parts = {
        name: cluster_parts(Tables(work.store, name, work.since, work.until)) for name in shown
    }
    return report_page(parts, left_out=len(names) - len(shown)), [
        one for mine in parts.values() for part in mine for one in part.findings
    ]


def report_page(parts: dict[str, list[Part]], *, left_out: int = 0) -> str:
    """Return the page with the parts of each cluster; it only depends on the parts."""
    names = list(parts)
    title = f"Load of {names[0]}" if len(names) == 1 else f"Load of {many(len(names), 'cluster')}"
    links: list[tuple[str, str]] = []
    body: list[Html] = []
    for number, (name, mine) in enumerate(parts.items(), start=1):
        several = len(names) > 1
        findings = [one for part in mine for one in part.findings]
        heading = f"{_TO_DO}: {name}" if several else _TO_DO
        links.append((heading, f"next-{number}"))
        body.append(section(heading, next_steps(findings), anchor=f"next-{number}"))
        for place, part in enumerate(mine, start=1):
            anchor = f"part-{number}-{place}"
            links.append((f"{part.title} ({name})" if several else part.title, anchor))
            body.append(part.html(anchor))
    if not names:
        body.append(tag("p", "No broker reported anything in this history."))
    if left_out > 0:
        body.append(tag("p", f"{many(left_out, 'more cluster')} in the tables are left out."))
    return page(title, *body[:1], contents(links), *body[1:])


def cluster_parts(tables: Tables) -> list[Part]:
    """Return all parts of the report of a cluster; parts without tables name the missing job.

    With less history than advice needs, no conclusion recommends an action.
    """
    bounds = bounds_ms(sound(tables.table("broker_load")), "at")
    history_s = 0.0 if bounds is None else (bounds[1] - bounds[0]) / 1000
    parts = [one.part(tables) for one in SECTIONS]
    return parts if history_s >= LEAST_HISTORY_S else [too_short(one, history_s) for one in parts]


def too_short(part: Part, history_s: float) -> Part:
    """Return the part with conclusions that recommend no action, as the history is too short."""
    so_far = f" (in {span(history_s)}; advice needs {span(LEAST_HISTORY_S)} of history)"
    findings = [
        replace(one, weight=Weight.LOOK, text=one.text.removesuffix(".") + so_far + ".")
        if one.weight is Weight.ACT
        else one
        for one in part.findings
    ]
    return replace(part, findings=findings)

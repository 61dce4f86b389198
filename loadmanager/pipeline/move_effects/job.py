"""The job ``moves``: the effect of each move, and its cost for clients."""

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.files import literal
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.move_effects.effects import Recorded, effects, summary
from loadmanager.pipeline.move_effects.hand_overs import ping_pong
from loadmanager.pipeline.move_effects.move_tables import (
    MOVE_EFFECTS,
    MOVE_PREDICTIONS,
    MOVE_SUMMARY,
    PING_PONG,
)
from loadmanager.pipeline.move_effects.predictions import errors
from loadmanager.pipeline.move_effects.windows import (
    LONGEST_S,
    Windows,
    fitting_window_s,
    loads,
    weights_in_force,
)
from loadmanager.pipeline.store import Store

BACK_WITHIN_S: Final = 3600.0
"""A bundle that returns to a broker within an hour counts as returned."""

_MARGIN: Final = timedelta(seconds=4 * LONGEST_S)
"""Reports for the first and the last move may be this much before and after them."""


def run(work: Work) -> list[str]:
    """Write the tables of moves.

    Raises:
        PipelineError: nothing was ingested.
    """
    given = _given(work)
    windows = Windows(_window_s(work.store.table("broker_load")))
    drafts = Drafts(work.store)
    try:
        found = effects(given, windows, BACK_WITHIN_S, keep=drafts.keep)
        work.store.replace(
            "moves",
            {
                MOVE_EFFECTS: found.moves,
                MOVE_PREDICTIONS: errors(found.targets),
                MOVE_SUMMARY: lambda written: summary(written(MOVE_EFFECTS.name)),
                PING_PONG: lambda written: ping_pong(written(MOVE_EFFECTS.name)),
            },
            {"window_s": windows.window_s, "back_within_s": BACK_WITHIN_S},
        )
    finally:
        drafts.remove()
    return _lines(work, windows)


class Drafts:
    """Intermediate frames in files, to be computed once and read several times.

    Persisted frames keep the whole plan that made them. These plans use each other so often that
    comparing them takes more memory than the data.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = f"{store.out}/drafts-moves"
        self._count = 0

    def keep(self, frame: DataFrame) -> DataFrame:
        """Write a frame to a file, and return a frame that reads it."""
        self._count += 1
        where = f"{self._folder}/{self._count}"
        frame.write.mode("overwrite").parquet(where)
        return frame.sparkSession.read.schema(frame.schema).parquet(literal(where))

    def remove(self) -> None:
        self._store.files.delete(self._folder)


def _given(work: Work) -> Recorded:
    table = work.store.table

    def rows(name: str, margin: timedelta) -> DataFrame:
        return between(table(name), work.since, work.until, margin=margin)

    reports = rows("broker_load", _MARGIN)
    return Recorded(
        moves=rows("moves", timedelta()),
        hand_overs=rows("hand_overs", _MARGIN),
        loads=loads(reports, weights_in_force(table("rounds"))),
        bundle_load=rows("bundle_load", _MARGIN),
    )


def _window_s(broker_load: DataFrame) -> float:
    columns = ("interval_s", "window_s")
    usual = broker_load.agg(*(F.percentile_approx(name, 0.5, 1000) for name in columns)).first()
    return fitting_window_s(*(usual or (None, None)))


def _lines(work: Work, windows: Windows) -> list[str]:
    by = work.store.table("move_summary")
    names = ("moves", "helped", "no_difference", "hurt", "judged", "returns", "messages_delayed")
    row = by.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names)).first()
    counted = row.asDict() if row else dict.fromkeys(names, 0)
    if not counted["moves"]:
        return ["no moves"]
    return [
        (
            f"{counted['moves']} moves, {counted['judged']} judged by the load of both brokers "
            f"{windows.window_s:g} s before and after: {counted['helped']} helped, "
            f"{counted['no_difference']} made no difference, {counted['hurt']} hurt"
        ),
        (
            f"{counted['returns']} brought a bundle back within {BACK_WITHIN_S:g} s; "
            f"about {counted['messages_delayed']:.0f} messages had to wait"
        ),
    ]

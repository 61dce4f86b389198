"""The job ``moves``: the effect of each move, and its cost for clients."""

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DoubleType, StructField, StructType

from loadmanager.pipeline.contract import Table, columns
from loadmanager.pipeline.expressions import between
from loadmanager.pipeline.files import literal
from loadmanager.pipeline.jobs import Work
from loadmanager.pipeline.move_effects.effects import Recorded, effects, ping_pong, summary
from loadmanager.pipeline.move_effects.predictions import MODELS, errors
from loadmanager.pipeline.move_effects.windows import (
    FRACTIONS,
    LONGEST_S,
    USED,
    Windows,
    fitting_window_s,
    loads,
    weights_in_force,
)
from loadmanager.pipeline.store import Store

BACK_WITHIN_S: Final = 3600.0


def _struct(names: tuple[str, ...], form: DataType | None = None) -> StructType:
    return StructType([StructField(name, form or DoubleType()) for name in names])


_AROUND: Final = _struct(("covered_s", *FRACTIONS))
_MODELS: Final = _struct(MODELS)
_CHANGE: Final = _struct((*MODELS, "realised"))

MOVE_EFFECTS: Final = Table(
    name="move_effects",
    job="moves",
    meaning="Every move: its hand-over, both brokers before and after, whether it helped, and "
    "what clients paid.",
    by=("date",),
    schema=columns(
        """
        cluster string Name of the cluster.
        writer string Sidecar that wrote it: with instance and seq, the line of history.
        instance string Instance of the writer.
        seq bigint Number of its line.
        date date Day of the decision in UTC.
        at timestamp When it was decided.
        epoch bigint Epoch of the leader's term.
        round bigint Round that decided it; 0 for between two rounds.
        bundle string Bundle that moved.
        namespace string Namespace of the bundle.
        source string Broker that had it; null if none had.
        target string Broker that was to have it.
        outcome string As decided: moved, placed, observed or failed.
        cause string Cause of the move.
        shedder string Strategy that offered it.
        placement string Strategy that chose the target.
        for_balance boolean Whether the cause is to make load more even.
        ended string How the hand-over ended: finished, replaced, left; null if unknown.
        ordered_at timestamp When the order was written; of the decision if unknown.
        acquired_at timestamp When the target was seen to serve.
        took_s double Time from the order until the target served it, seconds.
        pause_s double For how long no broker served it, seconds.
        msgs_in_per_s double Its messages in when it was decided, short-term average.
        msgs_out_per_s double Its messages out, the same.
        bytes_in_per_s double Its bytes in, the same.
        bytes_out_per_s double Its bytes out, the same.
        messages_delayed double Messages in that had to wait: their rate times the pause.
        topics bigint Topics that had to be looked up again.
        connections bigint Producers and consumers that had to connect again.
        back_after_s double Time since it had left the target; null unless it came back.
        source_before around Means of the source before the order, fractions; seconds.
        source_after around The same, after the target served it.
        target_before around Means of the target before the order.
        target_after around The same, after it served it.
        control string Brokers whose growth stands for all: unaffected ones, all, none.
        control_brokers bigint Number of brokers of the control.
        growth_score double By which factor their mean score grew meanwhile.
        spread_before double Difference of the scores of source and target before.
        spread_expected double The same afterwards, had it grown like the control.
        spread_after double The same, after the target served the bundle.
        gain double By how much the spread is smaller than was to be expected.
        tolerance double A gain within this is no difference.
        max_over_mean_before double Highest score over the mean of all brokers before.
        max_over_mean_after double Highest score over the mean of all brokers after.
        deviation_before double Standard deviation of all brokers' scores before.
        deviation_after double Standard deviation of all brokers' scores after.
        verdict string helped, no difference, hurt or unknown.
        reason string Why it is unknown, else empty.
        bundle_uses uses What the bundle uses by its share of its source's traffic.
        counted bigint Moves in the change of the target, this one included.
        target_change change What those were to add to the target, and did.
        """,
        around=_AROUND,
        uses=_struct(USED, _MODELS),
        change=_struct(USED, _CHANGE),
    ),
)

MOVE_PREDICTIONS: Final = Table(
    name="move_predictions",
    job="moves",
    meaning="How far off shares of traffic were about what moves add to their targets.",
    schema=columns(
        """
        cluster string Name of the cluster.
        resource string Resource: cpu in percent of one core, memory MiB, kbit/s.
        model string traffic_share.
        changes bigint Changes of a target that could be compared.
        realised_mean double Mean of what was added, units of the resource.
        error_mean double Mean size of the error, units of the resource.
        bias_mean double Mean error: above 0, too much was predicted.
        error_fraction double All errors over all that was realised.
        """
    ),
)

PING_PONG: Final = Table(
    name="ping_pong",
    job="moves",
    meaning="Bundles that went back to a broker they had left shortly before.",
    schema=columns(
        """
        cluster string Name of the cluster.
        rank int From 1: most returns first, then most messages delayed.
        bundle string Bundle that moved.
        namespace string Namespace of the bundle.
        returns bigint Moves that brought it back.
        returns_for_balance bigint Of those, for the sake of balance.
        moves bigint All its moves.
        brokers int Brokers that they went between.
        shortest_back_s double Shortest time away, seconds.
        median_back_s double Median time away, seconds.
        pause_s double For how long no broker served it, all moves.
        messages_delayed double Messages in that had to wait, all moves.
        usual_cause string Most frequent cause of its moves.
        first_at timestamp When its first move was ordered.
        last_at timestamp When its last move was ordered.
        """
    ),
)

MOVE_SUMMARY: Final = Table(
    name="move_summary",
    job="moves",
    meaning="What the moves of each strategy and cause came to.",
    schema=columns(
        """
        cluster string Name of the cluster.
        shedder string Strategy that offered the bundles.
        placement string Strategy that chose their targets.
        cause string Cause of the moves.
        moves bigint All that were decided.
        finished bigint Moves that arrived.
        judged bigint Moves with a verdict that is not unknown.
        helped bigint Moves that made the spread smaller.
        no_difference bigint Moves that did not change the spread.
        hurt bigint Moves that made the spread larger.
        helped_fraction double Fraction of the judged moves that helped.
        gain_mean double By how much the spread became smaller, mean, fraction.
        evened_mean double By how much max/mean of the cluster fell, mean.
        returns bigint Moves that brought a bundle back.
        pause_p50_s double Median pause, seconds.
        pause_p95_s double 95th percentile of the pauses, seconds.
        pause_s double All pauses together, seconds.
        messages_delayed double Messages in that had to wait.
        topics bigint Topics that had to be looked up again.
        connections bigint Producers and consumers that had to connect again.
        """
    ),
)


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

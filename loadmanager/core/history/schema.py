"""Schema of the lines of history: one declaration for writer, reader, Spark and documents.

A line is one JSON object. Lists that belong together are columns: an object of lists of one
length, ``{"bundle": [...], "msgs_in_per_s": [...]}``, which is a third of the text of a list
of objects and takes a third of the time to read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from loadmanager.core.bounds import TIME_MS, TOTAL, TOTAL_COUNT, Bound

VERSION: Final = 1
"""Grows when a reader of the former version would misread a line; new fields do not."""


class Type(StrEnum):
    """Type of a field. Spark: string, bigint, bigint, double, boolean."""

    TEXT = "text"
    COUNT = "count"
    """A whole number within `TOTAL_COUNT`."""
    TIME = "time"
    """Milliseconds since 1970, a whole number within `TIME_MS`."""
    RATE = "rate"
    """A finite number within `TOTAL`."""
    FLAG = "flag"


BOUNDS: Final[Mapping[Type, Bound]] = MappingProxyType(
    {Type.COUNT: TOTAL_COUNT, Type.TIME: TIME_MS, Type.RATE: TOTAL}
)
"""The bounds of each type of number: sums over bundles are recorded as well as single figures."""


class Stream(StrEnum):
    """The files that have a kind of line; each writer numbers the lines of each stream."""

    REPORTS = "reports"
    ROUNDS = "rounds"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line.

    ``nullable`` fields are null where a value is unknown or does not apply; the field
    itself is always present. ``listed`` is a list of such values. Lines that were written
    before a field was ``added`` lack it, and it is read as null.
    """

    name: str
    meaning: str
    type: Type
    nullable: bool = False
    listed: bool = False
    added: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Several lists of one length, one for each field: a table inside a line."""

    name: str
    fields: tuple[Field, ...]
    meaning: str


@dataclass(frozen=True)
class Kind:
    name: str
    stream: Stream
    fields: tuple[Field | Columns, ...]
    meaning: str

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The fields that lines of earlier versions lack; they are read as null."""
        return tuple(one.name for one in self.fields if isinstance(one, Field) and one.added)


text = partial(Field, type=Type.TEXT)
count = partial(Field, type=Type.COUNT)
time = partial(Field, type=Type.TIME)
rate = partial(Field, type=Type.RATE)
flag = partial(Field, type=Type.FLAG)

ENVELOPE: Final = (
    count("schema", "Version of this format."),
    text("kind", "Kind of the line."),
    text("cluster", "Name of the cluster."),
    text("writer", "Broker id of the sidecar that wrote the line; attach-HOST:0 of attach."),
    text("instance", "Generated at each start of the writer."),
    count("seq", "From 1 and without a gap for each writer, instance and stream."),
    time("at_ms", "When it happened: milliseconds since 1970 on the writer's wall clock."),
)
"""The first fields of every line, in this order."""

TRAFFIC: Final = (
    rate("msgs_in_per_s", "Messages per second from producers."),
    rate("msgs_out_per_s", "Messages per second to consumers."),
    rate("bytes_in_per_s", "Bytes per second from producers."),
    rate("bytes_out_per_s", "Bytes per second to consumers."),
)

RESOURCES: Final = tuple(
    rate(f"{resource}_{part}", f"{what}, {unit}.{note}")
    for resource, unit in (
        ("cpu", "percent of one core"),
        ("memory", "MiB"),
        ("direct_memory", "MiB"),
        ("bandwidth_in", "kbit/s"),
        ("bandwidth_out", "kbit/s"),
    )
    for part, what, note in (
        ("usage", "Usage", ""),
        ("limit", "Limit", " 0: not measured."),
    )
)

VARIED: Final = tuple(
    rate(f"{resource}_{part}", what, nullable=True, added=True)
    for resource in ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
    for part, what in (
        ("mean", "Mean usage of the samples since the bundles changed; null if there is only one."),
        ("variance", "Variance of usage over the same samples, in its unit squared."),
    )
)

TERM: Final = (
    count("epoch", "Epoch of the leader's term."),
    count("round", "Rounds of this term so far, including the current one; 0 before the first."),
)

AT_TICK: Final = count(
    "tick", "Ticks of this term before the decision; null from simulations.", nullable=True
)

SHORT_AND_LONG: Final = tuple(
    rate(f"{length}_{name}", f"{label} average of the {what}.")
    for length, label in (("short", "Short-term"), ("long", "Long-term"))
    for name, what in (
        ("msgs_in_per_s", "messages in"),
        ("msgs_out_per_s", "messages out"),
        ("bytes_in_per_s", "bytes in"),
        ("bytes_out_per_s", "bytes out"),
    )
)

MOVING: Final = (
    text("source", "Previous broker; null if none.", nullable=True),
    text("target", "Next broker."),
)


def by_name(kinds: tuple[Kind, ...]) -> Mapping[str, Kind]:
    return MappingProxyType({kind.name: kind for kind in kinds})


REPORT: Final = Kind(
    "report",
    Stream.REPORTS,
    (
        text(
            "broker",
            "The broker that the report is about: the writer, or any one in a simulation.",
        ),
        text("broker_class", "Class of the broker (hardware, image); empty if not set."),
        time("started_at_ms", "When the broker's sidecar began; changes with a restart."),
        time("reported_at_ms", "Wall clock of the sample; identifies the report in other lines."),
        text("version", "Version of the broker."),
        text(
            "due",
            "Why it was published: first, forced, registration, bundles, usage, msg_rate, "
            "throughput, age; simulated where a simulation gives no reason.",
        ),
        rate(
            "interval_s",
            "Since the previous report, monotonic clock; null for the first of a registration.",
            nullable=True,
        ),
        rate("window_s", "Time over which rates are means; null if unknown.", nullable=True),
        flag("draining", "Whether the broker is being drained."),
        flag("healthy", "Whether it passes its health checks."),
        flag("persistent_topics", "Whether it takes persistent topics."),
        flag("non_persistent_topics", "Whether it takes non-persistent topics."),
        *RESOURCES,
        *VARIED,
        *TRAFFIC,
        count("topics", "Topics in all bundles."),
        count("producers", "Producers of all bundles."),
        count("consumers", "Consumers of all bundles."),
        Columns(
            "bundles",
            (
                text("bundle", "tenant/namespace/0xLLLLLLLL_0xUUUUUUUU"),
                *TRAFFIC,
                count("topics", "Topics."),
                count("producers", "Producers."),
                count("consumers", "Consumers."),
                count("cache_bytes", "Size of its cache."),
            ),
            "Each bundle that the broker serves.",
        ),
        text("gains", "Bundles added since the previous report.", listed=True),
        text("losses", "Bundles gone since the previous report.", listed=True),
    ),
    "The load report of one broker, each time its agent publishes one.",
)

TERM_CHANGE: Final = Kind(
    "term",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the term."),
        text("event", "began or ended."),
    ),
    "A term of the writer as leader began or ended. A killed leader writes no end.",
)

TICK: Final = Kind(
    "tick",
    Stream.ROUNDS,
    (
        *TERM,
        count("tick", "Ticks of this term so far, from 1."),
        flag("sampled", "Whether a sample was added to all averages; else only reports were read."),
        Columns(
            "taken",
            (
                text("broker", "Broker."),
                time("reported_at_ms", "Its new report."),
            ),
            "Reports that the leader read since the previous tick: they count from now on.",
        ),
        text("left", "Brokers that left since the previous tick.", listed=True),
    ),
    "The leader added one sample of every bundle to its averages, from the latest reports.",
)

ROUND: Final = Kind(
    "round",
    Stream.ROUNDS,
    (
        *TERM,
        AT_TICK,
        text("outcome", "moved, observed, quiet, or failed: the orders could not be written."),
        rate("took_s", "Duration.", nullable=True),
        flag("base", "Whether it has bundles lines, memory and constraints."),
        text("steering", "Balancing mode: active, observing or paused."),
        text("mode", "The planner's mode: safe or parity."),
        text("shedder", "Strategy that chooses bundles to move."),
        text("placement", "Strategy that chooses their brokers."),
        text("settings", "All settings in force, as the settings of a snapshot (JSON)."),
        flag("session_doubtful", "Whether it was uncertain that the leader still leads."),
        rate("tick_interval_s", "Time between samples of the averages.", nullable=True),
        rate(
            "membership_changed_ago_s",
            "Time since a broker last joined or left.",
            nullable=True,
        ),
        rate("departed_ago_s", "Times since brokers left recently.", listed=True),
        count("moves", "Moves that were decided."),
        count("observed", "Moves that were not ordered, because of the balancing mode."),
        count("bundles_known", "Bundles known to the leader."),
        rate("mean_score", "Mean of the brokers' scores.", nullable=True),
        rate("highest_score", "Highest of the brokers' scores.", nullable=True),
        rate("lowest_score", "Lowest of the brokers' scores.", nullable=True),
        Columns(
            "brokers",
            (
                text("broker", "Broker."),
                time("reported_at_ms", "Its latest report; null if unknown.", nullable=True),
                time("started_at_ms", "When the broker's sidecar began."),
                text("version", "Version of the broker."),
                rate("age_s", "Age of the report."),
                rate("score", "Its load by the configured weights, a fraction."),
                rate("load_ema", "Moving average of its load, a fraction.", nullable=True),
                rate("bytes_ema", "Moving average of its throughput.", nullable=True),
                *RESOURCES,
                *TRAFFIC,
                rate("long_msgs_per_s", "Sum of the long-term message rates of its bundles."),
                rate("preallocated_msgs_per_s", "The same of bundles being moved to it."),
                count("topics", "Topics."),
                count("bundles", "Bundles in its report."),
                flag("draining", "Whether it is being drained."),
                flag("persistent_topics", "Whether it takes persistent topics."),
                flag("non_persistent_topics", "Whether it takes non-persistent topics."),
            ),
            "Brokers in the leader's view, by name.",
        ),
        Columns(
            "in_flight",
            (text("bundle", "Bundle."), text("target", "Broker that it is ordered to.")),
            "Orders that were not yet carried out.",
        ),
        text("unowned", "Bundles waiting for a broker.", listed=True),
        Columns(
            "refusals",
            (
                text("subject", "A broker, a bundle, or empty for the whole round."),
                text("reason", "One of the reasons in the strategy guide."),
                text("detail", "The deciding figures, human-readable."),
            ),
            "Everything that was left alone, with the reason.",
        ),
        text("memory", "Strategies' memory before a base round (JSON), else null.", nullable=True),
        text(
            "constraints",
            "Isolation, anti-affinity and failure domains at a base round, as the constraints of "
            "a snapshot (JSON), else null.",
            nullable=True,
        ),
    ),
    "One round of the leader: its view, moves and refusals.",
)

OPTIMALITY: Final = Kind(
    "optimality",
    Stream.ROUNDS,
    (
        *TERM,
        rate("largest", "Largest CPU or network usage of any broker, as a fraction of its limit."),
        rate("bound", "Proven lower bound of that over all assignments of bundles."),
        rate(
            "bound_within_policies",
            "The same over all assignments that isolation policies and drains allow.",
        ),
        rate("gap", "Difference of largest and bound, divided by the bound."),
        rate("gap_within_policies", "The same for the bound within policies."),
        rate(
            "excess",
            "Mean over the brokers of how far each is above the level of even load, "
            "divided by that level.",
        ),
    ),
    "Distance of the cluster from the best possible at a round, by the costs that the leader "
    "decided with. Rounds that follow another too soon have no such line.",
)

SHADOW: Final = Kind(
    "shadow",
    Stream.ROUNDS,
    (
        *TERM,
        text("strategy", "Strategy evaluated beside the active one; it moves nothing."),
        rate("largest", "Largest usage of any broker under this strategy, a fraction."),
        rate("gap", "Difference of that and the proven lower bound, divided by the bound."),
        rate("active_gap", "The same of the real cluster."),
        count("moves", "Bundles that it would have moved for load."),
        rate("moved", "Their share of all traffic, half by messages and half by bytes."),
        count("active_moves", "Moves of the active strategy."),
        rate("active_moved", "Their share of all traffic."),
    ),
    "The state of the cluster at a round if this strategy had decided since the term began; "
    "computed as often as the optimality lines.",
)

BUNDLES: Final = Kind(
    "bundles",
    Stream.ROUNDS,
    (
        *TERM,
        AT_TICK,
        count("part", "From 1: the bundles of one round are spread over several lines."),
        count("parts", "Number of lines that the bundles of the round take."),
        Columns(
            "bundles",
            (
                text("bundle", "Bundle."),
                text("owner", "Broker whose report lists it; null for none.", nullable=True),
                *SHORT_AND_LONG,
                count("short_samples", "Samples in the short-term average, at most 10."),
                count("long_samples", "Samples in the long-term average, at most 1000."),
                count("topics", "Topics at the last sample."),
            ),
            "Bundles that the leader has a sample of.",
        ),
    ),
    "The leader's averages of every bundle at a base round, before it decided.",
)

MOVE: Final = Kind(
    "move",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        count("round", "Round that decided it; 0 for between rounds."),
        count("move", "Number of the move in its term, from 1."),
        text("bundle", "Bundle."),
        *MOVING,
        text(
            "outcome",
            "moved; placed: it had no owner; observed: not ordered, because of the balancing mode; "
            "failed: its order could not be written. Task lines follow each order to its end.",
        ),
        text(
            "cause",
            "overloaded, underloaded, imbalance, swap, isolation, anti_affinity, count, draining, "
            "unowned or requested.",
        ),
        text("shedder", "Strategy in force."),
        text("placement", "Strategy in force."),
        *(rate(one.name, f"Short-term average. {one.meaning}", nullable=True) for one in TRAFFIC),
        rate("source_score", "Score of the source before; null without one.", nullable=True),
        rate("target_score", "Score of the target before; null if unknown.", nullable=True),
    ),
    "A move was decided: ordered, or only observed.",
)

HAND_OVER: Final = Kind(
    "hand_over",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        text("bundle", "Bundle."),
        *MOVING,
        text("outcome", "finished; replaced: by another order or none; left: the term ended."),
        time("ordered_at_ms", "When the order was written."),
        time("released_at_ms", "When the leader saw the release by the source.", nullable=True),
        time("acquired_at_ms", "When the leader saw the target serve.", nullable=True),
        rate("took_s", "From the order until the target served, monotonic clock.", nullable=True),
        rate("pause_s", "How long at most no broker served, monotonic clock.", nullable=True),
        time(
            "seen_before_ms",
            "When the source was last known to serve its topics; null if not followed.",
            nullable=True,
            added=True,
        ),
        time(
            "seen_after_ms",
            "When most of its topics were first active at the target; null if not followed.",
            nullable=True,
            added=True,
        ),
    ),
    "An order that had been written ended.",
)

TASK: Final = Kind(
    "task",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        count("task", "Number of the task in its term, from 1."),
        text("action", "place, move, split or merge."),
        text("bundles", "The bundle; both halves of a merge.", listed=True),
        *MOVING,
        text("cause", "As in a move line, or oversized; inherited: a former leader ordered it."),
        text("asked_by", "unowned, people, drain, reconciliation or balancing."),
        text(
            "state",
            "unconfirmed: the reply to its order was lost; ordered; released: by its source; "
            "and at its end serving, failed, superseded, timed_out, landed_elsewhere, stuck or "
            "owned_not_served.",
        ),
        rate("age_s", "Time since it was proposed, monotonic clock."),
        count("attempts", "How often its order was written."),
        text("note", "Why it ended, human-readable."),
    ),
    "A bundle task entered a new state.",
)

CUT: Final = Kind(
    "cut",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        text("action", "split or merge."),
        text("whole", "The bundle that was split, or the result of the merge."),
        text("parts", "The halves of the split or merge.", listed=True),
    ),
    "The leader saw that bundles were split or merged.",
)

LOST_REPORTS, LOST_ROUNDS = (
    Kind(
        name,
        stream,
        (
            count("records", "Number of lines that were not written."),
            text(
                "why",
                "queue_full; unwritable: the disk was full or gone for too long; unfit: a number "
                "in it was not finite.",
            ),
            time("first_at_ms", "Time of the first."),
            time("last_at_ms", "Time of the last."),
        ),
        "Lines that the writer dropped; none is missing without such a line.",
    )
    for name, stream in (("lost_reports", Stream.REPORTS), ("lost_rounds", Stream.ROUNDS))
)

KINDS: Final = by_name(
    (
        REPORT,
        LOST_REPORTS,
        TERM_CHANGE,
        TICK,
        ROUND,
        OPTIMALITY,
        SHADOW,
        BUNDLES,
        MOVE,
        HAND_OVER,
        TASK,
        CUT,
        LOST_ROUNDS,
    )
)
"""All kinds by name."""

"""Every kind of line there is."""

from typing import Final

from loadmanager.core.history.schema import (
    AT_TICK,
    MOVING,
    RESOURCES,
    SHORT_AND_LONG,
    TERM,
    TRAFFIC,
    VARIED,
    Columns,
    Field,
    Kind,
    Stream,
    Type,
    by_name,
    count,
    flag,
    rate,
    text,
    time,
)

REPORT: Final = Kind(
    "report",
    Stream.REPORTS,
    (
        text(
            "broker",
            "The broker that is reported on. Live, it is the writer; a simulation writes for all.",
        ),
        text("broker_class", "Word for brokers of one kind (hardware, image); empty if not set."),
        time("started_at_ms", "When the broker's sidecar began; changes with a restart."),
        time("reported_at_ms", "Wall clock of the sample; names the report in other lines."),
        text("version", "Version of the broker."),
        text(
            "due",
            "Why it was published: first, forced, registration, bundles, usage, msg_rate, "
            "throughput, age; simulated where a simulation does not say.",
        ),
        rate(
            "interval_s",
            "Since the report before on the monotonic clock; null for the first of a registration.",
            nullable=True,
        ),
        rate("window_s", "Over how long the rates are means; null if unknown.", nullable=True),
        flag("draining", "Whether the broker is being emptied."),
        flag("healthy", "Whether it passes its health checks."),
        flag("persistent_topics", "Whether it takes persistent topics."),
        flag("non_persistent_topics", "Whether it takes other topics."),
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
        Field("gains", Type.TEXT, "Bundles it had not in the report before.", listed=True),
        Field("losses", Type.TEXT, "Bundles it has no more.", listed=True),
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
    "A term of the writer as leader began or ended. A leader that is killed ends none.",
)

TICK: Final = Kind(
    "tick",
    Stream.ROUNDS,
    (
        *TERM,
        count("tick", "Ticks of this term so far, from 1."),
        flag("sampled", "Whether a sample was added to all averages; else reports were taken."),
        Columns(
            "taken",
            (
                text("broker", "Broker."),
                time("reported_at_ms", "Its report that was taken."),
            ),
            "Reports that the leader took up since the tick before: they count from now on.",
        ),
        Field("left", Type.TEXT, "Brokers that left since the tick before.", listed=True),
    ),
    "The leader added one sample of every bundle to its averages, from the last reports.",
)

ROUND: Final = Kind(
    "round",
    Stream.ROUNDS,
    (
        *TERM,
        AT_TICK,
        text("outcome", "moved, observed, quiet, or failed: the orders could not be written."),
        rate("took_s", "How long it took.", nullable=True),
        flag("base", "Whether bundles lines and the texts memory and constraints go with it."),
        text("steering", "How far the leader may go by itself: active, observing or paused."),
        text("mode", "The planner's mode: safe or parity."),
        text("shedder", "Strategy that offers bundles."),
        text("placement", "Strategy that chooses their brokers."),
        text("settings", "All settings in force, as the settings of a snapshot (JSON)."),
        flag("session_doubtful", "Whether the leader was unsure that it still leads."),
        rate("tick_interval_s", "Time between samples of the averages.", nullable=True),
        rate("membership_changed_ago_s", "When a broker last came or left.", nullable=True),
        Field("departed_ago_s", Type.RATE, "When brokers left lately.", listed=True),
        count("moves", "Moves that were decided."),
        count("observed", "Moves that were not, because of the mode."),
        count("bundles_known", "Bundles that the leader knows of."),
        rate("mean_score", "Mean of the brokers' scores.", nullable=True),
        rate("highest_score", "Highest of the brokers' scores.", nullable=True),
        rate("lowest_score", "Lowest of the brokers' scores.", nullable=True),
        Columns(
            "brokers",
            (
                text("broker", "Broker."),
                time("reported_at_ms", "The report that stands; null if unknown.", nullable=True),
                time("started_at_ms", "When the broker's sidecar began."),
                text("version", "Version of the broker."),
                rate("age_s", "How old the report was."),
                rate("score", "Its load by the configured weights, a fraction."),
                rate("load_ema", "Its running load, a fraction; null if none.", nullable=True),
                rate("bytes_ema", "Its running throughput; null if none.", nullable=True),
                *RESOURCES,
                *TRAFFIC,
                rate("long_msgs_per_s", "Long-term message rates of its bundles, summed."),
                rate("preallocated_msgs_per_s", "Of those that are on their way to it."),
                count("topics", "Topics."),
                count("bundles", "Bundles its report lists."),
                flag("draining", "Whether it is being emptied."),
                flag("persistent_topics", "Whether it takes persistent topics."),
                flag("non_persistent_topics", "Whether it takes other topics."),
            ),
            "Each broker as the leader saw it, by name.",
        ),
        Columns(
            "in_flight",
            (text("bundle", "Bundle."), text("target", "Broker it is ordered to.")),
            "Orders that were not carried out yet.",
        ),
        Field("unowned", Type.TEXT, "Bundles that waited for a broker.", listed=True),
        Columns(
            "refusals",
            (
                text("subject", "A broker, a bundle, or empty for the whole round."),
                text("reason", "Word of the closed list of reasons."),
                text("detail", "The figures that decided, for people."),
            ),
            "All that was left alone, and why.",
        ),
        text("memory", "Strategies' memory before a base round (JSON), else null.", nullable=True),
        text(
            "constraints",
            "Isolation, anti-affinity and failure domains at a base round, as the constraints of "
            "a snapshot (JSON), else null.",
            nullable=True,
        ),
    ),
    "One round of the leader: what it saw, decided and left alone.",
)

OPTIMALITY: Final = Kind(
    "optimality",
    Stream.ROUNDS,
    (
        *TERM,
        rate("largest", "The largest use of CPU or network of any broker, of its limit."),
        rate("bound", "What that is at least, wherever the bundles are: a proven lower bound."),
        rate(
            "bound_within_policies",
            "The same, wherever isolation policies and drains let the bundles be.",
        ),
        rate("gap", "How far the largest use is above the bound, over the bound."),
        rate("gap_within_policies", "The same for the bound within policies."),
        rate(
            "excess",
            "How far brokers are above the level at which the load is even, mean over the "
            "brokers, over the level.",
        ),
    ),
    "How far the cluster was from the best possible at a round, by the costs that the leader "
    "decided with. After a round that follows another too soon there is no such line.",
)

SHADOW: Final = Kind(
    "shadow",
    Stream.ROUNDS,
    (
        *TERM,
        text("strategy", "Strategy beside the active one, which moved nothing."),
        rate("largest", "The largest use of any broker as it would have been, of its limit."),
        rate("gap", "How far that is above the proven lower bound, over the bound."),
        rate("active_gap", "The same of the cluster as it was."),
        count("moves", "Bundles that it would have moved for their load."),
        rate("moved", "Their part of all traffic, half by messages and half by bytes."),
        count("active_moves", "Moves of the active strategy."),
        rate("active_moved", "Their part of all traffic."),
    ),
    "What a strategy would have had at a round, had it decided since the term began. It is "
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
                text("owner", "Broker whose report lists it, null for none.", nullable=True),
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
        count("round", "Round that decided it; 0 for between two rounds."),
        count("move", "Number of the move in its term, from 1."),
        text("bundle", "Bundle."),
        *MOVING,
        text(
            "outcome",
            "moved; placed: it had no owner; observed: nothing was ordered, because of the mode; "
            "failed: its order does not stand. The task lines follow each order to its end.",
        ),
        text(
            "cause",
            "overloaded, underloaded, imbalance, swap, draining, unowned or requested.",
        ),
        text("shedder", "Strategy in force."),
        text("placement", "Strategy in force."),
        *(rate(one.name, f"Short-term average. {one.meaning}", nullable=True) for one in TRAFFIC),
        rate("source_score", "Score of the source before; null without one.", nullable=True),
        rate("target_score", "Score of the target before; null if unknown.", nullable=True),
    ),
    "A bundle was given another broker, or would have been.",
)

HAND_OVER: Final = Kind(
    "hand_over",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        text("bundle", "Bundle."),
        *MOVING,
        text("outcome", "finished; replaced: ordered elsewhere or no more; left: the term ended."),
        time("ordered_at_ms", "When the order was written."),
        time("released_at_ms", "When the leader saw that the source let go.", nullable=True),
        time("acquired_at_ms", "When it saw that the target serves.", nullable=True),
        rate("took_s", "From order to the target serving, monotonic clock.", nullable=True),
        rate("pause_s", "For how long no broker served, monotonic clock.", nullable=True),
    ),
    "An order that was written came to its end.",
)

TASK: Final = Kind(
    "task",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        count("task", "Number of the task in its term, from 1."),
        text("action", "place, move, split or merge."),
        Field("bundles", Type.TEXT, "The bundle; both halves of a merge.", listed=True),
        *MOVING,
        text("cause", "As in a move line, or oversized; inherited: a former leader ordered it."),
        text("asked_by", "unowned, people, drain, reconciliation or balancing."),
        text(
            "state",
            "unconfirmed: the reply to its order was lost; ordered; released: its source let go; "
            "and at its end serving, failed, superseded, timed_out or landed_elsewhere.",
        ),
        rate("age_s", "Since it was proposed, monotonic clock."),
        count("attempts", "How often its order was written."),
        text("note", "Why it ended, for people."),
    ),
    "A bundle task came into a new state.",
)

CUT: Final = Kind(
    "cut",
    Stream.ROUNDS,
    (
        count("epoch", "Epoch of the leader's term."),
        text("action", "split or merge."),
        text("whole", "The bundle that was split, or that two became."),
        Field("parts", Type.TEXT, "What the whole was split into, or made of.", listed=True),
    ),
    "The leader learned that bundles were split or merged.",
)

LOST_REPORTS, LOST_ROUNDS = (
    Kind(
        name,
        stream,
        (
            count("records", "How many were not written."),
            text(
                "why",
                "queue_full; unwritable: the disk was full or gone for too long; unfit: a number "
                "in it was not finite.",
            ),
            time("first_at_ms", "When the first happened."),
            time("last_at_ms", "When the last happened."),
        ),
        "Records that the writer had to give up; none is missing without such a line.",
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

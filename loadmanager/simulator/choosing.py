"""Which strategy to choose when, and why measurements differ from PIP-364's ratings.

A test compares every advice with an expectation of a shipped scenario.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_JOINT: Final = "joint+joint"
_AVG: Final = "avg+avg"
_THRESHOLD: Final = "threshold+least_long_term_message_rate"
_THRESHOLD_USAGE: Final = "threshold+least_resource_usage_with_weight"
_UNIFORM: Final = "uniform+least_long_term_message_rate"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to choose, or to avoid, in a situation. ``scenario`` shows it, in safe mode."""

    situation: str
    pair: str
    scenario: str
    why: str


CHOOSE: Final = (
    Advice(
        "Nothing in particular is known",
        _JOINT,
        "opposite-skews",
        "The default. It weighs all resources together, by costs that it learns from reports, and "
        "a move has to be worth the interruption.",
    ),
    Advice(
        "Brokers of different size",
        _JOINT,
        "heterogeneous-cores",
        "It learns how fast each broker is.",
    ),
    Advice(
        "Few messages that are large beside many that are small",
        _JOINT,
        "mixed-message-sizes",
        "It learns what a message and what a byte costs.",
    ),
    Advice(
        "Everything on one broker",
        _JOINT,
        "all-on-one",
        "A round moves all that is misplaced, up to 60 percent of the traffic.",
    ),
    Advice(
        "Brokers that are alike, with even traffic",
        _AVG,
        "equal-items",
        "It comes to the best there is, and moves little: each move has its target from the "
        "beginning.",
    ),
    Advice(
        "A broker that stays idle among full ones, as after a restart",
        _AVG,
        "idle-broker",
        "It pairs the emptiest with the fullest, however near the fullest is to the mean.",
    ),
    Advice(
        "Traffic that jumps for a minute and is back",
        _AVG,
        "load-jitter",
        "It waits two rounds for a large difference and eight for a small one.",
    ),
    Advice(
        "Traffic that grows within minutes and stays",
        _AVG,
        "flash-crowd",
        "Differences of 40 points count after two rounds, and all pairs of brokers move at once.",
    ),
    Advice(
        "A day with peaks",
        _AVG,
        "day-pattern",
        "It takes nothing back that it moved in the hour before.",
    ),
    Advice(
        "Brokers of different size, by one of Pulsar's strategies",
        _THRESHOLD,
        "heterogeneous-cores",
        "It goes by usage alone; AvgShedder finds the brokers by usage, but the amount by message "
        "rates.",
    ),
    Advice(
        "Other processes on brokers' machines that come and go",
        _THRESHOLD,
        "noisy-neighbour",
        "For the same reason.",
    ),
    Advice(
        "Brokers that leave, so that many bundles are placed at once",
        "avg+least_long_term_message_rate",
        "over-placement",
        "LeastLongTermMessageRate counts what it gave away and no broker has reported yet, and "
        "spreads best with any shedder. AvgShedder names its own targets whatever the placement "
        "is, so that this pair does as `avg+avg` does at the four other problems.",
    ),
    Advice(
        "A cold start",
        "avg+least_long_term_message_rate",
        "cold-start",
        "For the same reason; by chance alone the fullest broker has more.",
    ),
    Advice(
        "One bundle that is more than a broker's share",
        _AVG,
        "hot-topic",
        "It moves what fits, the small bundles, off the broker with the large one.",
    ),
    Advice(
        "Brokers that restart one after the other",
        _UNIFORM,
        "rolling-restart",
        "It acts in the next round, on rates that are as new as the last report.",
    ),
    Advice(
        "Many new brokers at once",
        _AVG,
        "slow-balancing",
        "All pairs of brokers move in the same round; what limits it are `[planner] "
        "max_moves_per_round` and `max_moves_per_hour`. For a hundred new brokers it took 47 "
        "minutes, and 9 with 100 and 2,000 of them.",
    ),
    Advice(
        "Everything on one broker, by one of Pulsar's strategies",
        _THRESHOLD,
        "all-on-one",
        "It sheds what is too much in every round. With `[planner] max_in_flight_per_broker` at 50 "
        "and `max_moves_per_round` at 100 for the time it took 4 minutes, with the defaults 32.",
    ),
)

LEAVE: Final = (
    Advice(
        "Brokers that should be even below 85 percent",
        "overload+least_long_term_message_rate",
        "idle-broker",
        "OverloadShedder has nothing to say below its threshold: a new broker stays empty.",
    ),
    Advice(
        "Bursts",
        _UNIFORM,
        "load-jitter",
        "UniformLoadShedder acts on a single report.",
    ),
    Advice(
        "Few bundles that are large",
        _UNIFORM,
        "equal-items",
        "It moves no bundle larger than a fifth of the difference; a higher `max_share` helps.",
    ),
    Advice(
        "Brokers of different size",
        _UNIFORM,
        "heterogeneous-cores",
        "UniformLoadShedder makes a small broker carry as much as a large one.",
    ),
    Advice(
        "Brokers of different size",
        _AVG,
        "heterogeneous-cores",
        "AvgShedder moves nothing where brokers have the same rates, however full one is.",
    ),
    Advice(
        "An idle broker among many at 80 percent",
        _THRESHOLD,
        "idle-broker",
        "ThresholdShedder needs one broker ten points above the mean; `lower_boundary` helps.",
    ),
    Advice(
        "One bundle that is more than a broker's share",
        _THRESHOLD,
        "hot-topic",
        "It offers the largest bundle alone, which the planner does not pass on; nothing moves.",
    ),
    Advice(
        "Less than a standard deviation of 0.25",
        "transfer+avg",
        "equal-items",
        "TransferShedder is content with that; a lower `target_std` settles closer.",
    ),
    Advice(
        "Everything on one broker",
        _AVG,
        "all-on-one",
        "A round takes four bundles off a broker in safe mode, and AvgShedder then waits again.",
    ),
)

COMMENTS: Final[Mapping[tuple[str, str], str]] = {
    (_THRESHOLD_USAGE, "over-placement"): (
        "The fullest broker came to {peak} times the lowest possible. The problem is there: by "
        "usage, a placement picks at random among all who are ten points below the mean, and "
        "among all if none is; by rates and what was just given away it came to 1.1 times at "
        "most. But the planner counts a bundle on its new broker as soon as it is given away, in "
        "parity mode too, where Pulsar waits for the next report; bundles do not pile up as there."
    ),
    (_THRESHOLD_USAGE, "slow-balancing"): (
        "Three quarters of the misplaced load had moved after {minutes} minutes: all hot brokers "
        "shed in the same round. What PIP-364 holds against it is there too, the running "
        "average that makes it go on: with seed 1 it moved 1,088 bundles in the hour where 500 "
        "would have made all brokers even. In safe mode, where a round moves 16 bundles and an "
        "hour 480, an hour is not enough."
    ),
    (_UNIFORM, "slow-balancing"): (
        "PIP-364 expects a hundred rounds, one for each hot broker, and calls that normal. "
        "But a round moves a fifth of the difference (`maxUnloadPercentage` is 0.2), which is two "
        "of a broker's ten bundles or one: with seed 1 it had moved 110 bundles after an hour, "
        "of the 500 that it takes."
    ),
}
"""Why a rating in parity mode is another than PIP-364's, by pair and scenario.

``{peak}`` and so on stand for the medians of the measures with these keys.
"""

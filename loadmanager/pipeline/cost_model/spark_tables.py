"""The tables of the job ``costs``."""

from typing import Final

from loadmanager.pipeline.contract import Table, columns

_CLASS: Final = """
    cluster string Name of the cluster.
    broker_class string Class of brokers; empty where none is set.
"""
_RESOURCE: Final = "resource string cpu, memory, direct_memory, bandwidth_in, bandwidth_out."
_INTERVAL: Final = """
    value double The estimate.
    low double Lower end of the 90 % interval.
    high double Upper end of it.
"""

COST_TERMS: Final = Table(
    name="cost_terms",
    job="costs",
    meaning="One row for each term: what one unit of a rate uses of a resource.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        rate string msgs_in_per_s, msgs_out_per_s, bytes_in_per_s, bytes_out_per_s, topics, \
            connections.
        {_INTERVAL.strip()}
        typical_usage double What the class' mean rate costs of the resource.
        verdict string known; vague: a wide interval; entangled: cannot be separated from others; \
            unvaried: never varied within a broker.
        partners string The rates that it cannot be separated from, with commas.
        drift double Change from the first to the last half, as a fraction; null if it is not \
            determined.
        drifted boolean Whether that is more than chance.
        """
    ),
)
COST_QUALITY: Final = Table(
    name="cost_quality",
    job="costs",
    meaning="One row for each class and resource: how well its costs predicted what was held out.",
    schema=columns(
        f"""{_CLASS}{_RESOURCE}
        refused string Why there are no terms; null if there are.
        minutes bigint Minutes of brokers in which it was measured.
        full_minutes bigint Of these, at 90 % of the limit or more: lower bounds alone.
        blocks bigint Stretches of time, of one broker each, that count as independent.
        moves bigint Changes of brokers' bundles that were used as natural experiments.
        held_out_minutes bigint Minutes in stretches that were held out of training.
        mape double Mean absolute error in these, as a fraction.
        baseline_mape double The same error of the rule of traffic shares.
        coverage double How many of these minutes lay in their 90 % interval, a fraction.
        held_out_moves bigint Changes of bundles that were held out.
        move_mape double Mean absolute error of the usage after these, as a fraction.
        baseline_move_mape double The same error of the rule of traffic shares.
        condition double Condition number; above 30 some terms cannot be separated.
        typical_error double Half the 90 % interval of what typical traffic costs, as a fraction \
            of it.
        drift double Change of what typical traffic costs, as a fraction.
        drifted boolean Whether that is more than chance.
        """
    ),
)
BACKGROUNDS: Final = Table(
    name="backgrounds",
    job="costs",
    meaning="One row for each broker and resource: what it uses without any traffic.",
    schema=columns(
        f"""{_CLASS}
        broker string Broker.
        {_RESOURCE}
        {_INTERVAL.strip()}
        minutes bigint Minutes of the broker.
        """
    ),
)

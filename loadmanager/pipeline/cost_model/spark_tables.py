"""What the job ``costs`` promises of its tables."""

from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from loadmanager.pipeline.contract import Table

_TEXT, _COUNT, _AMOUNT, _FLAG = StringType(), LongType(), DoubleType(), BooleanType()

_CLASS: Final = (
    ("cluster", _TEXT, "Name of the cluster."),
    ("broker_class", _TEXT, "Class of brokers; empty where none is set."),
)
_RESOURCE: Final = ("resource", _TEXT, "cpu, memory, direct_memory, bandwidth_in, bandwidth_out.")
_INTERVAL: Final = (
    ("value", _AMOUNT, "The estimate."),
    ("low", _AMOUNT, "Lower end of the 90 % interval."),
    ("high", _AMOUNT, "Upper end of it."),
)


def _table(name: str, meaning: str, *columns: tuple[str, DataType, str]) -> Table:
    fields = [StructField(one, form, metadata={"meaning": found}) for one, form, found in columns]
    return Table(name=name, job="costs", meaning=meaning, schema=StructType(fields))


COST_TERMS: Final = _table(
    "cost_terms",
    "One row for each term: what one unit of a rate uses of a resource.",
    *_CLASS,
    _RESOURCE,
    (
        "rate",
        _TEXT,
        "msgs_in_per_s, msgs_out_per_s, bytes_in_per_s, bytes_out_per_s, topics, connections.",
    ),
    *_INTERVAL,
    ("typical_usage", _AMOUNT, "What the class' mean rate costs of the resource."),
    (
        "verdict",
        _TEXT,
        (
            "known; vague: a wide interval; entangled: cannot be separated from others; "
            "unvaried: never varied within a broker."
        ),
    ),
    ("partners", _TEXT, "The rates that it cannot be separated from, with commas."),
    (
        "drift",
        _AMOUNT,
        "Change from the first to the last half, as a fraction; null if it is not determined.",
    ),
    ("drifted", _FLAG, "Whether that is more than chance."),
)
COST_QUALITY: Final = _table(
    "cost_quality",
    "One row for each class and resource: how well its costs predicted what was held out.",
    *_CLASS,
    _RESOURCE,
    ("refused", _TEXT, "Why there are no terms; null if there are."),
    ("minutes", _COUNT, "Minutes of brokers in which it was measured."),
    ("full_minutes", _COUNT, "Of these, at 90 % of the limit or more: lower bounds alone."),
    ("blocks", _COUNT, "Stretches of time, of one broker each, that count as independent."),
    ("moves", _COUNT, "Changes of brokers' bundles that were used as natural experiments."),
    ("held_out_minutes", _COUNT, "Minutes in stretches that were held out of training."),
    ("mape", _AMOUNT, "Mean absolute error in these, as a fraction."),
    ("baseline_mape", _AMOUNT, "The same error of the rule of traffic shares."),
    ("coverage", _AMOUNT, "How many of these minutes lay in their 90 % interval, a fraction."),
    ("held_out_moves", _COUNT, "Changes of bundles that were held out."),
    ("move_mape", _AMOUNT, "Mean absolute error of the usage after these, as a fraction."),
    ("baseline_move_mape", _AMOUNT, "The same error of the rule of traffic shares."),
    ("condition", _AMOUNT, "Condition number; above 30 some terms cannot be separated."),
    (
        "typical_error",
        _AMOUNT,
        "Half the 90 % interval of what typical traffic costs, as a fraction of it.",
    ),
    ("drift", _AMOUNT, "Change of what typical traffic costs, as a fraction."),
    ("drifted", _FLAG, "Whether that is more than chance."),
)
BACKGROUNDS: Final = _table(
    "backgrounds",
    "One row for each broker and resource: what it uses without any traffic.",
    *_CLASS,
    ("broker", _TEXT, "Broker."),
    _RESOURCE,
    *_INTERVAL,
    ("minutes", _COUNT, "Minutes of the broker."),
)

"""Traffic under the names of Pulsar's load reports."""

from typing import Final

from loadmanager.core.fields import Fields
from loadmanager.core.rates import Rates

RATES: Final = (
    ("msgRateIn", "msgs_in_per_s"),
    ("msgRateOut", "msgs_out_per_s"),
    ("msgThroughputIn", "bytes_in_per_s"),
    ("msgThroughputOut", "bytes_out_per_s"),
)


def rates_to_json(rates: Rates) -> dict[str, float]:
    """Return the rates as fields of a JSON object."""
    return {name: getattr(rates, ours) for name, ours in RATES}


def rates_from(fields: Fields) -> Rates:
    """Return the rates in a JSON object; an absent one is 0."""
    return Rates(*(fields.rate(name) for name, _ in RATES))

"""How the joint strategy weighs a bundle or a broker, for people."""

from collections.abc import Mapping
from typing import Any, Final

from loadmanager.cli.text_tables import print_table

_SOURCES: Final[Mapping[str, str]] = {
    "reports": "load reports",
    "pipeline": "the published cost model",
    "default": "defaults",
    "rates": "rates, since usage is below its noise",
}
_UNITS: Final[Mapping[str, str]] = {
    "cpu": "% of a core",
    "memory": "MiB",
    "direct_memory": "MiB",
    "bandwidth_in": "kbit/s",
    "bandwidth_out": "kbit/s",
    "rates": "of all traffic",
}


def weighing_line(weighing: Mapping[str, Any]) -> str:
    """Return what holds for the whole cluster."""
    return (
        f"\nWeighed by learned costs: the level is {weighing['level']:.3f}, and "
        f"{weighing['lasting']:.0%} of a change of traffic is taken to last for ten minutes."
    )


def print_weighing(weighing: Mapping[str, Any], broker: str | None) -> None:
    """Print how a broker's use is predicted, and what a bundle costs and how that is known."""
    print_table(
        f"What {broker} uses, as fractions of its limits",
        ("resource", "reported>", "predicted>", "background>", "speed>", "noise>"),
        [_use_row(one) for one in weighing["uses"]],
    )
    print_table(
        "What the bundle uses on a broker of speed 1",
        ("resource", "usage>", "unit", "uncertain by>", "known from", "learned>"),
        [_cost_row(one) for one in weighing["costs"]],
    )


def payback_cells(payback: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a broker that might take the bundle: use, use with it, gain, price."""
    if payback is None:
        return ("-",) * 5
    figures = (payback[key] for key in ("use", "useWith"))
    return (
        payback["resource"],
        *(f"{one:.3f}" for one in figures),
        *(f"{payback[key]:.4f}" for key in ("saving", "price")),
    )


def _use_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    reported, noise = (
        "-" if one[key] is None else f"{one[key]:.3f}" for key in ("reported", "noise")
    )
    predicted, background = (f"{one[key]:.3f}" for key in ("predicted", "background"))
    return one["resource"], reported, predicted, background, f"{one['speed']:.2f}", noise


def _cost_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["resource"],
        f"{one['usage']:.4g}",
        _UNITS[one["resource"]],
        f"{one['sd']:.2g}",
        _SOURCES[one["source"]],
        f"{one['learnedFraction']:.0%}",
    )

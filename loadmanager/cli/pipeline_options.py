"""Options of single jobs, which `loadmanager pipeline` hands to them as ``work.options``."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import click

OPTIONS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "replay": ("strategy", "setting", "segment_h"),
    "stream": (
        *("for_s", "once", "watermark_s"),
        *("imbalance", "saturation", "alert_minutes", "silent_minutes"),
    ),
}
"""By their job, without which they are refused."""

_OPTIONS: Final = (
    click.option(
        "--strategy",
        metavar="A+B",
        multiple=True,
        help="replay: a pair shedder+placement, as of `loadmanager simulate`. May be given again.",
    ),
    click.option(
        "--setting",
        metavar="KEY=V1,V2",
        multiple=True,
        help="replay: values to try of a setting, of the strategies that have it. May be given "
        "again: all combinations are tried.",
    ),
    click.option(
        "--segment-h",
        metavar="HOURS",
        type=click.FloatRange(min=0.1, max=24 * 365),
        help="replay: length of the segments, each of which begins again from a new start; "
        "segments are distributed over Spark's tasks. [default: 2]",
    ),
    click.option(
        "--for-s",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        help="stream: end after this time. Without it, it runs until it is interrupted.",
    ),
    click.option("--once", is_flag=True, help="stream: process the existing files, and exit."),
    click.option(
        "--watermark-s",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        help="stream: how late the reports of a minute may arrive; later ones are reported and "
        "not counted. [default: 1500, of which 900 are a file's until it is finished]",
    ),
    click.option(
        "--imbalance",
        metavar="RATIO",
        type=click.FloatRange(min=1),
        help="stream: alert if the busiest broker has this many times the mean. [default: 1.5]",
    ),
    click.option(
        "--saturation",
        metavar="FRACTION",
        type=click.FloatRange(min=0, max=10),
        help="stream: alert if a broker's usage is above this. [default: 0.9]",
    ),
    click.option(
        "--alert-minutes",
        metavar="N",
        type=click.IntRange(min=1),
        help="stream: alert after this many such minutes in a row. [default: 5]",
    ),
    click.option(
        "--silent-minutes",
        metavar="N",
        type=click.IntRange(min=1),
        help="stream: alert if this many minutes have no report at all. [default: 5]",
    ),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of all jobs, in the order they stand in here."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), command)

"""``loadmanager pipeline``: from history to tables, costs, replays and a report, on Spark."""

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click

from loadmanager.cli.options import SectionedGroup, interrupted, moment_option, option
from loadmanager.pipeline.jobs import JOBS
from loadmanager.telemetry.visible import beneath

_OF_STREAM: Final = frozenset(
    {
        *("--for-s", "--once", "--watermark-s"),
        *("--imbalance", "--saturation", "--alert-minutes", "--silent-minutes"),
    }
)
_NO_STREAM: Final = (
    "the job stream was removed: Prometheus raises alerts by the rules in "
    "deploy/prometheus/alerts.yml, and the job rollup computes minutes"
)
_EPILOG: Final = "\b\nJobs:\n" + "\n".join(f"  {name:8} {what}" for name, what in JOBS.items())


class _Job(click.Choice[str]):
    """The name of a job; the one that was removed names what to use instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "stream":
            raise click.UsageError(_NO_STREAM, ctx)
        return super().convert(value, param, ctx)


class _Pipeline(click.Command):
    """The command; options of the job that was removed name what to use instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in _OF_STREAM:
                raise click.UsageError(_NO_STREAM, ctx) from None
            raise


@click.command("pipeline", cls=_Pipeline, epilog=_EPILOG)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=_Job(tuple(JOBS)))
@option(
    "--history",
    metavar="DIR",
    help="Where sidecars write their history: a directory or a URL that Spark knows. ingest reads "
    "it.",
)
@option(
    "--out",
    metavar="DIR",
    required=True,
    help="Where tables, models and the report go: a directory or a URL that Spark knows.",
)
@option(
    "--master",
    metavar="URL",
    default="local[*]",
    help="Spark's master: local[CORES] for this host alone, or spark://HOST:PORT, yarn, k8s://URL.",
)
@option(
    "--since",
    metavar="TIME",
    callback=moment_option,
    help="Ignore older data: 2026-11-01, 2026-11-01T06:00 (UTC unless it has an offset), or an "
    "age: 12h, 7d.",
)
@option("--until", metavar="TIME", callback=moment_option, help="Ignore data from this time on.")
@option(
    "--driver-memory",
    metavar="SIZE",
    default="2g",
    help="Memory of Spark's driver JVM, which with a local master also runs the tasks.",
)
@option(
    "--conf",
    "conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of Spark: spark.executor.memory=8g. May be given again.",
)
@option(
    "--progress/--no-progress",
    default=None,
    help="Show the progress of Spark's stages: as a bar on a terminal, else a line every 15 s. "
    "Without it, on a terminal alone.",
)
@option(
    "--strategy",
    metavar="A+B",
    multiple=True,
    help="replay: a pair shedder+placement, as of `loadmanager simulate`. May be given again.",
)
@option(
    "--setting",
    metavar="KEY=V1,V2",
    multiple=True,
    help="replay: values to try of a setting, of the strategies that have it. May be given "
    "again: all combinations are tried.",
)
@option(
    "--segment-h",
    metavar="HOURS",
    type=click.FloatRange(min=0.1, max=24 * 365),
    help="replay: length of the segments, each of which begins again from a new start; "
    "segments are distributed over Spark's tasks. [default: 2]",
)
@option(
    "--tables",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _option, asked: _print_tables(context) if asked else None,
    help="Print docs/pipeline-tables.md: every table and column.",
)
def pipeline_command(
    *,
    jobs: tuple[str, ...],
    history: str | None,
    out: str,
    since: datetime | None,
    until: datetime | None,
    progress: bool | None,
    master: str,
    driver_memory: str,
    conf: tuple[str, ...],
    **options: Any,
) -> None:
    """Turn history into tables, costs, replays and a report, on Spark.

    JOBs run in the order given, in one Spark session. docs/pipeline.md describes them,
    docs/pipeline-tables.md the tables they write. Needs its extra, which brings Spark
    and Java: pip install 'loadmanager[pipeline]'

    Exits with 1 if a job cannot go on or Spark cannot run, with 2 on bad input.

    \b
    Examples:
      loadmanager pipeline ingest rollup report --history /var/lib/history --out tables
      loadmanager pipeline replay --out tables --since 7d --strategy avg+avg
    """  # noqa: D301 - the backspace keeps click from wrapping the examples
    _check_options(jobs, options)
    _check_places(jobs, history, out)
    if since is not None and until is not None and since >= until:
        raise click.UsageError(f"--since {since:%FT%TZ} is not before --until {until:%FT%TZ}")
    from loadmanager.core.errors import LoadManagerError
    from loadmanager.pipeline.progress import no_progress, progress_on
    from loadmanager.pipeline.running import Request, run_jobs
    from loadmanager.pipeline.session import SessionSettings

    request = Request(
        jobs=jobs, out=out, history=history, since=since, until=until, options=options
    )
    more = {}
    for text in conf:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.UsageError(f"--conf {text}: expected spark.KEY=VALUE")
        more[key] = value
    settings = SessionSettings(
        master=master, driver_memory=driver_memory, free_bytes=free_memory_bytes(), more=more
    )
    shows_progress = sys.stderr.isatty() if progress is None else progress
    shown = progress_on(beneath(sys.stderr)) if shows_progress else no_progress
    with _interruptible():
        try:
            run_jobs(request, settings, partial(print, flush=True), shown)
        except LoadManagerError as error:
            raise click.ClickException(str(error)) from None


def _print_tables(context: click.Context) -> NoReturn:
    try:
        from loadmanager.pipeline.contract import described
    except ModuleNotFoundError as error:
        text = f"tables are declared in Spark's words, and {error.name} is missing"
        raise click.ClickException(f"{text}: pip install 'loadmanager[pipeline]'") from None
    print(described(), end="")
    context.exit()


def _check_options(jobs: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Refuse options without the job that they are all of, and wrong ones with it."""
    if "replay" not in jobs:
        for name in (name for name, value in options.items() if value):
            option = name.replace("_", "-")
            raise click.UsageError(f"--{option} is of the job replay, which is not asked for")
        return
    from loadmanager.config import ConfigError
    from loadmanager.pipeline.replay.combinations import combinations

    try:
        combinations(options["strategy"], options["setting"])
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def _check_places(jobs: tuple[str, ...], history: str | None, out: str) -> None:
    """Refuse what cannot work before Spark, which takes its time to start."""
    if "ingest" in jobs and history is None:
        raise click.UsageError("ingest reads history; expected --history DIR")
    if history is not None and _local(history) and not Path(history).is_dir():
        raise click.UsageError(f"--history {history}: there is no such directory")
    if _local(out):
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"--out {out}: {error.strerror}") from None
        if not os.access(out, os.W_OK | os.X_OK):
            raise click.UsageError(f"--out {out}: expected a directory that can be written to")


def _local(place: str) -> bool:
    return "://" not in place and not place.startswith("file:")


@contextmanager
def _interruptible() -> Iterator[None]:
    """End quietly on Ctrl-C and on SIGTERM, once Spark's processes are gone."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    # Py4J logs calls that were cut off, with all of their stack.
    logging.getLogger().addHandler(logging.NullHandler())
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted: finished jobs stay, the unfinished one left nothing", err=True)
        raise interrupted() from None
    finally:
        signal.signal(signal.SIGTERM, before)


_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group("history", cls=SectionedGroup)
def history_group() -> None:
    """Check and finish the files that [history] and --history write.

    Example: loadmanager history check /var/lib/loadmanager/history
    """


history_group.removed = {
    "format": "docs/history-format.md, which `make reference` writes in a checkout"
}


@history_group.command("finish")
@click.argument("directory", type=_DIRECTORY)
def finish_command(directory: Path) -> None:
    """Finish the files that killed processes left in DIRECTORY.

    A sidecar finishes its own files when it starts; this command is for brokers that never return.
    Run it on the host of the killed writers: files of live writers on this host are skipped.

    Example: loadmanager history finish /var/lib/loadmanager/history
    """
    from loadmanager.adapters.history.sink import finish_left

    click.echo(f"{finish_left(directory)} files finished")


@history_group.command("check")
@click.argument("directory", type=_DIRECTORY)
@option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check_command(*, directory: Path, as_json: bool) -> None:
    """Check every finished file in DIRECTORY, and count lines by kind.

    Reports files and lines that cannot be read, missing and duplicate lines, and lines that
    writers dropped. Exits with 1 if a file or a line cannot be read.

    Example: loadmanager history check --json /var/lib/loadmanager/history
    """
    from loadmanager.adapters.history.storage import check_history

    found = check_history(directory)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        click.echo("\n".join(found.summary()))
    if found.faults:
        raise click.exceptions.Exit(1)


def free_memory_bytes(
    cgroup_root: Path = Path("/sys/fs/cgroup"), proc_root: Path = Path("/proc")
) -> float | None:
    """Return the least that the host and every group of this process have left, None if unknown."""
    from loadmanager.adapters.host.processes import Unreadable, WholeHost, find_cgroup

    try:
        used, total = WholeHost(proc_root).memory_bytes()
        free = [float(total - used)]
        cgroup = find_cgroup(cgroup_root, proc_root, None)
        if cgroup is not None:
            limited = ((one, one.limit) for one in cgroup.memory_levels() if one.limit is not None)
            free += [
                limit - cgroup.memory_used_bytes(one) for one, limit in limited if limit < total
            ]
    except Unreadable:
        return None
    return max(0.0, min(free))

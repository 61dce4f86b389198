"""``loadmanager simulate --from``: a real cluster with other brokers or other traffic."""

import asyncio
import json
from itertools import chain
from pathlib import Path
from typing import Any

import click

from loadmanager.cli.attach import AccessFiles
from loadmanager.cli.options import print_table
from loadmanager.core.errors import LoadManagerError
from loadmanager.pulsar.answers import ClusterReader, addresses
from loadmanager.pulsar.balancing import Observer
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.observation import document as observed
from loadmanager.pulsar.sampling import Sampler
from loadmanager.pulsar.what_if import Change, document, forecast, snapshot_in

INTERVAL_S = 10.0  # How long a cluster is observed.
_MOST_NAMED = 3


def print_what_if(source: str, files: AccessFiles, change: Change, *, as_json: bool) -> None:
    """Raises `LoadManagerError`: it cannot be read, or has not what is to be changed."""
    seen = snapshot_in(_reported(source, files), source)
    now, then = forecast(seen, Change()), forecast(seen, change)
    if as_json:
        click.echo(json.dumps(document(now, then), allow_nan=False))
        return
    rows = [
        (name, *chain.from_iterable((f"{m:,.0f}", f"{b / 1e6:,.2f}") for m, b in (before, after)))
        for (name, before), after in zip(then.loads.items(), then.evened.values(), strict=True)
    ]
    names = ("broker", "msg/s>", "MB/s>", "msg/s after moves>", "MB/s after moves>")
    print_table("changed", names, rows)
    for title, one in (("as it is", now), ("changed", then)):
        click.echo(
            f"{title}: the fullest broker has {one.plan.max_over_mean:.2f} times the mean, "
            f"{one.plan.planned_max_over_mean:.2f} after {len(one.moves)} moves; "
            f"at least {one.plan.least_max_over_mean:.2f}"
        )
    if then.placed:
        click.echo(f"{then.placed} bundles of lost brokers are on the emptiest brokers")
    if then.unserved:
        some = ", ".join(then.unserved[:_MOST_NAMED])
        click.echo(
            f"{len(then.unserved)} bundles have no broker that isolation policies allow: {some}"
            f"{', ...' if len(then.unserved) > _MOST_NAMED else ''}"
        )


def _reported(source: str, files: AccessFiles) -> Any:
    if source.startswith(("http://", "https://")):
        return asyncio.run(_look(source.rstrip("/"), files.access()))
    if files.given:
        raise click.UsageError(f"{files.given[0]} is given with --from URL")
    path = Path(source)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        text = f"{source}: {why}; expected what loadmanager attach --once --json has printed"
        raise LoadManagerError(text) from None


async def _look(url: str, access: Access) -> Any:
    admin = PulsarAdmin(access)
    try:
        sampler, reader = Sampler(admin, addresses(url)), ClusterReader(admin, (url,))
        await sampler.sample(await reader.read())
        await asyncio.sleep(INTERVAL_S)
        cluster = await reader.read()
        samples, missing = await sampler.sample(cluster)
        seen = await Observer(reader).observe(cluster, samples, missing)
        return observed(seen, requests=0, answer_bytes=0, traffic=True)
    finally:
        await admin.close()

"""``loadmanager drain`` and ``loadmanager unload``: moving bundles by hand."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from loadmanager.cli.asking import Reach, name_of, reaching, segment

_POLL_S: Final = 0.25
_QUESTION_S: Final = 30.0


@click.command("drain")
@click.argument("broker", metavar="BROKER")
@click.option("--undo", is_flag=True, help="Let the broker take bundles again.")
@click.option("--reason", default="", help="Why; whoever asks for the state is told.")
@click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0, 86_400),
    help="Seconds to wait until the broker is empty. It goes on being emptied afterwards.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the last state as JSON.")
@reaching(_QUESTION_S, waits=False)
def drain_command(
    *, broker: str, undo: bool, reason: str, timeout_s: float, as_json: bool, reach: Reach
) -> None:
    """Empty a broker, and show how many bundles are left until none is.

    The leader moves them a few at a time, each to the best other place. The broker
    takes nothing more, also after a restart, until --undo. Ends with 1 if it is not
    empty in time, with 2 if there is no such broker.

    Example: loadmanager drain broker-1.example.org:8080 --reason "new disk"
    """
    import json

    here = f"/admin/v2/loadmanager/brokers/{segment(broker)}"
    path = f"{here}/drain"

    def state() -> Mapping[str, Any]:
        found: dict[str, Any] = reach.json(here)
        return found

    if undo:
        reach.ask(path, method="DELETE")
        if not as_json:
            click.echo(f"{broker} may take bundles again")
            return
        click.echo(json.dumps(state(), indent=2))
        return
    reach.ask(path, method="PUT", by=somebody(), reason=reason)
    last = _follow(broker, state, timeout_s)
    if as_json:
        click.echo(json.dumps(last, indent=2))
    if not _is_empty(last):
        click.echo(_why_not_empty(last, timeout_s), err=True)
        raise click.exceptions.Exit(1)


@click.command("unload")
@click.argument("bundle", metavar="BUNDLE|NAMESPACE")
@click.option("--to", "destination", default="", metavar="BROKER", help="Where it is to go.")
@reaching(60.0)
def unload_command(*, bundle: str, destination: str, reach: Reach) -> None:
    """Move a bundle to another broker, or all bundles of a namespace to other brokers.

    Without --to each goes to the best place but the one it has. Returns when the next
    owners serve. Ends with 2 if there is no such bundle or namespace, with 1 if nobody
    can take it or --to names a broker that takes nothing.

    Example: loadmanager unload public/default/0x00000000_0x08000000
    """
    parts = bundle.split("/")
    if len(parts) not in {2, 3} or not all(parts):
        expected = "tenant/namespace/0xLLLLLLLL_0xUUUUUUUU or tenant/namespace"
        raise click.BadParameter(f"{bundle!r}; expected {expected}")
    if destination and len(parts) == 2:  # noqa: PLR2004 - tenant and namespace
        raise click.BadParameter("--to is for one bundle, not for a namespace")
    query = {"destinationBroker": destination} if destination else {}
    reach.ask(f"/admin/v2/namespaces/{name_of(bundle)}/unload", method="PUT", **query)
    click.echo(f"{bundle} is unloaded")


@click.command("pause")
@click.option("--reason", default="", help="Why; whoever asks for the state is told.")
@reaching()
def pause_command(*, reason: str, reach: Reach) -> None:
    """Let the leader's rounds move nothing and split nothing, until `loadmanager resume`.

    It holds for every leader to come. Bundles that nobody owns are still placed, draining
    brokers emptied, and what people ask for is done.

    Example: loadmanager pause --reason "load test until 17:00"
    """
    _steer("pause", reason, reach)


@click.command("observe")
@click.option("--reason", default="", help="Why; whoever asks for the state is told.")
@reaching()
def observe_command(*, reason: str, reach: Reach) -> None:
    """Let the leader's rounds decide and tell, and move nothing.

    Example: loadmanager observe --reason "trying another strategy"
    """
    _steer("observe", reason, reach)


@click.command("resume")
@click.option("--reason", default="", help="Why; whoever asks for the state is told.")
@reaching()
def resume_command(*, reason: str, reach: Reach) -> None:
    """Let the leader's rounds move and split bundles again.

    Example: loadmanager resume
    """
    _steer("resume", reason, reach)


def _steer(word: str, reason: str, reach: Reach) -> None:
    path = "/admin/v2/loadmanager/balancing"
    reach.ask(f"{path}/{word}", method="PUT", by=somebody(), reason=reason)
    state = reach.json(path)
    click.echo(f"balancing is {state['mode']}")


def _follow(
    broker: str, state: Callable[[], Mapping[str, Any]], timeout_s: float
) -> Mapping[str, Any]:
    """Return the state when the broker is empty, let go again, or the time is up."""
    import time

    deadline_s = time.monotonic() + timeout_s
    told: int | None = None
    while True:
        now = state()
        if now["bundlesLeft"] != told:
            told = now["bundlesLeft"]
            click.echo(f"{broker}: {told} bundles left", err=True)
        if _is_empty(now) or now["marked"] is None or time.monotonic() >= deadline_s:
            return now
        time.sleep(_POLL_S)


def _is_empty(state: Mapping[str, Any]) -> bool:
    heeded = state["draining"] or not state["registered"]
    return bool(heeded and state["bundlesLeft"] == 0)


def _why_not_empty(state: Mapping[str, Any], timeout_s: float) -> str:
    broker, left = state["broker"], state["bundlesLeft"]
    if state["marked"] is None:
        return f"{broker}: somebody let it go again; {left} bundles are left"
    return (
        f"{broker}: {left} bundles are left after {timeout_s:g} s; it goes on being emptied. "
        "`loadmanager explain BUNDLE` tells why one stays"
    )


def somebody() -> str:
    """Return who asks, as far as the system knows."""
    import getpass
    import socket

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"

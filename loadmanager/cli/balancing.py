import getpass
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from loadmanager.cli.options import option, print_json
from loadmanager.cli.sidecar_client import NotFound, SidecarClient, client_options, segment

_MODES: Final[Mapping[str, str]] = {
    "active": "rounds move and split bundles",
    "observing": "rounds decide, and move nothing",
    "paused": "rounds move nothing; `loadmanager resume` ends it",
}
_POLL_S: Final = 0.25
_QUESTION_S: Final = 30.0
_SEEN_WITHIN_S: Final = 10.0
_BALANCING: Final = "/admin/v2/loadmanager/balancing"
_REASON = option("--reason", default="", help="Reason, stored with the state and logged.")


@click.command("drain")
@click.argument("broker", metavar="BROKER")
@option("--undo", is_flag=True, help="End the drain: the broker takes bundles again.")
@_REASON
@option(
    "--timeout",
    "timeout_s",
    default=600.0,
    type=click.FloatRange(0, 86_400),
    help="Seconds to wait until the broker is empty. The drain goes on afterwards.",
)
@option("--json", "as_json", is_flag=True, help="Print the last state as JSON.")
@client_options(_QUESTION_S, waits=False)
def drain_command(
    *, broker: str, undo: bool, reason: str, timeout_s: float, as_json: bool, client: SidecarClient
) -> None:
    """Move all bundles off a broker, and wait until it is empty.

    The leader moves them a few at a time, each to the best other broker, also while
    balancing is paused. The broker takes no bundle, also after a restart, until --undo.
    --undo moves nothing back by itself; it prints what happens next. Exits with 1 if the
    broker is not empty in time, with 2 if there is no such broker.

    Example: loadmanager drain broker-1.example.org:8080 --reason "new disk"
    """
    here = f"/admin/v2/loadmanager/brokers/{segment(broker)}"
    path = f"{here}/drain"

    def state() -> Mapping[str, Any]:
        found: dict[str, Any] = client.json(here)
        return found

    if undo:
        client.ask(path, method="DELETE")
        after = _undone(broker, state)
        if as_json:
            print_json(after)
        else:
            click.echo(_what_next(after, client))
        return
    client.ask(path, method="PUT", by=user_name(), reason=reason)
    last = _follow(broker, state, timeout_s)
    if as_json:
        print_json(last)
    if not _is_empty(last):
        click.echo(_why_not_empty(last, timeout_s), err=True)
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo(
            f"{broker} is empty.\nIt takes no bundle until: loadmanager drain --undo {broker}"
        )


def _cordon_path(broker: str) -> str:
    return f"/admin/v2/loadmanager/brokers/{segment(broker)}/cordon"


@click.command("cordon")
@click.argument("broker", metavar="BROKER")
@_REASON
@client_options()
def cordon_command(*, broker: str, reason: str, client: SidecarClient) -> None:
    """Let a broker take no bundles, also after a restart, until `loadmanager uncordon`.

    Unlike by `drain` it is not emptied; a drain of it ends. Exits with 2 if there is no such
    broker.

    Example: loadmanager cordon broker-1.example.org:8080 --reason "errors of its disk"
    """
    client.ask(_cordon_path(broker), method="PUT", by=user_name(), reason=reason)
    click.echo(f"{broker} takes no bundle until: loadmanager uncordon {broker}")


@click.command("uncordon")
@click.argument("broker", metavar="BROKER")
@client_options()
def uncordon_command(*, broker: str, client: SidecarClient) -> None:
    """Let a broker take bundles again, after `cordon` or `drain`.

    Example: loadmanager uncordon broker-1.example.org:8080
    """
    client.ask(_cordon_path(broker), method="DELETE")
    click.echo(f"{broker} takes bundles again")


def _mode_command(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @_REASON
    @client_options()
    def command(*, reason: str, client: SidecarClient) -> None:
        client.ask(f"{_BALANCING}/{name}", method="PUT", by=user_name(), reason=reason)
        mode = client.json(_BALANCING)["mode"]
        click.echo(f"balancing is {mode}: {_MODES[mode]}")

    return command


pause_command = _mode_command(
    "pause",
    """Stop balancing and automatic splits, until `loadmanager resume`.

    This holds for every later leader. Bundles without an owner are still placed, draining
    brokers are still emptied, and `unload`, `split` and `merge` still work.

    Example: loadmanager pause --reason "load test until 17:00"
    """,
)
observe_command = _mode_command(
    "observe",
    """Let the leader decide and record its decisions, but move nothing.

    This holds for every later leader, until `loadmanager resume`. `loadmanager decisions
    --kind observed` shows what would have moved.

    Example: loadmanager observe --reason "trying another strategy"
    """,
)
resume_command = _mode_command(
    "resume",
    """Let the leader balance and split bundles again, after `pause` or `observe`.

    Example: loadmanager resume
    """,
)


def _follow(
    broker: str, state: Callable[[], Mapping[str, Any]], timeout_s: float
) -> Mapping[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    left: int | None = None
    while True:
        now = state()
        if now["bundlesLeft"] != left:
            left = now["bundlesLeft"]
            click.echo(f"{broker}: {left} bundles left", err=True)
        if _is_empty(now) or now["marked"] is None or time.monotonic() >= deadline_s:
            return now
        time.sleep(_POLL_S)


def _undone(broker: str, state: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    deadline_s = time.monotonic() + _SEEN_WITHIN_S
    try:
        while (now := state())["draining"] and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    except NotFound:
        # Without its mark a broker that is not registered is unknown.
        nothing = {"registered": False, "draining": False, "bundlesLeft": 0, "marked": None}
        return {"broker": broker, **nothing}
    return now


def _what_next(state: Mapping[str, Any], client: SidecarClient) -> str:
    broker = state["broker"]
    if not state["registered"]:
        return f"{broker} is not registered; it takes bundles again once it is."
    if state["draining"]:
        return (
            f"{broker} is not marked any more, but still drains: it is stopping or unhealthy, or "
            "its sidecar has not seen the change yet."
        )
    mode = client.json(_BALANCING)["mode"]
    rounds = (
        "From the next round on, balancing moves bundles to it as the load requires."
        if mode == "active"
        else f"Balancing is {mode}: rounds move nothing to it until `loadmanager resume`."
    )
    return (
        f"{broker} takes bundles again; it has {state['bundlesLeft']}.\n"
        "Bundles without an owner may be placed on it at once.\n"
        f"Those that were moved off it do not return by themselves.\n{rounds}"
    )


def _is_empty(state: Mapping[str, Any]) -> bool:
    seen = state["draining"] or not state["registered"]
    return bool(seen and state["bundlesLeft"] == 0)


def _why_not_empty(state: Mapping[str, Any], timeout_s: float) -> str:
    broker, left = state["broker"], state["bundlesLeft"]
    if state["marked"] is None:
        return f"{broker}: the drain was undone meanwhile; {left} bundles are left"
    stay = "; ".join(f"{count} stay: {why}" for why, count in state.get("stay", {}).items())
    return (
        f"{broker}: {left} bundles are left after {timeout_s:g} s; the drain goes on. "
        f"{stay or '`loadmanager explain BUNDLE` prints why a bundle stays'}"
    )


def user_name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "somebody"
    return f"{name}@{socket.gethostname()}"

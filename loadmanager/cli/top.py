"""``loadmanager top``: a live view of the cluster."""

import itertools
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final, Self

import click

from loadmanager.cli.asking import NotAnswered, Reach, reaching
from loadmanager.cli.options import option

_QUIT: Final = frozenset(b"qQ")


class Keys:
    """Reads keys without Enter while it is entered; without a terminal there are none."""

    def __init__(self) -> None:
        self._former: list[object] | None = None

    def __enter__(self) -> Self:
        """Have the terminal pass on each key at once, and not show it."""
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._former = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_reason: object) -> None:
        """Restore the terminal."""
        if self._former is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._former)  # type: ignore[arg-type] # what it returned
            self._former = None

    def quits_within(self, seconds: float) -> bool:
        """Return whether q is pressed within these seconds; other keys are ignored."""
        until_s = time.monotonic() + seconds
        while True:
            left_s = max(0.0, until_s - time.monotonic())
            if self._former is None:
                time.sleep(left_s)
                return False
            ready, _, _ = select.select([sys.stdin], [], [], left_s)
            if not ready:
                return False
            keys = os.read(sys.stdin.fileno(), 64)
            if not keys or _QUIT & set(keys):  # nothing to read: the terminal is gone
                return True


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end what is inside as exceptions do, so that it cleans up.

    SIGINT as well where the parent had it ignored, as scripts have for what they start beside
    themselves: on a terminal Ctrl-C has to end it.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: end,
        signal.SIGHUP: end,
    }
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from loadmanager.cli.top_screen import Look

_POLL_S: Final = 0.05
_MOVES: Final = ("move", "placement", "drain", "unload")
_WIDTH: Final = 80


@click.command("top")
@option(
    "--interval",
    "interval_s",
    default=2.0,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two updates.",
)
@option(
    "--times",
    type=click.IntRange(min=1),
    help="End after this many updates.  [default: until q or Ctrl-C]",
)
@option(
    "--bundles",
    "most_bundles",
    default=10,
    type=click.IntRange(0, 1000),
    help="Number of busiest bundles to show.",
)
@reaching()
def top_command(*, interval_s: float, times: int | None, most_bundles: int, reach: Reach) -> None:
    """Show brokers, the last moves and the busiest bundles, and keep them up to date.

    On a terminal the picture is redrawn in place, and q or Ctrl-C ends it; elsewhere each
    picture is printed. If the sidecar does not answer for a while, the last picture stays
    and the reason is shown.

    Example: loadmanager top --interval 5
    """
    from rich.console import Console

    looks = itertools.count(1) if times is None else range(1, times + 1)

    def wait_s(number: int) -> float:
        return 0.0 if number == times else interval_s

    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else _WIDTH)
    show = _Shown(reach, most_bundles, console)
    try:
        with ended_by_signals():
            if on_terminal:
                _redraw(show, looks, wait_s, whole_screen=times is None)
            else:
                _print(show, looks, wait_s)
    except KeyboardInterrupt:
        return


class _Shown:
    """Looks at the cluster, and draws them."""

    def __init__(self, reach: Reach, most_bundles: int, console: "Console") -> None:
        self._reach = reach
        self._most_bundles = most_bundles
        self.console = console

    def look(self) -> "Look":
        """Ask for the cluster as it is now; raises as `Reach.ask`."""
        from loadmanager.cli.cluster import broker_rows, leader_of, snapshot_of
        from loadmanager.cli.top_screen import Look

        snapshot, leader = snapshot_of(self._reach), leader_of(self._reach).get("brokerId", "")
        answer = self._reach.json("/admin/v2/loadmanager/decisions", limit=5, kind=_MOVES)
        found = self._reach.json("/admin/v2/loadmanager/optimality")["optimality"]
        rows = list(broker_rows(snapshot, leader))
        return Look(
            snapshot=snapshot,
            leader=leader,
            brokers=rows,
            moves=answer["decisions"],
            optimality=found,
        )

    def draw(self, look: "Look", height: int | None = None) -> "RenderableType":
        """Return the picture of a look."""
        from loadmanager.cli.top_screen import draw

        return draw(look, self._most_bundles, width=self.console.width, height=height)


def _print(show: _Shown, looks: Iterable[int], wait_s: Callable[[int], float]) -> None:
    for number in looks:
        try:
            show.console.print(show.draw(show.look()))
        except NotAnswered as error:
            if number == 1:
                raise
            error.show()
        time.sleep(wait_s(number))


def _redraw(
    show: _Shown, looks: Iterable[int], wait_s: Callable[[int], float], *, whole_screen: bool
) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last = show.look()
    console = show.console
    live = Live(console=console, auto_refresh=False, screen=whole_screen)
    with Keys() as keys, live:
        for number in looks:
            trouble = []
            if number > 1:
                answer = _in_background(show.look)
                while answer.empty():
                    if keys.quits_within(_POLL_S):
                        return
                found = answer.get()
                if isinstance(found, NotAnswered):
                    trouble = [Text(f"no news: {found.message}", style="bold red", no_wrap=True)]
                elif isinstance(found, BaseException):
                    raise found
                else:
                    last = found
            height = console.height if whole_screen else None
            live.update(Group(*trouble, show.draw(last, height)), refresh=True)
            if keys.quits_within(wait_s(number)):
                return


def _in_background(look: Callable[[], "Look"]) -> "queue.SimpleQueue[Look | BaseException]":
    """Return where the answer will be; keys work while a sidecar is slow."""
    answer: queue.SimpleQueue[Look | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(look())
        except BaseException as error:  # noqa: BLE001 - the caller that waits for the answer raises it
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer

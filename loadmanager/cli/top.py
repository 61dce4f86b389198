import itertools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from loadmanager.cli.options import option
from loadmanager.cli.sidecar_client import RequestFailed, SidecarClient, client_options
from loadmanager.telemetry.visible import beneath, visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from loadmanager.cli.top_screen import Observation

_QUIT: Final = frozenset(b"qQ")
_POLL_S: Final = 0.05
_WIDTH: Final = 80


@contextmanager
def _reading_keys() -> Iterator[bool]:
    """Have the terminal pass on each key at once, and not show it; yield whether there is one."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    former = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def _quits_within(seconds: float, *, has_keys: bool) -> bool:
    until_s = time.monotonic() + seconds
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        if not has_keys:
            time.sleep(left_s)
            return False
        ready, _, _ = select.select([sys.stdin], [], [], left_s)
        if not ready:
            return False
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or _QUIT & set(keys):  # nothing to read: the terminal is gone
            return True


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end what is inside as exceptions do, so that it cleans up.

    SIGINT as well where the parent had it ignored, as scripts have for what they start beside
    themselves: on a terminal Ctrl-C has to end it.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end, signal.SIGHUP: end}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


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
@client_options()
def top_command(
    *, interval_s: float, times: int | None, most_bundles: int, client: SidecarClient
) -> None:
    """Show brokers, the last moves and the busiest bundles, and keep them up to date.

    On a terminal the picture is redrawn in place, and q or Ctrl-C ends it; elsewhere each
    picture is printed. If the sidecar does not answer for a while, the last picture stays
    and the reason is shown.

    Example: loadmanager top --interval 5
    """
    from rich.console import Console

    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else _WIDTH, file=beneath(sys.stdout))
    top = _Top(client, interval_s, times, most_bundles, console)
    try:
        with _ended_by_signals():
            if on_terminal:
                top.redraw()
            else:
                top.print()
    except KeyboardInterrupt:
        return


@dataclass(frozen=True, slots=True)
class _Top:
    client: SidecarClient
    interval_s: float
    times: int | None
    most_bundles: int
    console: "Console"

    def print(self) -> None:
        for number in self._rounds():
            try:
                self.console.print(self._draw(self._observe()))
            except RequestFailed as error:
                if number == 1:
                    raise
                error.show()
            time.sleep(self._wait_s(number))

    def redraw(self) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        last, whole_screen = self._observe(), self.times is None
        live = Live(console=self.console, auto_refresh=False, screen=whole_screen)
        with _reading_keys() as has_keys, live:
            for number in self._rounds():
                trouble = []
                if number > 1:
                    answer = self._observe_in_background()
                    while not answer.done():
                        if _quits_within(_POLL_S, has_keys=has_keys):
                            return
                    try:
                        last = answer.result()
                    except RequestFailed as error:
                        text = visible(f"no news: {error.message}")
                        trouble = [Text(text, style="bold red", no_wrap=True)]
                height = self.console.height if whole_screen else None
                live.update(Group(*trouble, self._draw(last, height)), refresh=True)
                if _quits_within(self._wait_s(number), has_keys=has_keys):
                    return

    def _rounds(self) -> Iterable[int]:
        return itertools.count(1) if self.times is None else range(1, self.times + 1)

    def _wait_s(self, number: int) -> float:
        return 0.0 if number == self.times else self.interval_s

    def _draw(self, seen: "Observation", height: int | None = None) -> "RenderableType":
        from loadmanager.cli.top_screen import draw

        return draw(seen, self.most_bundles, width=self.console.width, height=height)

    def _observe(self) -> "Observation":
        from loadmanager.cli.top_screen import observe

        return observe(self.client)

    def _observe_in_background(self) -> "Future[Observation]":
        """Return the observation that will come; keys work while a sidecar is slow."""
        answer: Future[Observation] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._observe())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is awaited
                answer.set_exception(error)

        # No executor: the end of the process would wait for its threads.
        threading.Thread(target=ask, daemon=True).start()
        return answer

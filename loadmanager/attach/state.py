"""What must outlive a controller of one cluster, as texts in files or in ZooKeeper.

These are the settings of Pulsar's own balancer from before it was switched off, whether moves are
paused, the recent moves, the course of the balance, targets that serve nothing, and the URLs of
brokers. The prior settings are stored before anything is changed, and removed when everything is
restored.
"""

import asyncio
import fcntl
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field, StrictInt

from loadmanager.attach.observation import Observation
from loadmanager.core import znodes
from loadmanager.core.balance_course import (
    BalancePoint,
    course_from_fields,
    course_to_json,
    last_hour,
)
from loadmanager.core.errors import InvalidName, LoadManagerError, MalformedContent
from loadmanager.core.fields import Fields, unpacked_object
from loadmanager.core.ids import BundleId, Namespace, parse_namespace
from loadmanager.core.move_limits import Begun, MoveBudget
from loadmanager.ports.coordination import Coordination, CoordinationError, NodeExists, NodeMissing

_WRITING: Final = threading.Lock()
"""Held by the threads that write: one whose caller was cancelled goes on."""


class StateUnusable(LoadManagerError):
    """The state cannot be used; the message says which file or node, why, what was expected."""


class PriorSettings(BaseModel, frozen=True):
    """A dynamic value is None if not overridden; ``effective`` is what all brokers ran with."""

    format: Literal[1] = 1
    dynamic: dict[str, str | None]
    effective: dict[str, str]


class Part(Enum):
    PRIOR = "json", znodes.ATTACH_PRIOR
    PAUSED = "paused", znodes.ATTACH_PAUSED
    MOVES = "moves", znodes.ATTACH_MOVES
    COURSE = "course", znodes.ATTACH_COURSE
    TARGETS = "targets", znodes.ATTACH_TARGETS
    BROKERS = "brokers", znodes.ATTACH_BROKERS


class State(ABC):
    """The state of a controller of one cluster; all methods raise `StateUnusable`."""

    @abstractmethod
    def where(self, part: Part = Part.PRIOR) -> str: ...

    @abstractmethod
    async def text(self, part: Part) -> str | None: ...

    @abstractmethod
    async def keep(self, part: Part, text: str) -> None:
        """Store a text so that it survives a crash."""

    @abstractmethod
    async def remove(self, part: Part = Part.PRIOR) -> None: ...

    async def read(self) -> PriorSettings | None:
        text = await self.text(Part.PRIOR)
        if text is None:
            return None
        try:
            prior = PriorSettings.model_validate_json(text)
        except ValueError:
            prior = None
        if prior is None or "format" not in prior.model_fields_set:
            raise StateUnusable(
                f"{self.where()}: expected the settings that attach --balance found; see with "
                "pulsar-admin brokers get-all-dynamic-config what is set, then remove it"
            )
        return prior

    async def write(self, prior: PriorSettings) -> None:
        await self.keep(Part.PRIOR, prior.model_dump_json())

    async def paused(self) -> str:
        text = await self.text(Part.PAUSED)
        return "" if text is None else text.strip() or "paused"

    async def brokers(self) -> tuple[str, ...]:
        """Return the URLs of brokers that were known last, none if they cannot be read."""
        try:
            text = await self.text(Part.BROKERS)
        except StateUnusable:
            return ()
        return _urls(text or "")

    async def know(self, urls: Collection[str]) -> None:
        await self.keep(Part.BROKERS, json.dumps({"format": 1, "urls": list(urls)}))

    async def pause(self, why: str) -> None:
        await self.keep(Part.PAUSED, why)

    async def resume(self) -> None:
        await self.remove(Part.PAUSED)


def _urls(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)["urls"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ()
    urls = found if isinstance(found, list) else []
    return tuple(one for one in urls if isinstance(one, str) and one.startswith("http"))


@dataclass(frozen=True, slots=True)
class StateFile(State):
    """The state in a folder: ``path`` is the file of the prior settings, the others beside it."""

    path: Path

    def where(self, part: Part = Part.PRIOR) -> str:
        return str(self._path(part))

    def _path(self, part: Part) -> Path:
        return self.path.with_suffix(f".{part.value[0]}")

    async def text(self, part: Part) -> str | None:
        path = self._path(part)
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateUnusable(f"{path}: {error}; expected a file that can be read") from None

    async def keep(self, part: Part, text: str) -> None:
        """Replace a file, so that one of the two contents survives a crash of this machine."""
        await asyncio.to_thread(_replace, self._path(part), text)

    async def remove(self, part: Part = Part.PRIOR) -> None:
        await asyncio.to_thread(_unlink, self._path(part))


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    with _WRITING, _writable(path):
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)


def _unlink(path: Path) -> None:
    with _WRITING, _writable(path):
        path.unlink(missing_ok=True)
        _sync(path.parent)


def state_name(cluster: str) -> str:
    return f"attach-{quote(cluster, safe='')}.json"


def state_file(folder: Path, cluster: str) -> StateFile:
    """Create the folder if it is missing. Raises `StateUnusable`: it cannot be created."""
    path = folder / state_name(cluster)
    with _writable(path):
        folder.mkdir(parents=True, exist_ok=True)
    return StateFile(path)


async def stored_brokers(folder: Path, urls: Collection[str]) -> tuple[str, ...]:
    """Return the stored URLs of each cluster that one of these URLs is of."""
    found: list[str] = []
    files = await asyncio.to_thread(lambda: sorted(folder.glob("attach-*.brokers")))
    for path in files:
        stored = await StateFile(path.with_suffix(".json")).brokers()
        if not set(urls).isdisjoint(stored):
            found += stored
    return tuple(found)


@contextmanager
def locked_state(folder: Path, cluster: str) -> Iterator[StateFile]:
    """Hold the lock, until the process ends at the latest. Raises `StateUnusable`: it is held."""
    state = state_file(folder, cluster)
    lock = state.path.with_suffix(".lock")
    with _writable(lock):
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateUnusable(
                f"{lock}: another loadmanager attach acts on {cluster}; expected to be the only one"
            ) from None
        yield state
    finally:
        os.close(held)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise StateUnusable(
            f"{path}: {why}; expected a folder that can be written (--state-dir)"
        ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class SharedState(State):
    coordination: Coordination

    def where(self, part: Part = Part.PRIOR) -> str:
        return part.value[1]

    async def paused(self) -> str:
        """Return also why it is unknown whether moves are paused: nothing moves meanwhile."""
        try:
            return await State.paused(self)
        except StateUnusable as error:
            return str(error)

    async def text(self, part: Part) -> str | None:
        path = self.where(part)
        with _usable(path, "read"):
            node = await self.coordination.get(path)
        return None if node is None else node.data.decode("utf-8", errors="replace")

    async def keep(self, part: Part, text: str) -> None:
        path = self.where(part)
        with _usable(path, "written"):
            try:
                await self.coordination.create(path, text.encode())
            except NodeExists:
                await self.coordination.set(path, text.encode())

    async def remove(self, part: Part = Part.PRIOR) -> None:
        path = self.where(part)
        with _usable(path, "removed"):
            try:
                await self.coordination.delete(path)
            except NodeMissing:
                return


@contextmanager
def _usable(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except CoordinationError as error:
        why = str(error) or type(error).__name__
        raise StateUnusable(f"{path}: {why}; expected a node that can be {what}") from None


_HOUR_MS: Final = 3_600_000


class _Stored(BaseModel):
    """The moves begun in the last hour: time, namespace or "", and number."""

    format: Literal[1]
    begun: list[tuple[StrictInt, str, Annotated[int, Field(strict=True, gt=0, le=1_000_000)]]]


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """The budget of moves, stored so that the next controller continues it.

    Before the moves of a round it is stored as if all of them had begun, and after them as it is.
    So a controller that takes over after a crash may count moves that did not begin, but misses
    none.
    """

    budget: MoveBudget
    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic

    async def resume(self) -> None:
        """Count the stored moves; those of a clock that is ahead of this one began now."""
        text = await self.state.text(Part.MOVES)
        if text is None:
            return
        now_ms = self.wall_ms()
        try:
            begun = [
                Begun(
                    min(max(now_ms - at_ms, 0), _HOUR_MS) / 1000,
                    parse_namespace(name) if name else Namespace(""),
                    count,
                )
                for at_ms, name, count in _Stored.model_validate_json(text).begun
            ]
        except (ValueError, InvalidName):
            raise StateUnusable(
                f"{self.state.where(Part.MOVES)}: expected the moves of the last hour as attach "
                "--balance stored them; remove it, and budgets start over"
            ) from None
        self.budget.resume(begun, self.monotonic_s())

    async def store(self, planned: Collection[BundleId] = ()) -> None:
        """Store the moves of the last hour, and ``planned`` ones as if they began now."""
        now_ms = self.wall_ms()
        begun = [
            (now_ms - round(one.age_s * 1000), one.namespace, one.count)
            for one in self.budget.begun(self.monotonic_s(), planned)
        ]
        await self.state.keep(Part.MOVES, _Stored(format=1, begun=begun).model_dump_json())


_FORMAT: Final = 1
_MOST_KEPT: Final = 720
_MOST_POINTS: Final = 120
_STORE_MS: Final = 30_000
_LARGEST_BYTES: Final = 1_048_576


@dataclass(slots=True)
class Course:
    """The balance of each round within the last hour, thinned out, for the next controller.

    Only the live page shows it, so an error in storing or reading it does not stop moves.
    """

    _points: deque[BalancePoint] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    _stored_ms: int = 0

    def note(self, seen: Observation, at_ms: int) -> None:
        plan = seen.plan
        if plan is not None and plan.least_max_over_mean > 0:
            largest, bound = plan.max_over_mean, plan.least_max_over_mean
            gap = max(largest / bound - 1.0, 0.0)
            self.add(BalancePoint(at_ms=at_ms, gap=gap, largest=largest, bound=bound))

    def add(self, point: BalancePoint) -> None:
        """Add a point, which must be later than all others."""
        self._points.append(point)

    def points(self, now_ms: int) -> tuple[BalancePoint, ...]:
        return last_hour(self._points, now_ms, _MOST_POINTS)

    async def resume(self, state: State, now_ms: int) -> str:
        """Continue the stored course; return why it cannot be read, "" if it can."""
        try:
            text = await state.text(Part.COURSE)
            stored = () if text is None else _parsed(text, state.where(Part.COURSE))
        except StateUnusable as error:
            return f"the course of the balance starts over: {error}"
        # This controller may have led before, and then has points already.
        known = {one.at_ms: one for one in (*self._points, *last_hour(stored, now_ms, _MOST_KEPT))}
        self._points.clear()
        self._points.extend(known[at_ms] for at_ms in sorted(known))
        return ""

    async def store(self, state: State, now_ms: int) -> str:
        """Store the course, at most every 30 s; return why it cannot be stored, "" if it can."""
        if 0 <= now_ms - self._stored_ms < _STORE_MS:
            return ""
        self._stored_ms = now_ms
        document = {"format": _FORMAT, **course_to_json(self.points(now_ms))}
        try:
            await state.keep(Part.COURSE, json.dumps(document, separators=(",", ":")))
        except StateUnusable as error:
            return f"the course of the balance is not stored: {error}"
        return ""


def _parsed(text: str, where: str) -> tuple[BalancePoint, ...]:
    try:
        fields = Fields(where, unpacked_object(where, text.encode(), _LARGEST_BYTES))
        if fields.count("format") != _FORMAT:
            fields.refuse("format", str(_FORMAT))
        return course_from_fields(fields)
    except MalformedContent as error:
        raise StateUnusable(str(error)) from None

"""What must outlive a controller of one cluster, as texts in files or in ZooKeeper.

The settings of Pulsar's own balancer from before it was switched off are stored before anything is
changed, and removed when everything is restored.
"""

import asyncio
import errno
import fcntl
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, Field, StrictInt

from loadmanager.common.documents import Documents
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.fields import Fields, unpacked_object
from loadmanager.core.hosts import is_http_url
from loadmanager.core.ids import BundleId, Namespace, parse_namespace
from loadmanager.core.move_limits import Begun, MoveBudget
from loadmanager.core.optimality import BalancePoint, course_from_fields, course_to_json, last_hour
from loadmanager.ports.lookup import LookupRefused, Unavailable, Unfit
from loadmanager.ports.session import Coordination
from loadmanager.pulsar.answers import CONFIGURATION, ClusterReader, PulsarCluster, read_dynamic
from loadmanager.pulsar.client import PulsarAdminError, RequestFailed, RightMissing
from loadmanager.pulsar.observation import Observation

_WRITING: Final = threading.Lock()
"""Held by the threads that write: one whose caller was cancelled goes on."""


class StateUnusable(LoadManagerError):
    """The message says which file or node, why, and what was expected."""


class PriorSettings(BaseModel, frozen=True):
    """A dynamic value is None if not overridden; ``effective`` is what all brokers ran with."""

    format: Literal[1]
    dynamic: dict[str, str | None]
    effective: dict[str, str]


class _Brokers(BaseModel):
    format: Literal[1] = 1
    urls: tuple[str, ...] = ()


Kind = TypeVar("Kind", bound=BaseModel)


class Part(Enum):
    PRIOR = "json", znodes.ATTACH_PRIOR
    PAUSED = "paused", znodes.ATTACH_PAUSED
    MOVES = "moves", znodes.ATTACH_MOVES
    COURSE = "course", znodes.ATTACH_COURSE
    TARGETS = "targets", znodes.ATTACH_TARGETS
    CORDONS = "cordons", znodes.ATTACH_CORDONS
    DRAINS = "drains", znodes.ATTACH_DRAINS
    BROKERS = "brokers", znodes.ATTACH_BROKERS


class State(ABC):
    """The state of a controller of one cluster; all methods raise `StateUnusable`."""

    @abstractmethod
    def where(self, part: Part = Part.PRIOR) -> str: ...

    @abstractmethod
    async def text(self, part: Part) -> str | None: ...

    @abstractmethod
    async def keep(self, part: Part, text: str | None) -> None:
        """Store a text so that it survives a crash; None removes it."""

    @abstractmethod
    async def change(self, part: Part, edit: Callable[[str | None], str]) -> None:
        """Replace a text by what ``edit`` makes of it, again if others change it meanwhile.

        What ``edit`` raises leaves the text as it is. Raises also `Conflict`: others did each time.
        """

    async def stored(self, part: Part, kind: type[Kind], expected: str) -> Kind | None:
        """Raises also if it is not of that kind."""
        return self.parsed(part, await self.text(part), kind, expected)

    def parsed(self, part: Part, text: str | None, kind: type[Kind], expected: str) -> Kind | None:
        try:
            return None if text is None else kind.model_validate_json(text)
        except ValueError:
            raise StateUnusable(f"{self.where(part)}: expected {expected}") from None

    async def read(self) -> PriorSettings | None:
        return await self.stored(
            Part.PRIOR,
            PriorSettings,
            "the settings that attach --balance found; see with "
            "pulsar-admin brokers get-all-dynamic-config what is set, then remove it",
        )

    async def write(self, prior: PriorSettings) -> None:
        await self.keep(Part.PRIOR, prior.model_dump_json())

    async def paused(self) -> str:
        """Return also why it is unknown whether moves are paused: nothing moves meanwhile."""
        try:
            text = await self.text(Part.PAUSED)
        except StateUnusable as error:
            return str(error)
        return "" if text is None else text.strip() or "paused"

    async def brokers(self) -> tuple[str, ...]:
        with suppress(StateUnusable):
            found = await self.stored(Part.BROKERS, _Brokers, "") or _Brokers()
            return tuple(one for one in found.urls if is_http_url(one, without_path=True))
        return ()

    async def know(self, urls: Collection[str]) -> None:
        await self.keep(Part.BROKERS, _Brokers(urls=tuple(urls)).model_dump_json())

    async def pause(self, why: str) -> None:
        await self.keep(Part.PAUSED, why)

    async def resume(self) -> None:
        await self.keep(Part.PAUSED, None)


_FOLDER: Final = "a folder that can be written (--state-dir)"


_WRITES: Final = (Unavailable, Unfit)
"""What a change of the state raises itself: all else that it refuses is its caller's."""


@contextmanager
def _usable(
    where: object, expected: str, refused: tuple[type[LookupRefused], ...] = (LookupRefused,)
) -> Iterator[None]:
    try:
        yield
    except refused as error:
        raise StateUnusable(f"{error}; expected {expected}") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StateUnusable(f"{where}: {why}; expected {expected}") from None


@dataclass(frozen=True, slots=True)
class StateFile(State):
    """The state in a folder: ``path`` is the file of the prior settings, the others beside it."""

    path: Path

    def where(self, part: Part = Part.PRIOR) -> str:
        return str(self._path(part))

    def _path(self, part: Part) -> Path:
        return self.path.with_suffix(f".{part.value[0]}")

    async def text(self, part: Part) -> str | None:
        return _text(self._path(part))

    async def keep(self, part: Part, text: str | None) -> None:
        await asyncio.to_thread(_store, self._path(part), text)

    async def change(self, part: Part, edit: Callable[[str | None], str]) -> None:
        path = self._path(part)

        def changed() -> None:
            lock_path = path.with_name(f"{path.name}.lock")
            with _usable(path, _FOLDER, _WRITES), lock_path.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _store(path, edit(_text(path)))

        await asyncio.to_thread(changed)


def _text(path: Path) -> str | None:
    with _usable(path, "a file that can be read"), suppress(FileNotFoundError):
        if path.exists() and not path.is_file():  # To read a pipe would wait for a writer.
            raise OSError(errno.EINVAL, "not a regular file")
        return path.read_text(encoding="utf-8")
    return None


def _store(path: Path, text: str | None) -> None:
    """Replace or remove a file: one of the two contents survives a crash of this machine."""
    with _WRITING, _usable(path, _FOLDER):
        if text is None:
            path.unlink(missing_ok=True)
        else:
            new = path.with_name(f"{path.name}.new")
            new.unlink(missing_ok=True)  # It may be a link.
            with new.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def state_name(cluster: str) -> str:
    return f"attach-{quote(cluster, safe='')}.json"


def state_file(folder: Path, cluster: str) -> StateFile:
    """Create the folder if it is missing. Raises `StateUnusable`: it cannot be created."""
    path = folder / state_name(cluster)
    with _usable(path, _FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    return StateFile(path)


async def stored_brokers(folder: Path, urls: Collection[str]) -> tuple[str, ...]:
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
    with _usable(lock, _FOLDER):
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            why = f"another loadmanager attach acts on {cluster}; expected to be the only one"
            raise StateUnusable(f"{lock}: {why}") from None
        yield state
    finally:
        os.close(held)


@dataclass(frozen=True, slots=True)
class SharedState(State):
    coordination: Coordination

    def where(self, part: Part = Part.PRIOR) -> str:
        return part.value[1]

    async def text(self, part: Part) -> str | None:
        path = self.where(part)
        with _usable(path, "a node that can be read"):
            content = await Documents(self.coordination).read(path)
        return None if content is None else content.decode("utf-8", errors="replace")

    async def keep(self, part: Part, text: str | None) -> None:
        path, content = self.where(part), None if text is None else text.encode()
        with _usable(path, f"a node that can be {'removed' if text is None else 'written'}"):
            await Documents(self.coordination).change(path, lambda _: content)

    async def change(self, part: Part, edit: Callable[[str | None], str]) -> None:
        def edited(data: bytes | None) -> bytes:
            return edit(None if data is None else data.decode("utf-8", errors="replace")).encode()

        path = self.where(part)
        with _usable(path, "a node that can be written", _WRITES):
            await Documents(self.coordination).change(path, edited)


_HOUR_MS: Final = 3_600_000
Name = Annotated[str, AfterValidator(lambda name: name and parse_namespace(name))]


class _Stored(BaseModel):
    """The moves begun in the last hour: time, namespace or "", and number."""

    format: Literal[1]
    begun: list[tuple[StrictInt, Name, Annotated[int, Field(strict=True, gt=0, le=1_000_000)]]]


@dataclass(frozen=True, slots=True)
class StoredBudget:
    """The budget of moves, stored before a round as if all of its moves had begun."""

    budget: MoveBudget
    state: State
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic

    async def resume(self) -> None:
        expected = "the moves of the last hour as attach --balance stored them; remove it, and"
        found = await self.state.stored(Part.MOVES, _Stored, f"{expected} budgets start over")
        if found is not None:
            now_ms = self.wall_ms()
            begun = [
                Begun(min(max(now_ms - at_ms, 0), _HOUR_MS) / 1000, Namespace(name), count)
                for at_ms, name, count in found.begun
            ]
            self.budget.resume(begun, self.monotonic_s())

    async def store(self, planned: Collection[BundleId] = ()) -> None:
        """Store the moves of the last hour, and ``planned`` ones as if they began now."""
        now_ms = self.wall_ms()
        begun = [
            (now_ms - round(one.age_s * 1000), str(one.namespace), one.count)
            for one in self.budget.begun(self.monotonic_s(), planned)
        ]
        stored = _Stored.model_construct(format=1, begun=begun)
        await self.state.keep(Part.MOVES, stored.model_dump_json())


_FORMAT: Final = 1
_MOST_KEPT: Final = 720
_MOST_POINTS: Final = 120
_STORE_MS: Final = 30_000
_LARGEST_BYTES: Final = 1_048_576


@dataclass(slots=True)
class Course:
    """The balance of the last hour, thinned out, for the next controller's page."""

    _points: deque[BalancePoint] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    _stored_ms: int = 0

    def note(self, seen: Observation, at_ms: int) -> None:
        if seen.plan is not None and (bound := seen.plan.least_max_over_mean) > 0:
            largest = seen.plan.max_over_mean
            gap = max(largest / bound - 1.0, 0.0)
            self.add(BalancePoint(at_ms=at_ms, gap=gap, largest=largest, bound=bound))

    def add(self, point: BalancePoint) -> None:
        self._points.append(point)

    def points(self, now_ms: int) -> tuple[BalancePoint, ...]:
        return last_hour(self._points, now_ms, _MOST_POINTS)

    async def resume(self, state: State, now_ms: int) -> None:
        """Raises `StateUnusable` or `MalformedContent`: the course starts over."""
        text, where = await state.text(Part.COURSE), state.where(Part.COURSE)
        if text is None:
            return
        fields = Fields(where, unpacked_object(where, text.encode(), _LARGEST_BYTES))
        if fields.count("format") != _FORMAT:
            fields.refuse("format", str(_FORMAT))
        stored = last_hour(course_from_fields(fields), now_ms, _MOST_KEPT)
        # This controller may have led before, and then has points already.
        known = {one.at_ms: one for one in (*self._points, *stored)}
        self._points.clear()
        self._points.extend(known[at_ms] for at_ms in sorted(known))

    async def store(self, state: State, now_ms: int) -> None:
        """Store the course, at most every 30 s. Raises `StateUnusable`."""
        if not 0 <= now_ms - self._stored_ms < _STORE_MS:
            self._stored_ms = now_ms
            document = {"format": _FORMAT, **course_to_json(self.points(now_ms))}
            await state.keep(Part.COURSE, json.dumps(document, separators=(",", ":")))


_CHANGED_WITHIN_S: Final = 30.0


SHEDDING: Final = "loadBalancerSheddingEnabled"
SWITCHES: Final = (SHEDDING, "loadBalancerAutoBundleSplitEnabled")
_OFF: Final = "false"
_PAUSE_S: Final = 1.0


class BalancerNotOff(LoadManagerError):
    """Pulsar's own balancer must not, or cannot, be switched off; the message says why."""


@dataclass(frozen=True, slots=True)
class PulsarBalancer:
    """Pulsar's own shedding and automatic splits: off while we balance, then restored.

    A value that others changed meanwhile is left unchanged. Brokers must apply a setting within
    ``settle_s``. ``otherwise`` is the remedy if shedding is off without a controller.
    """

    state: State
    settle_s: float = 10.0
    otherwise: str = "give --take-over"

    async def begin(
        self, reader: ClusterReader, cluster: PulsarCluster, *, take_over: bool
    ) -> None:
        """Store the settings, then switch the balancer off on all brokers, by any of them.

        Settings that an earlier controller stored and did not restore are not replaced. Raises
        `BalancerNotOff`: shedding was already switched off by others, or brokers do not apply it;
        `StateUnusable`: the settings cannot be stored; nothing was changed; `PulsarAdminError`.
        """
        dynamic = await reader.at_any(partial(read_dynamic, reader.admin))
        if await self.state.read() is None:
            if dynamic.get(SHEDDING) == _OFF and not take_over:
                raise BalancerNotOff(
                    f"{cluster.name}: {SHEDDING} is overridden with false, and not by a controller "
                    f"with the state {self.state.where()}: another one may balance this cluster; "
                    f"end it, or {self.otherwise}"
                )
            found = {key: tuple(cluster.differing(key)) for key in SWITCHES}
            effective = {key: one[0] if len(one) == 1 else "" for key, one in found.items()}
            prior = {key: dynamic.get(key) for key in SWITCHES}
            await self.state.write(PriorSettings(format=1, dynamic=prior, effective=effective))
        for key in SWITCHES:
            if dynamic.get(key) != _OFF:
                await _write(reader, key, _OFF)
        late = await self._until(reader, dict.fromkeys(SWITCHES, _OFF))
        if late:
            what = f"{'; '.join(late)} {self.settle_s:g} s after the order"
            raise BalancerNotOff(f"{cluster.name}: {what}")

    async def restore(self, reader: ClusterReader) -> tuple[str, ...]:
        """Restore all settings, each at any broker that accepts it; return one line for each.

        Raises `StateUnusable`; `PulsarAdminError`: no broker accepts a setting; the others are
        restored, the message has the line of each, and the stored settings stay.
        """
        prior = await self.state.read()
        if prior is None:
            return (f"nothing to restore: {self.state.where()} does not exist",)
        dynamic, done = await reader.at_any(partial(read_dynamic, reader.admin)), list[str]()
        failed: PulsarAdminError | None = None
        for key, value in prior.dynamic.items():
            now = dynamic.get(key)
            if now == value:
                done.append(f"{key}: {_shown(value)}, as before")
            elif now != _OFF:
                done.append(f"{key}: {_shown(now)}, as set by others; left unchanged")
            else:
                try:
                    await self._put_back(reader, key, value, prior.effective.get(key, ""))
                except PulsarAdminError as error:
                    failed = error
                    done.append(f"{key}: not restored: {error}")
                else:
                    done.append(f"{key}: {_shown(value)} again")
        if failed is not None:
            kind = RightMissing if isinstance(failed, RightMissing) else RequestFailed
            raise kind("; ".join(done)) from failed
        await self.state.keep(Part.PRIOR, None)
        return tuple(done)

    async def _put_back(
        self, reader: ClusterReader, key: str, value: str | None, effective: str
    ) -> None:
        await _write(reader, key, value)
        if value is not None or not effective:
            return
        # Older brokers keep the value of a removed override until they restart.
        if await self._until(reader, {key: effective}):
            await _write(reader, key, effective)
            await self._until(reader, {key: effective})
            await _write(reader, key, None)

    async def _until(self, reader: ClusterReader, wanted: Mapping[str, str]) -> tuple[str, ...]:
        """Wait until all brokers that answer apply settings; return those that do not in time."""
        until_s = monotonic() + self.settle_s
        while True:
            reader.forget()
            cluster = await reader.read()
            late = tuple(
                f"{key} is {value} on {', '.join(brokers)}"
                for key, right in wanted.items()
                for value, brokers in cluster.differing(key).items()
                if value != right
            )
            if not late or monotonic() >= until_s:
                return late
            await asyncio.sleep(_PAUSE_S)


async def _write(reader: ClusterReader, key: str, value: str | None) -> None:
    path = f"{CONFIGURATION}/{quote(key, safe='')}"
    path = path if value is None else f"{path}/{quote(value, safe='')}"
    change = partial(reader.admin.change, "DELETE" if value is None else "POST")
    await reader.at_any(lambda url: change(f"{url}{path}", timeout_s=_CHANGED_WITHIN_S))


def switched_on(cluster: PulsarCluster) -> str:
    on = ((key, cluster.differing(key).get("true")) for key in SWITCHES)
    why = "was switched on by others (true on"
    return "; ".join(f"{key} {why} {', '.join(brokers)})" for key, brokers in on if brokers)


def _shown(value: str | None) -> str:
    return "not overridden" if value is None else f"overridden with {value}"

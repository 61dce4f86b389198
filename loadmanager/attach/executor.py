"""Carrying out what was proposed: splits one after the other, moves several at once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic

from loadmanager.adapters.pulsar_admin import PulsarAdmin, RightMissing
from loadmanager.adapters.pulsar_admin.moves import BundleMover, Move, Outcome
from loadmanager.adapters.pulsar_admin.splits import BundleSplitter
from loadmanager.attach.discovery import Addresses
from loadmanager.attach.mandate import Mandate
from loadmanager.attach.observation import Observation, Proposal
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.splitting import SplitProposal
from loadmanager.attach.tasks import Followed, TaskLog, followed_move, followed_split
from loadmanager.core.bundle_task import TaskState
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, parse_full_topic
from loadmanager.core.move_limits import MoveBudget

Work = Callable[[Callable[[], None]], Awaitable[Outcome]]


class _Lapsed(LoadManagerError):
    """The right to send orders is gone or in doubt."""


@dataclass(slots=True, kw_only=True)
class Executor:
    """Orders moves and splits of one cluster, and follows each to its end.

    Attributes:
        address: the URL of a broker.
        budget: how much may be moved; each order counts.
        stopping: nothing begins once it is set; set where a right is missing.
        mandate: by what right orders are sent.
    """

    admin: PulsarAdmin
    address: Addresses
    budget: MoveBudget
    stopping: asyncio.Event
    mandate: Mandate
    log: TaskLog
    _uncut: set[BundleId] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    async def carry_out(self, seen: Observation) -> None:
        """Split what has to be split; if nothing has, move."""
        if splits := self._split_work(seen):
            await self._in_turn(splits)
        else:
            await self._together(self._move_work(seen))

    async def _in_turn(self, splits: list[tuple[Followed, Work]]) -> None:
        """Carry out one split after the other.

        Two at once of a namespace write the same node. After such a lost race a modular 4.0.7
        broker may answer nothing that needs metadata any more.
        """
        unfinished = ""
        for followed, work in splits:
            if unfinished:
                followed.ended("superseded", f"held: the split of {unfinished} is not finished")
            elif self._admitted(followed):
                await self._one(followed, work)
                if followed.task.state is TaskState.TIMED_OUT:
                    unfinished = followed.task.bundle

    async def _together(self, moves: list[tuple[Followed, Work]]) -> None:
        """Carry out moves, as many at once as the limits allow."""
        waiting = deque(moves)
        under_way: set[asyncio.Task[None]] = set()
        try:
            while waiting or under_way:
                while waiting and not self.budget.crowded():
                    followed, work = waiting.popleft()
                    if self._admitted(followed):
                        under_way.add(asyncio.create_task(self._one(followed, work)))
                if under_way:
                    done, under_way = await asyncio.wait(
                        under_way, return_when=asyncio.FIRST_COMPLETED
                    )
                    for one in done:
                        one.result()
        finally:
            # Whatever ended this, no order is left without a look at where it went.
            await asyncio.gather(*under_way, return_exceptions=True)

    def _move_work(self, seen: Observation) -> list[tuple[Followed, Work]]:
        mover = BundleMover(
            self.admin,
            self.address,
            seen.cluster.name,
            seen.cluster.brokers,
            claims=seen.cluster.manager != "extensible",
        )
        return [
            (
                followed_move(one, next(self._numbers), self.mandate.epoch, self.log),
                partial(mover.move, _move(one, seen.samples)),
            )
            for one in seen.proposals
        ]

    def _split_work(self, seen: Observation) -> list[tuple[Followed, Work]]:
        return [
            (
                followed_split(one, next(self._numbers), self.mandate.epoch, self.log),
                partial(self._split, seen.cluster.name, one),
            )
            for one in seen.splits
            if one.bundle not in self._uncut
        ]

    async def _split(
        self, cluster: str, proposal: SplitProposal, ordered: Callable[[], None]
    ) -> Outcome:
        broker = proposal.broker
        splitter = BundleSplitter(self.admin, self.address(broker), cluster, broker)
        outcome = await splitter.split(proposal.bundle, proposal.cut, ordered)
        if outcome.state == "failed" and outcome.attempts:
            # A version that cannot, or a namespace that may not, does not in the next round either.
            self._uncut.add(proposal.bundle)
        return outcome

    def _admitted(self, followed: Followed) -> bool:
        """Count what may begin now, else tell why it may not."""
        bundle = followed.task.bundle
        why = "told to stop" if self.stopping.is_set() else ""
        why = why or self.budget.exhausted(bundle, monotonic())
        if why:
            followed.ended("superseded", f"held: {why}")
            return False
        self.budget.begin(bundle, monotonic())
        return True

    async def _one(self, followed: Followed, work: Work) -> None:
        def ordered() -> None:
            if why := self.mandate.lapsed():
                raise _Lapsed(why)
            followed.ordered()

        try:
            outcome = await work(ordered)
        except _Lapsed as error:
            outcome = Outcome(state="superseded", reason=str(error))
        except RightMissing as error:
            self.stopping.set()
            followed.ended("failed", str(error))
            raise
        finally:
            self.budget.end(followed.task.bundle, monotonic())
        followed.ended(outcome.state, outcome.reason)


def _move(proposal: Proposal, samples: Mapping[BrokerId, BrokerSample]) -> Move:
    name = samples[proposal.source].bundles[proposal.bundle].topic
    try:
        topic = parse_full_topic(name)
    except InvalidName:
        topic = None
    return Move(bundle=proposal.bundle, source=proposal.source, target=proposal.target, topic=topic)

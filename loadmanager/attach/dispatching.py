import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Final

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.pulsar_admin import PulsarAdmin, RightMissing
from loadmanager.adapters.pulsar_admin.move_order import Move
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.mandate import Mandate
from loadmanager.attach.observation import Observation
from loadmanager.attach.orders import PulsarOrders
from loadmanager.attach.placing import holds_policies, name_in
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.tasks import Proposal
from loadmanager.common.cluster_owners import Holding
from loadmanager.common.runtime_settings import TaskBounds
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.bundle_task import BundleTask, TaskEvent, TaskKind, TaskState
from loadmanager.core.bundle_traffic import BundleTraffic, topics_in
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, TopicName, namespace_of, parse_full_topic
from loadmanager.core.move_limits import HeldReason, MoveBudget
from loadmanager.leader.task_controller import TaskController

ACTIVE_WINDOWS: Final = 3
"""Windows in each of which a topic has to have traffic, to be followed through a move."""

MOST_WATCHED: Final = 3
_LAST_ORDERS_S: Final = 60.0
"""Time for which a controller that stops follows its last unloads: Pulsar's usual limit."""


class SampledOwners:
    """The owners of bundles by the last samples, updated as moves and splits end."""

    def __init__(self) -> None:
        self.brokers: Collection[BrokerId] = ()
        self.owners: dict[BundleId, Holding] = {}
        self.owner_changes = Subscriptions()
        self._traffic: dict[BundleId, BundleTraffic] = {}
        self._windows: deque[Mapping[BrokerId, BrokerSample]] = deque(maxlen=ACTIVE_WINDOWS)

    def sampled(
        self, brokers: Collection[BrokerId], samples: Mapping[BrokerId, BrokerSample]
    ) -> None:
        self.brokers, self.owners, self._traffic = brokers, {}, {}
        for broker, sample in samples.items():
            for bundle, traffic in sample.bundles.items():
                self.owners[bundle] = Holding(broker, 0)
                self._traffic[bundle] = traffic
        self.owner_changes.notify()

    def window(self, samples: Mapping[BrokerId, BrokerSample]) -> None:
        self._windows.append(samples)

    def active_topics(self, bundle: BundleId) -> tuple[TopicName, ...]:
        """Return up to `MOST_WATCHED` topics with traffic at their broker in each last window.

        If there are none, it is the topic of the bundle that others need to be loaded, if any.
        Segments are left out, because brokers do not say what a single one has counted.
        """
        owner, traffic = self.listed_owner(bundle), self._traffic.get(bundle)
        seen = [one[owner].topics for one in self._windows if owner is not None and owner in one]
        needed = () if traffic is None or not traffic.needed else (traffic.needed,)
        within = f"://{namespace_of(bundle)}/"
        names = (
            name
            for name in (seen[-1] if len(seen) == ACTIVE_WINDOWS else ())
            if within in name
            and not name.startswith("segment://")
            and all(name in one and one[name].msgs_per_s > 0 for one in seen)
        )
        found = tuple(topic for _, topic, _ in islice(topics_in(bundle, names), MOST_WATCHED))
        return found or tuple(parse_full_topic(name) for name in needed)

    def topics(self, bundle: BundleId) -> int:
        traffic = self._traffic.get(bundle)
        return 0 if traffic is None else traffic.topics

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        for bundle, broker in owners.items():
            if broker is None:
                self.owners.pop(bundle, None)
            else:
                self.owners[bundle] = Holding(broker, 0)
        self.owner_changes.notify()

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    async def topic_of(self, bundle: BundleId) -> TopicName | None:
        traffic = self._traffic.get(bundle)
        try:
            return parse_full_topic("" if traffic is None else traffic.topic)
        except InvalidName:
            return name_in(bundle)


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Proposes placements, moves and splits of one cluster within the limits, for one term.

    Once ``stopping`` is set, no task begins; it is set here at a defect of this program. After an
    order that lacks a right, no further task of the round begins. ``log`` is called with each task
    in a new state, and why.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: PulsarCluster
    budget: MoveBudget
    stopping: asyncio.Event
    mandate: Mandate
    log: Callable[[BundleTask, str], None]
    _why: dict[BundleId, str] = field(default_factory=dict)
    _placing: frozenset[BundleId] = frozenset()
    _urgent: bool = False
    _used_up: str = ""
    _sent: dict[BundleId, int] = field(default_factory=dict)
    _unfinished: BundleId | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failures: list[BaseException] = field(default_factory=list)
    _owners: SampledOwners = field(default_factory=SampledOwners)
    _orders: PulsarOrders = field(init=False)
    _tasks: TaskController = field(init=False)

    def __post_init__(self) -> None:
        self._orders = PulsarOrders(
            self.admin,
            self.address,
            self.cluster.name,
            claims=self.cluster.manager != "extensible",
            owners=self._owners,
            topic_of=self._owners.topic_of,
            mandate=self.mandate,
            failed=self._failed,
            name_in=lambda bundle: name_in(bundle) if bundle in self._placing else None,
            active_topics=self._owners.active_topics,
            sent=self._unload_sent,
        )
        at_once = self.budget.limits.at_once
        self._tasks = TaskController(
            self.mandate.epoch,
            self._orders,
            self._owners,
            SystemClock(),
            # The controller repeats no orders: `PulsarOrders` follows each one to its end.
            bounds=lambda: TaskBounds(most_per_broker=at_once, lost_after_s=float("inf")),
            listener=self._task_changed,
            caught=lambda _, error: self._failed(error),
        )

    def close(self) -> None:
        self._tasks.close()

    @property
    def stuck(self) -> Mapping[BundleId, Move]:
        return self._orders.stuck

    def window(self, samples: Mapping[BrokerId, BrokerSample]) -> None:
        """Take the sample of each window, whether or not anything moves after it."""
        self._owners.window(samples)

    async def carry_out(self, seen: Observation) -> None:
        """Place unserved bundles, then carry out the splits, or the moves if there are no splits.

        Raises `Deposed`: another controller was elected; `RightMissing`: an order was refused for
        lack of a permission.
        """
        self._owners.sampled(seen.cluster.brokers, seen.samples)
        splits = [one for one in seen.splits if one.bundle not in self._orders.uncut]
        proposed = (*seen.placements, *(splits or seen.proposals))
        self._why = {one.bundle: one.reason for one in proposed}
        self._failures.clear()
        self._placing = frozenset(one.bundle for one in seen.placements)
        self._unfinished = None
        self._urgent = seen.urgent
        self._used_up = seen.holds.get(HeldReason.BUDGET, "")
        ending = asyncio.create_task(self._end_in_time())
        try:
            for first in (True, False):  # Otherwise Pulsar places those that hold policies.
                placements = [one for one in seen.placements if holds_policies(one.bundle) is first]
                await self._carry_out(placements, at_once=self.budget.limits.at_once)
            if splits:
                await self._carry_out(splits, at_once=1)
            else:
                await self._carry_out(seen.proposals, at_once=self.budget.limits.at_once)
        finally:
            # Also after an error, wait until the owner of each ordered bundle is known.
            await self._orders.settled()
            ending.cancel()

    async def _end_in_time(self) -> None:
        await self.stopping.wait()
        await asyncio.sleep(_LAST_ORDERS_S)
        self._orders.close()

    def _fits(self, proposal: BundleTask) -> bool:
        """Return whether the topics of one more bundle may be closed and loaded now."""
        under_way = [self._owners.topics(one.bundle) for one in self._tasks.tasks]
        topics = sum(under_way) + self._owners.topics(proposal.bundle)
        return not under_way or topics <= self.budget.limits.topics_at_once

    async def _carry_out(self, proposed: Iterable[Proposal], at_once: int) -> None:
        waiting, live = deque(one.task() for one in proposed), self._tasks.tasks
        while waiting or len(live):
            self._changed.clear()
            while waiting and len(live) < at_once and self._fits(waiting[0]):
                await self._propose(waiting.popleft())
            if len(live):
                await self._changed.wait()
            if self._failures:
                raise self._failures[0]

    async def _propose(self, proposal: BundleTask) -> None:
        bundle, why = proposal.bundle, self._held(proposal)
        if why:
            self._tasks.withdraw(proposal, f"held: {why}")
            return
        found = await self._tasks.dispatch([proposal])
        if not found.tasks and bundle in found.refused:
            self._tasks.withdraw(proposal, found.refused[bundle])

    def _held(self, proposal: BundleTask) -> str:
        if self.stopping.is_set():
            return "asked to stop"
        if self._failures:
            return "another order was refused"
        if proposal.kind is TaskKind.PLACE:
            return ""  # It interrupts no client, so no limit on moves applies to it.
        if self._unfinished is not None:
            return f"the split of {self._unfinished} is not finished"
        if self._used_up:
            return self._used_up
        return self.budget.exhausted(proposal.bundle, monotonic(), urgent=self._urgent)

    def _unload_sent(self, bundle: BundleId) -> None:
        self._sent[bundle] = self._sent.get(bundle, 0) + 1
        if self._sent[bundle] > 1:
            self.budget.again(bundle, monotonic())

    def _task_changed(self, task: BundleTask) -> None:
        self._changed.set()
        begins = task.last_event is TaskEvent.ORDER_WRITTEN
        counts = task.kind is not TaskKind.PLACE
        if begins and counts:
            self._sent.pop(task.bundle, None)
            self.budget.begin(task.bundle, monotonic())
        elif task.state.ended and task.attempts and counts:
            unsent = not self._sent.pop(task.bundle, 0)
            self.budget.end(task.bundle, monotonic(), unsent=unsent)
        if task.kind is TaskKind.SPLIT and task.state is TaskState.TIMED_OUT:
            self._unfinished = task.bundle
        if begins or task.state.ended:
            self.log(task, self._why.get(task.bundle, ""))

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, RightMissing):
            self.stopping.set()
        self._failures.append(error)

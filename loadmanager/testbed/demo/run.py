"""One run of the demo: start, traffic, watch, kill, stop, sum up."""

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Final

import aiohttp

from loadmanager.core.ids import BrokerId
from loadmanager.testbed.demo.children import Child, ChildFailed, Children, DemoFailed
from loadmanager.testbed.demo.client import RETRY_BOUND_S
from loadmanager.testbed.demo.cluster import HASH, NAMESPACE, Cluster, Member
from loadmanager.testbed.demo.counts import TrafficReport
from loadmanager.testbed.demo.figures import Evidence, Journal, KillStory, Summary
from loadmanager.testbed.demo.observation import ClusterLook, Observer
from loadmanager.testbed.demo.scene import Invitation, Scene, Show
from loadmanager.testbed.demo.settings import LEADER, DemoSettings, Kill
from loadmanager.testbed.demo.traffic import TrafficSettings

LOOK_EVERY_S: Final = 0.5
LOOK_AFTER_KILL_S: Final = 0.2
"""How often to look until all bundles are served again: it is what is measured."""

PLACED_BOUND_S: Final = 60.0
FINISH_MARGIN_S: Final = 10.0

ReadRecords = Callable[[Mapping[Path, float | None]], Evidence]
"""Says what the brokers' records prove.

It is given the record of each broker, and when it was dead for sure if it was killed.
"""


class Interrupt:
    """The first Ctrl-C or SIGTERM ends the run and sums it up; one before or after it aborts."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.running = False
        self._task = asyncio.current_task()

    def listen(self) -> None:
        """Take the signals over from Python."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        if self.running and not self.asked.is_set():
            self.asked.set()
        elif self._task is not None:
            self._task.cancel()


class TrafficProcess:
    """The traffic generator's process and its last report."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.last: deque[TrafficReport] = deque(maxlen=2)
        self.finished = False

    async def read(self, hear: Callable[[TrafficReport], None]) -> None:
        """Pass each report on until the generator ends."""
        stdout = self.child.process.stdout
        while stdout is not None and (line := await stdout.readline()):
            report = TrafficReport.from_line(line.decode())
            self.last.append(report)
            self.finished = report.kind == "final"
            hear(report)


class Run:
    """What is known while a run goes on."""

    def __init__(
        self,
        settings: DemoSettings,
        children: Children,
        cluster: Cluster,
        http: aiohttp.ClientSession,
        show: Show,
    ) -> None:
        self._settings = settings
        self._children = children
        self._cluster = cluster
        self._observer = Observer(http, cluster.members, cluster.control_secret)
        self._show = show
        self._names = {member.broker: member.name for member in cluster.members}
        self._kills: list[KillStory] = []
        self._due = deque(sorted(settings.kills, key=lambda kill: kill.at_s))
        self._journal = Journal(monotonic())

    async def run(self, interrupt: Interrupt) -> Callable[[Evidence], Summary]:
        """Run to the end; the summary lacks only what the brokers' records say."""
        traffic = await self._start_traffic()
        reading = asyncio.create_task(traffic.read(self._hear))
        try:
            await self._wait_until_placed(traffic)
            interrupt.running = True
            await self._watch(traffic, interrupt)
            ended_s = monotonic()
            await self._finish(traffic, reading)
        finally:
            reading.cancel()
        return lambda evidence: self._summary(traffic.last[-1], ended_s, evidence)

    async def _start_traffic(self) -> TrafficProcess:
        self._show.step(f"looking up {self._settings.topics} topics, which places every bundle")
        path = self._settings.data_dir / "traffic.json"
        TrafficSettings(
            sidecar_urls=tuple(member.sidecar_url for member in self._cluster.members),
            namespace=NAMESPACE,
            hash_name=HASH,
            bundles=self._settings.bundles,
            topics=self._settings.topics,
            seed=self._settings.seed,
            rate_per_s=self._settings.rate_per_s,
        ).save(path)
        arguments = ("-m", "loadmanager.testbed.demo.traffic", str(path))
        pipe = asyncio.subprocess.PIPE
        return TrafficProcess(await self._children.start("traffic", *arguments, stdout=pipe))

    async def _wait_until_placed(self, traffic: TrafficProcess) -> None:
        async def unplaced() -> str:
            if any(report.kind == "placed" for report in traffic.last):
                return ""
            return traffic.last[-1].last_lookup_error if traffic.last else "nothing heard of it"

        await self._children.wait_until(
            unplaced, child=traffic.child, what="done with looking up", bound_s=PLACED_BOUND_S
        )
        self._journal = Journal(traffic.last[-1].at_s)

    def _hear(self, report: TrafficReport) -> None:
        for kill in self._kills:
            kill.hear(report)

    async def _watch(self, traffic: TrafficProcess, interrupt: Interrupt) -> None:
        """Look twice a second until the time is up or the demo is interrupted."""
        ends_at_s = self._settings.ends_at_s
        while not interrupt.asked.is_set():
            began_s = monotonic()
            elapsed_s = began_s - self._journal.began_s
            if ends_at_s is not None and elapsed_s >= ends_at_s:
                break
            self._children.require_running()
            look = await self._look()
            await self._kill_what_is_due(look, elapsed_s)
            self._show.update(self._scene(look, traffic, elapsed_s))
            recovering = any(kill.reserved_s is None for kill in self._kills)
            every_s = LOOK_AFTER_KILL_S if recovering else LOOK_EVERY_S
            await _wait(interrupt.asked, every_s - (monotonic() - began_s))
        if self._due and not interrupt.asked.is_set():
            raise DemoFailed(f"--kill {self._due[0]}: there was no leader from then on to the end")

    async def _look(self) -> ClusterLook:
        look = await self._observer.look()
        self._journal.add(look)
        for kill in self._kills:
            kill.follow(look, self._settings.bundles)
        return look

    async def _kill_what_is_due(self, look: ClusterLook, elapsed_s: float) -> None:
        while self._due and self._due[0].at_s <= elapsed_s:
            member = self._target(self._due[0], look)
            if member is None:
                return  # no leader now: the next look may show one
            kill = self._due.popleft()
            if member.killed:
                self._show.step(f"--kill {kill}: {member.name} was killed before, as the leader")
                continue
            lost = frozenset(b for b, owner in look.owners.items() if owner == member.broker)
            story = KillStory(member.name, member.broker, monotonic(), lost, look.leader)
            await self._cluster.kill(member)
            self._kills.append(story)

    def _target(self, kill: Kill, look: ClusterLook) -> Member | None:
        """Return which broker to kill, None if that is the leader and there is none."""
        if kill.target != LEADER:
            return self._cluster.members[int(kill.target) - 1]
        leading = (member for member in self._cluster.alive if member.broker == look.leader)
        return next(leading, None)

    def _scene(self, look: ClusterLook, traffic: TrafficProcess, elapsed_s: float) -> Scene:
        return Scene(
            settings=self._settings,
            names=self._names,
            elapsed_s=elapsed_s,
            look=look,
            journal=self._journal,
            reports=tuple(traffic.last),
            kills=tuple(self._kills),
        )

    async def _finish(self, traffic: TrafficProcess, reading: "asyncio.Task[None]") -> None:
        """Let the generator finish what is due, and hear its last counts.

        Raises:
            ChildFailed: it ended without reporting them, or did not end.
        """
        traffic.child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(RETRY_BOUND_S + FINISH_MARGIN_S):
                await reading
        except TimeoutError:
            raise ChildFailed(traffic.child, "did not finish") from None
        if not traffic.finished:
            raise ChildFailed(traffic.child, "ended without its last counts")
        self._children.require_running()

    def _summary(self, last: TrafficReport, ended_s: float, evidence: Evidence) -> Summary:
        journal = self._journal
        leader: BrokerId | None = journal.looks[-1].leader if journal.looks else None
        taken_over = sum(move.reason == "taken over" for move in journal.moves)
        return Summary(
            leader=leader,
            leader_name=self._names.get(leader, "none") if leader else "none",
            brokers=self._settings.brokers,
            bundles=self._settings.bundles,
            topics=self._settings.topics,
            moves=len(journal.moves) - taken_over,
            taken_over=taken_over,
            imbalance_start=journal.imbalance_start,
            imbalance_end=journal.imbalance_end,
            lookups=last.lookups,
            lookup_errors=last.lookup_errors,
            published=last.published,
            publish_errors=last.publish_errors,
            publish_retries=last.publish_retries,
            last_lookup_error=last.last_lookup_error,
            last_publish_error=last.last_publish_error,
            evidence=evidence,
            seconds=ended_s - journal.began_s,
            settings=self._settings.to_json() | {"sidecar": self._cluster.sidecar_settings},
            kills=tuple(self._kills),
        )


async def run_demo(settings: DemoSettings, show: Show, read_records: ReadRecords) -> Summary:
    """Run the demo from an empty machine to a clean one.

    Raises:
        DemoFailed: something ended or was not ready in time.
        asyncio.CancelledError: interrupted before there was anything to sum up.
    """
    interrupt = Interrupt()
    interrupt.listen()
    children = Children(settings.data_dir)
    try:
        async with aiohttp.ClientSession() as http:
            cluster = Cluster(settings, children, http)
            await cluster.start(show.step)
            show.invite(Invitation.of(settings, cluster))
            sum_up = await Run(settings, children, cluster, http, show).run(interrupt)
    finally:
        show.close()
        await children.stop()
    return sum_up(read_records({m.record_path: m.dead_at_s for m in cluster.members}))


async def _wait(event: asyncio.Event, bound_s: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, bound_s)):
            await event.wait()
    except TimeoutError:
        return

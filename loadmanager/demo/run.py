"""One run of the demo: start, traffic, observation, kills, stop, summary."""

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

import aiohttp

from loadmanager.demo.cluster import (
    HASH,
    LEADER,
    NAMESPACE,
    Child,
    ChildFailed,
    Children,
    Cluster,
    DemoFailed,
    DemoSettings,
    Kill,
    Member,
)
from loadmanager.demo.display import Display, RunState, join_lines
from loadmanager.demo.figures import (
    ClusterSample,
    Evidence,
    Journal,
    KillEffects,
    Observer,
    Summary,
)
from loadmanager.demo.traffic import RETRY_BOUND_S, TrafficReport, TrafficSettings

SAMPLE_EVERY_S: Final = 0.5
SAMPLE_AFTER_KILL_S: Final = 0.2
"""Interval until all bundles are served again: this time is measured."""

PLACED_BOUND_S: Final = 60.0
FINISH_MARGIN_S: Final = 10.0


class Interrupt:
    """The first Ctrl-C or SIGTERM during the run ends it with a summary; any other one aborts."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.running = False
        self._task = asyncio.current_task()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.running and not self.requested.is_set():
            self.requested.set()
        elif self._task is not None:
            self._task.cancel()


class Run:
    def __init__(
        self,
        settings: DemoSettings,
        children: Children,
        cluster: Cluster,
        http: aiohttp.ClientSession,
        display: Display,
    ) -> None:
        self._settings = settings
        self._children = children
        self._cluster = cluster
        self._observer = Observer(http, cluster.members, cluster.control_secret)
        self._display = display
        self._names = {member.broker: member.name for member in cluster.members}
        self._kills: list[KillEffects] = []
        self._due = deque(sorted(settings.kills, key=lambda kill: kill.at_s))
        self._journal = Journal(monotonic())
        self._reports: deque[TrafficReport] = deque(maxlen=2)

    async def run(self, interrupt: Interrupt) -> Callable[[Evidence], Summary]:
        """Run to the end; the summary lacks only the evidence of the brokers' records."""
        settings = self._settings
        self._display.step(f"looking up {settings.topics} topics, which places every bundle")
        path = settings.data_dir / "traffic.json"
        TrafficSettings(
            sidecar_urls=tuple(member.sidecar_url for member in self._cluster.members),
            namespace=NAMESPACE,
            hash_name=HASH,
            **{key: getattr(settings, key) for key in ("bundles", "topics", "seed", "rate_per_s")},
        ).save(path)
        arguments = ("-m", "loadmanager.demo.traffic", str(path))
        pipe = asyncio.subprocess.PIPE
        traffic = await self._children.start("traffic", *arguments, stdout=pipe)
        reading = asyncio.create_task(self._read(traffic))
        try:
            await self._wait_until_placed(traffic)
            interrupt.running = True
            await self._observe(interrupt)
            seconds = monotonic() - self._journal.began_s
            await self._finish(traffic, reading)
        finally:
            reading.cancel()
        return lambda evidence: self._summary(seconds, evidence)

    async def _read(self, traffic: Child) -> None:
        stdout = traffic.process.stdout
        while stdout is not None and (line := await stdout.readline()):
            report = TrafficReport.from_line(line.decode())
            self._reports.append(report)
            for kill in self._kills:
                kill.add_report(report)

    async def _wait_until_placed(self, traffic: Child) -> None:
        reports = self._reports

        async def unplaced() -> str:
            if any(report.kind == "placed" for report in reports):
                return ""
            return reports[-1].last_lookup_error if reports else "nothing heard of it"

        await self._children.wait_until(
            unplaced, child=traffic, what="done with looking up", bound_s=PLACED_BOUND_S
        )
        self._journal = Journal(reports[-1].at_s)

    async def _observe(self, interrupt: Interrupt) -> None:
        ends_at_s = self._settings.ends_at_s
        while not interrupt.requested.is_set():
            began_s = monotonic()
            elapsed_s = began_s - self._journal.began_s
            if ends_at_s is not None and elapsed_s >= ends_at_s:
                break
            self._children.require_running()
            sample = await self._observer.sample()
            self._journal.add(sample)
            for kill in self._kills:
                kill.follow(sample, self._settings.bundles)
            await self._kill_due(sample, elapsed_s)
            state = RunState(
                names=self._names,
                elapsed_s=elapsed_s,
                journal=self._journal,
                reports=tuple(self._reports),
                kills=tuple(self._kills),
            )
            self._display.update(state)
            recovering = any(kill.reserved_s is None for kill in self._kills)
            every_s = SAMPLE_AFTER_KILL_S if recovering else SAMPLE_EVERY_S
            left_s = max(0.0, every_s - (monotonic() - began_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await interrupt.requested.wait()
        if self._due and not interrupt.requested.is_set():
            raise DemoFailed(f"--kill {self._due[0]}: there was no leader from then on to the end")

    async def _kill_due(self, sample: ClusterSample, elapsed_s: float) -> None:
        while self._due and self._due[0].at_s <= elapsed_s:
            member = self._target(self._due[0], sample)
            if member is None:
                return  # there is no leader now: the next sample may have one
            kill = self._due.popleft()
            if member.killed:
                self._display.step(f"--kill {kill}: {member.name} was killed before, as the leader")
                continue
            lost = frozenset(b for b, owner in sample.owners.items() if owner == member.broker)
            effects = KillEffects(member.name, member.broker, monotonic(), lost, sample.leader)
            await self._cluster.kill(member)
            self._kills.append(effects)

    def _target(self, kill: Kill, sample: ClusterSample) -> Member | None:
        """Return the broker to kill, None if that is the leader and there is none."""
        if kill.target != LEADER:
            return self._cluster.members[int(kill.target) - 1]
        leading = (member for member in self._cluster.alive if member.broker == sample.leader)
        return next(leading, None)

    async def _finish(self, traffic: Child, reading: "asyncio.Task[None]") -> None:
        """Let the generator finish the messages that are due, and read its final counts."""
        traffic.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(RETRY_BOUND_S + FINISH_MARGIN_S):
                await reading
        except TimeoutError:
            raise ChildFailed(traffic, "did not finish") from None
        if self._reports[-1].kind != "final":
            raise ChildFailed(traffic, "ended without its last counts")
        self._children.require_running()

    def _summary(self, seconds: float, evidence: Evidence) -> Summary:
        journal = self._journal
        leader = journal.samples[-1].leader if journal.samples else None
        taken_over = sum(move.reason == "taken over" for move in journal.moves)
        return Summary(
            leader=leader,
            leader_name=self._names.get(leader, "none") if leader else "none",
            bundles=self._settings.bundles,
            moves=len(journal.moves) - taken_over,
            taken_over=taken_over,
            imbalance_start=journal.imbalance_start,
            imbalance_end=journal.imbalance_end,
            traffic=self._reports[-1],
            evidence=evidence,
            seconds=seconds,
            settings=self._settings.to_json() | {"sidecar": self._cluster.sidecar_settings},
            kills=tuple(self._kills),
        )


async def run_demo(settings: DemoSettings, display: Display) -> Summary:
    """Run the demo from the start of all processes to their end, or raise `DemoFailed`."""
    interrupt = Interrupt()
    interrupt.listen()
    children = Children(settings.data_dir)
    try:
        async with aiohttp.ClientSession() as http:
            cluster = Cluster(settings, children, http)
            run = Run(settings, children, cluster, http, display)
            await cluster.start(display.step)
            display.step(*join_lines(settings, cluster))
            sum_up = await run.run(interrupt)
    finally:
        await children.stop()
    return sum_up(Evidence.of({m.record_path: m.dead_at_s for m in cluster.members}))

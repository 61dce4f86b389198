import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmanager.common.context import Context
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import InvalidName
from loadmanager.core.explaining import Decision, Explanation, Known, explain_broker, explain_bundle
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    parse_broker,
    parse_bundle,
)
from loadmanager.core.round_memory import shifted
from loadmanager.core.snapshot.agreement import agreed
from loadmanager.core.snapshot.document import RunningLoad, Snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot, in_force
from loadmanager.leader.cluster_view import Look
from loadmanager.leader.leadership import Leadership
from loadmanager.ports.leading import (
    Account,
    Assessment,
    DecisionFilter,
    ShadowList,
    SubjectUnknown,
    TaskFilter,
    TaskList,
)
from loadmanager.ports.lookup import Unavailable


class Explainer:
    """Answers questions about the leader's decisions.

    All methods raise `LeaderElsewhere` if another sidecar leads, and `Unavailable` while no sidecar
    does.
    """

    def __init__(self, context: Context, leading: Leadership, cluster: str) -> None:
        self._context = context
        self._leading = leading
        self._cluster = cluster

    async def snapshot(self) -> bytes:
        look = self._leading.require_term().look()
        if not look.view.brokers.names:
            raise Unavailable("no broker has a load report yet")
        snapshot = self._snapshot_of(look)
        # Encoding a large cluster takes seconds; the snapshot is immutable.
        return await asyncio.to_thread(_written, snapshot)

    def explain(self, subject: str) -> Account:
        """Raises `InvalidName`, or `SubjectUnknown`: the leader has no such bundle or broker."""
        leader_term = self._leading.require_term()
        look = leader_term.look()
        if subject in look.left_out:
            raise SubjectUnknown(
                f"{subject}: left out of all decisions until it reports something else, because "
                f"its report makes them fail: {look.left_out[BrokerId(subject)]}"
            )
        past = leader_term.decision_log
        known = Known(
            view=look.view, planner=look.steered, memory=look.memory, refusals=past.refusals
        )
        return Account(
            explanation=_explained(known, subject, self._with_tasks(past.about(subject))),
            tasks=self._tasks_of(subject),
            assessment=leader_term.optimality_watch.last,
            leader=self._context.identity.broker,
            epoch=look.epoch,
            at_ms=self._context.clock.wall_ms(),
            last_round=past.rounds,
            last_round_at_ms=past.last_round_at_ms,
            in_force=in_force(look.steered),
            balancing=look.balancing,
        )

    def assessment(self) -> Assessment | None:
        return self._leading.require_term().optimality_watch.last

    def shadows(self) -> ShadowList:
        leader_term = self._leading.require_term()
        return ShadowList(
            active=type(leader_term.look().planner.shedder).__name__,
            shadows=dict(leader_term.shadows.shadows),
        )

    def decisions(self, wish: DecisionFilter) -> Sequence[Decision]:
        return self._with_tasks(self._leading.require_term().decision_log.decisions(wish))

    def tasks(self, wish: TaskFilter) -> TaskList:
        controller = self._leading.require_term().tasks
        every = (*controller.tasks, *reversed(controller.ended))
        wanted = [task for task in every if wish.wants(task)]
        return TaskList(
            tasks=wanted[: wish.limit],
            found=len(wanted),
            leader=self._context.identity.broker,
            epoch=controller.tasks.epoch,
            at_ms=self._context.clock.wall_ms(),
            now_s=self._context.clock.monotonic_s(),
        )

    def _with_tasks(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        controller = self._leading.require_term().tasks
        states = {task.number: task.state for task in (*controller.ended, *controller.tasks)}
        return [replace(one, task_state=states.get(one.task)) for one in decisions]

    def _tasks_of(self, bundle: str) -> TaskList:
        listed = self.tasks(TaskFilter(limit=2, bundle=bundle))
        none_live = bool(listed.tasks) and listed.tasks[0].state.ended
        return replace(listed, tasks=listed.tasks[:1]) if none_live else listed

    def _snapshot_of(self, look: Look) -> Snapshot:
        view, cluster_state = look.view, self._context.cluster_state
        wall_ms = self._context.clock.wall_ms()
        names = view.brokers.names
        # The view and the cluster state differ only by reads since the view was made.
        reports = {name: cluster_state.loads.reports[name].report for name in names}
        owners = {
            bundle: holding.broker
            for bundle, holding in cluster_state.owners.items()
            if holding.broker in reports
        }
        in_flight = dict(view.moved)
        unowned = tuple(bundle for bundle in look.unowned if bundle not in owners)
        ages_s = np.maximum(view.age_s, 0.0).tolist()
        changed_ago_s = view.now_s - view.membership_changed_s
        return Snapshot(
            reports=reports,
            taken_at_ms=wall_ms,
            cluster=self._cluster,
            epoch=look.epoch,
            age_s=dict(zip(names, ages_s, strict=True)),
            averages=look.averages,
            running=_running(view),
            boundaries=self._boundaries([*owners, *in_flight]),
            owners=owners,
            in_flight=in_flight,
            unowned=unowned,
            policies=view.policies,
            memory=shifted(look.memory, wall_ms / 1000 - view.now_s),
            membership_changed_ago_s=changed_ago_s if np.isfinite(changed_ago_s) else None,
            departed_ago_s=tuple(view.now_s - left_s for left_s in view.departures_s),
            in_force=in_force(look.steered),
        )

    def _boundaries(self, bundles: Sequence[BundleId]) -> dict[Namespace, Boundaries]:
        namespaces = {namespace_of(one) for one in bundles if not belongs_to_a_broker(one)}
        found = {name: self._context.cluster_state.known_boundaries(name) for name in namespaces}
        known = {name: boundaries for name, boundaries in found.items() if boundaries is not None}
        return known if len(known) == len(found) else {}


def _written(snapshot: Snapshot) -> bytes:
    # During a split, owners and boundaries may briefly be inconsistent.
    return encode_snapshot(agreed("the live picture", snapshot, [], lenient=True))


def _running(view: ClusterView) -> dict[BrokerId, RunningLoad]:
    brokers = view.brokers
    rows = zip(brokers.names, brokers.load_ema.tolist(), brokers.bytes_ema.tolist(), strict=True)
    return {
        name: RunningLoad(load, bytes_per_s)
        for name, load, bytes_per_s in rows
        if np.isfinite(load) and np.isfinite(bytes_per_s)
    }


def _explained(known: Known, subject: str, decisions: Sequence[Decision]) -> Explanation:
    if "/" in subject:
        bundle = parse_bundle(subject)
        if not decisions and known.view.bundles.row(bundle) is None:
            raise SubjectUnknown(f"{bundle}: no broker reports it and nothing was decided about it")
        return explain_bundle(known, bundle, decisions)
    try:
        broker = parse_broker(subject)
    except InvalidName:
        expected = "a broker, host:port, or a bundle, tenant/namespace/0xLLLLLLLL_0xUUUUUUUU"
        raise InvalidName("subject", subject, expected) from None
    if broker not in known.view.brokers.index:
        raise SubjectUnknown(f"{broker}: no such broker is registered")
    return explain_broker(known, broker, decisions)

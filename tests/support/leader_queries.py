"""A leader's answers, canned: for tests of what carries them over HTTP and prints them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from loadmanager.admin.brokers import BalancingState
from loadmanager.admin.decisions import Account, Decisions, DecisionsQuery, decision_to_json
from loadmanager.admin.documents import (
    AssessmentDocument,
    ShadowsDocument,
    TasksDocument,
    TasksQuery,
    assessment_document,
    shadows_document,
    tasks_document,
)
from loadmanager.admin.overview import (
    MissingDocument,
    OverviewDocument,
    ResourceDocument,
    broker_document,
    gained,
    most_refused,
)
from loadmanager.core.balancing import Balancing
from loadmanager.core.bundle_task import AskedBy, TaskState, task_of
from loadmanager.core.errors import InvalidName
from loadmanager.core.explaining import Candidate, Decision, Explanation, Outcome
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.weighing import BundleCost, CostSource, Payback, PredictedUse, Weighing
from loadmanager.core.optimality import Optimality
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.rates import Rates
from loadmanager.core.shadow import Shadow, Shadowed
from loadmanager.core.snapshot.codec import in_force
from loadmanager.leader.decisions import Assessment
from loadmanager.leader.records import TaskGain
from loadmanager.ports.lookup import LeaderElsewhere, Missing, Unavailable

B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
BUNDLE = BundleId("t/ns/0x00000000_0x20000000")
AT_MS = 1_700_000_000_000
MOVED = Decision(
    at_ms=AT_MS,
    epoch=4,
    round=7,
    subject=BUNDLE,
    outcome=Outcome.MOVED,
    code=Cause.OVERLOADED,
    source=B2,
    target=B1,
    task=10,
    task_state=TaskState.SERVING,
)
LEFT_ALONE = Decision(
    at_ms=AT_MS + 60_000,
    epoch=4,
    round=8,
    subject=BUNDLE,
    outcome=Outcome.LEFT_ALONE,
    code=Reason.NO_IMPROVEMENT,
    detail="b1:8080 stands at 0.600, without it at 0.500",
)
LIVE = task_of(
    *(Move(BUNDLE, B1, B3, Cause.DRAINING), AskedBy.DRAIN),
    number=12,
    epoch=4,
    influence=Rates(500.0, 1000.0, 5e5, 2e6),
    state=TaskState.ORDERED,
    proposed_at_s=100.0,
    ordered_at_s=100.5,
    attempted_at_s=115.5,
    attempts=2,
)
ENDED = task_of(
    Move(BundleId("t/other/0x00000000_0xffffffff"), None, B1, Cause.UNOWNED),
    AskedBy.UNOWNED,
    number=11,
    epoch=4,
    state=TaskState.SUPERSEDED,
    proposed_at_s=40.0,
    ordered_at_s=40.25,
    attempted_at_s=40.25,
    ended_at_s=52.0,
    attempts=1,
    note="task 12 took its place",
)
ASSESSMENT = Assessment(
    Optimality(largest=0.6, bound=0.4, bound_within_policies=0.48, excess=0.125),
    round=8,
    at_ms=AT_MS + 60_000,
)
_SHADOWED = Shadowed(
    largest=0.5, gap=0.25, active_gap=0.5, moves=3, moved=0.125, active_moves=1, active_moved=0.0625
)
SHADOWS = shadows_document(
    "AvgShedder",
    {
        "JointShedder": Shadow(rounds=(_SHADOWED, replace(_SHADOWED, gap=0.0))),
        "ThresholdShedder": Shadow(),
    },
)
PAYBACK = Payback(resource="cpu", use=0.3, use_with=0.4, saving=2.5, price=0.125)
BUNDLE_STORY = Explanation(
    subject=BUNDLE,
    kind="bundle",
    owner=B1,
    target=None,
    msgs_per_s=1500.0,
    bytes_per_s=2.5e6,
    bundles=1,
    score=0.6,
    mean=0.45,
    highest=0.6,
    lowest=0.3,
    decisions=(LEFT_ALONE, MOVED),
    grounds=(
        Refusal(BUNDLE, Reason.RECENTLY_MOVED, "moved 60 s ago, rests 1740 s more"),
        Refusal("", Reason.ROUND_BUDGET),
    ),
    candidates=(Candidate(B3, 0.3, 0.41, None), Candidate(B2, 0.45, 0.61, Reason.NO_IMPROVEMENT)),
)
WEIGHED_STORY = replace(
    BUNDLE_STORY,
    candidates=(
        Candidate(B3, 0.3, 0.41, None, PAYBACK),
        Candidate(B2, 0.45, 0.61, Reason.REPORT_STALE),
    ),
    weighing=Weighing(
        level=0.4,
        lasting=0.75,
        uses=(
            PredictedUse(
                resource="cpu", reported=0.6, predicted=0.58, background=0.05, speed=1.25,
                noise=0.01,
            ),
        ),
        costs=(
            BundleCost(
                resource="cpu", usage=80.0, sd=4.0, source=CostSource.REPORTS,
                learned_fraction=0.96,
            ),
        ),
        paybacks={B3: PAYBACK},
    ),
)  # fmt: skip
BROKER_STORY = replace(
    BUNDLE_STORY,
    subject=B1,
    kind="broker",
    owner=None,
    bundles=12,
    decisions=(MOVED,),
    grounds=(Refusal(B1, Reason.WITHIN_THRESHOLD, "0.600, mean 0.450"),),
    candidates=(),
)
OVERVIEW = OverviewDocument(
    cluster="east",
    leader=B1,
    epoch=4,
    since_ms=AT_MS,
    at_ms=AT_MS + 90_000,
    measure="use",
    held="",
    balancing=BalancingState.model_validate(Balancing()),
    course=[(AT_MS, 0.25, 0.5, 0.4)],
    brokers=[broker_document(B1, cpu_fraction=0.5, bundles=3, msgs_per_s=10.0)],
    brokers_in_all=2,
    resources=[
        ResourceDocument(resource="cpu", mean_fraction=0.4, highest_fraction=0.5, broker=B1)
    ],
    bundles=3,
    unowned=0,
    missing=[MissingDocument(broker=B2, why="left, or crashed", since_ms=AT_MS)],
    tasks=gained(
        tasks_document(
            (LIVE, ENDED), TasksQuery(), leader=B1, epoch=4, at_ms=AT_MS + 90_000, now_s=190.0
        ),
        {LIVE.number: TaskGain(before=0.5, expected=0.4)},
    ),
    refusals=most_refused([Refusal("", Reason.ROUND_BUDGET, "5 of 5")] * 7),
    decisions=[decision_to_json(LEFT_ALONE), decision_to_json(MOVED)],
    actions=["pause"],
)


@dataclass
class FakeLeaderQueries(Decisions):
    """Canned answers. ``elsewhere`` is the leader's address, ``away`` that there is none."""

    stories: dict[str, Explanation] = field(
        default_factory=lambda: {BUNDLE: BUNDLE_STORY, B1: BROKER_STORY}
    )
    content: bytes = b'{"version":1}'
    elsewhere: str | None = None
    away: bool = False
    last_round: int = 8
    beside: ShadowsDocument = field(default_factory=lambda: SHADOWS)
    asked: list[str] = field(default_factory=list)

    async def snapshot(self) -> bytes:
        self._answer("snapshot")
        return self.content

    def account(self, subject: str) -> Account:
        self._answer(f"explain {subject}")
        if ":" not in subject and "/" not in subject:
            raise InvalidName("subject", subject, "a broker or a bundle")
        if subject not in self.stories:
            raise Missing(f"{subject}: no such broker is registered")
        return Account(
            explanation=self.stories[subject],
            tasks=self._listed(TasksQuery(limit=2, bundle=subject)).tasks,
            assessment=self._assessment(),
            leader=B1,
            epoch=4,
            at_ms=AT_MS + 61_000,
            last_round=self.last_round,
            last_round_at_ms=AT_MS + 60_000 if self.last_round else 0,
            in_force=in_force(Planner()),
            balancing=Balancing(),
        )

    def optimality(self) -> AssessmentDocument:
        self._answer("optimality")
        return AssessmentDocument(optimality=assessment_document(self._assessment()))

    def _assessment(self) -> Assessment | None:
        return ASSESSMENT if self.last_round else None

    def shadows(self) -> ShadowsDocument:
        self._answer("shadows")
        return self.beside

    def listed(self, wish: DecisionsQuery) -> Sequence[Decision]:
        self._answer(f"decisions {wish.limit}")
        return wish.of((LEFT_ALONE, MOVED))

    def tasks(self, query: TasksQuery) -> TasksDocument:
        self._answer(f"tasks {query.limit}")
        return self._listed(query)

    def _listed(self, wish: TasksQuery) -> TasksDocument:
        at_ms = AT_MS + 90_000
        return tasks_document((LIVE, ENDED), wish, leader=B1, epoch=4, at_ms=at_ms, now_s=190.0)

    def _answer(self, question: str) -> None:
        if self.away:
            raise Unavailable("no leader is at work", 2.0)
        if self.elsewhere is not None:
            raise LeaderElsewhere(self.elsewhere)
        self.asked.append(question)

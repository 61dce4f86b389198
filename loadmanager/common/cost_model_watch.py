"""The published cost model: publication, and the leader's watch."""

import structlog

from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.cost.document import CostDocument, decode_costs, pack_costs
from loadmanager.core.cost.learned import LearnedCost
from loadmanager.core.errors import MalformedContent
from loadmanager.core.planner import Planner
from loadmanager.ports.administration import Conflict, Missing, Unfit
from loadmanager.ports.coordination import Node, Watch

log = structlog.get_logger()

_READ_POLL_S = 1.0


class CostModelRequests:
    """The cost model that leaders use."""

    def __init__(self, context: Context, cluster: str) -> None:
        self._documents = Documents(context.coordination)
        self._cluster = cluster

    async def published(self) -> CostDocument:
        """Return the published document.

        Raises:
            Missing: there is none.
        """
        data = await self._documents.read(znodes.COST_MODEL)
        if not data:
            raise Missing("no cost model is published")
        with as_unavailable(znodes.COST_MODEL, "read"):
            return decode_costs(znodes.COST_MODEL, data)

    async def publish(self, document: CostDocument, *, force: bool) -> None:
        """Publish a document in place of the previous one.

        Raises:
            Conflict: it was learned from another cluster, unless ``force``.
            Unfit: it cannot be stored.
        """
        if document.cluster != self._cluster and not force:
            learned = f"the costs were learned from cluster {document.cluster!r}"
            raise Conflict(f"{learned}, this one is {self._cluster!r}; force publishes them anyway")
        try:
            content = pack_costs(document)
        except MalformedContent as error:
            raise Unfit(str(error)) from error
        await self._documents.change(znodes.COST_MODEL, lambda _before: content)
        log.info("cost_model.document.published", made_at_ms=document.made_at_ms)

    async def remove(self) -> None:
        """Remove the document; raises as `published`."""

        def edit(before: bytes | None) -> bytes | None:
            if before is None:
                raise Missing("no cost model is published")
            return None

        await self._documents.change(znodes.COST_MODEL, edit)
        log.info("cost_model.document.removed")


class CostModelWatch:
    """The cost model as observed by one leader during one term, and the planner that uses it.

    Unreadable content leaves the model unchanged, since it was not removed.
    """

    def __init__(self, context: Context, settings: RuntimeSettings) -> None:
        self._coordination = context.coordination
        self._metrics = context.metrics
        self._settings = settings
        self._watch: Watch | None = None
        self._read = self._unusable = False
        self._changes = Subscriptions()
        self._made: tuple[Planner, CostDocument | None, Planner] | None = None
        self.document: CostDocument | None = None

    @property
    def planner(self) -> Planner:
        """The currently configured planner, with the published costs."""
        configured, document = self._settings.now.planner, self.document
        if self._made is None or self._made[0] is not configured or self._made[1] is not document:
            self._made = (configured, document, configured.costing(document))
            self._show()
        return self._made[2]

    def _show(self) -> None:
        cost = self.planner.cost
        made_at_ms = cost.document.made_at_ms if isinstance(cost, LearnedCost) else None
        self._metrics.learning.cost_model_used(made_at_ms, unusable=self._unusable)

    def open(self) -> None:
        """Start watching."""
        self._watch = self._coordination.watch(znodes.COST_MODEL, self._on_node)

    def close(self) -> None:
        """Stop watching."""
        if self._watch:
            self._watch.close()
        self._metrics.learning.not_leading()

    async def read(self) -> None:
        """Wait until the published document, if any, has been read."""
        while not self._read:
            await self._changes.wait(_READ_POLL_S)

    def _on_node(self, node: Node | None) -> None:
        before, unusable = self.document, False
        try:
            self.document = decode_costs(znodes.COST_MODEL, node.data) if node else None
        except MalformedContent as error:
            log.warning("znode.content.refused", path=znodes.COST_MODEL, error=str(error))
            self._metrics.malformed("cost_model")
            unusable = True
        if self.document != before:
            made_at_ms = self.document and self.document.made_at_ms
            log.info("cost_model.document.loaded", made_at_ms=made_at_ms)
        self._unusable, self._read = unusable, True
        self._show()
        self._changes.notify()

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmanager.admin.bundles import UnloadedBundle
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.ports.lookup import Unavailable


@dataclass
class RecordedUnloads:
    refuses: bool = False
    asked: list[str] = field(default_factory=list)

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        assert destination is None
        self.asked.append(f"{namespace}/{range_text}")
        if self.refuses:
            raise Unavailable("no other broker can take it")
        return []

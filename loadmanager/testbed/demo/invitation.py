"""How to join a running demo: commands to paste into another terminal, and all addresses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from loadmanager.testbed.demo.cluster import NAMESPACE, Cluster
from loadmanager.testbed.demo.settings import DemoSettings


@dataclass(frozen=True, slots=True)
class Invitation:
    """What is printed once the cluster is up; ``commands`` are ready to paste."""

    commands: Sequence[str]
    addresses: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, settings: DemoSettings, cluster: Cluster) -> Self:
        """Return how to join this cluster.

        The sidecar that is asked is the last one that no ``--kill`` names.
        """
        named = {kill.target for kill in settings.kills}
        stays = [one for one in cluster.members if str(one.number) not in named]
        url = stays[-1].sidecar_url
        program = settings.program
        return cls(
            commands=(
                f"{program} top --url {url}",
                f"{program} decisions --url {url}",
                f"curl {url}/lookup/v2/topic/persistent/{NAMESPACE}/any-topic",
                f"curl {url}/admin/v2/namespaces/{NAMESPACE}/bundles",
            ),
            addresses=(
                *(
                    (one.name, f"http://{one.broker}   sidecar {one.sidecar_url}")
                    for one in cluster.members
                ),
                ("ZooKeeper", cluster.zookeeper),
                ("live page", f"{url}/"),
                ("REST paths", f"{url}/docs"),
                ("logs", str(settings.data_dir)),
            ),
        )

    def lines(self) -> Iterator[str]:
        """Yield all of it as lines of text."""
        yield "The cluster is up. Join it from another terminal:"
        yield from (f"  {command}" for command in self.commands)
        yield "Its addresses:"
        yield from (f"  {name:<11} {address}" for name, address in self.addresses)

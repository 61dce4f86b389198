from dataclasses import dataclass

from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls
from loadmanager.core.wire.records import LeaderRecord, LockRecord, encode_leader, encode_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The broker beside this sidecar, and this run of the sidecar.

    ``instance`` is generated at each start, so that two processes configured with the same
    broker id by mistake still differ. ``host`` and ``process_id`` are where it runs; an empty
    host is unknown.
    """

    broker: BrokerId
    urls: BrokerUrls
    sidecar_url: str
    instance: str
    started_at_ms: int
    version: str
    host: str = ""
    process_id: int = 0

    def lock_content(self, epoch: int) -> bytes:
        return encode_lock(LockRecord(urls=self.urls, broker=self.broker, epoch=epoch))

    def leader_content(self, epoch: int) -> bytes:
        return encode_leader(
            LeaderRecord(
                broker=self.broker,
                service_url=self.urls.http_url,
                sidecar_url=self.sidecar_url,
                instance=self.instance,
                epoch=epoch,
            )
        )

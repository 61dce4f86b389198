"""The mark of an agent: which sidecar commands a broker, for others that register it."""

from dataclasses import dataclass

from loadmanager.core.bounds import TIME_MS
from loadmanager.core.fields import parse_fields, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """One run of a sidecar, as it registered its broker.

    ``instance`` is drawn anew at each start. ``host`` and ``process_id`` say where it
    runs; an older version leaves everything empty. ``registered_at_ms`` is its wall
    clock. ``take_overs`` counts the agents in a row that registered soon after one
    another, each while the one before was still there.
    """

    instance: str = ""
    host: str = ""
    process_id: int = 0
    sidecar_url: str = ""
    registered_at_ms: int = 0
    take_overs: int = 0

    def __str__(self) -> str:
        """Say where to find it."""
        if not self.instance:
            return "a sidecar of an older version"
        where = f"on host {self.host or '(unknown)'}, process {self.process_id}"
        return f"the sidecar {self.sidecar_url} {where}, instance {self.instance}"


def encode_agent(agent: AgentRecord) -> bytes:
    """Return the content of ``/loadbalance/agents/{broker}/{session}``."""
    return to_json(
        {
            "instanceId": agent.instance,
            "host": agent.host,
            "processId": agent.process_id,
            "sidecarUrl": agent.sidecar_url,
            "registeredAtMs": agent.registered_at_ms,
            "takeOvers": agent.take_overs,
        }
    )


def decode_agent(where: str, data: bytes) -> AgentRecord:
    """Return what a mark says; an empty one is from an older version."""
    if not data:
        return AgentRecord()
    fields = parse_fields(where, data)
    return AgentRecord(
        instance=fields.text("instanceId", ""),
        host=fields.text("host", ""),
        process_id=fields.count("processId"),
        sidecar_url=fields.text("sidecarUrl", ""),
        registered_at_ms=fields.count("registeredAtMs", bound=TIME_MS),
        take_overs=fields.count("takeOvers"),
    )

"""The registration of one agent, as all its parts know it."""

from dataclasses import dataclass

from loadmanager.core.ids import BrokerId


@dataclass(frozen=True, slots=True)
class Membership:
    """This agent as registered: the session that holds its nodes, and its agent epoch.

    ``agent_epoch`` is the czxid of the registration, so it grows with every session and
    every restart of the agent; the broker obeys only the highest.
    """

    broker: BrokerId
    session_id: int
    agent_epoch: int

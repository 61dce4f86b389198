"""What may happen to sidecar processes and to their clocks."""

from typing import Final

from loadmanager.core.bounds import DAY_MS, MINUTE_MS
from loadmanager.testbed.faults.scene import Happening, Scene

_JUMPS_MS: Final = (
    *(-30 * DAY_MS, -DAY_MS, -MINUTE_MS, -2_000),
    *(2_000, MINUTE_MS, DAY_MS, 30 * DAY_MS),
)


async def freeze(scene: Scene) -> str:
    """Stop a sidecar's process."""
    agent = scene.any_agent()
    agent.coordination.freeze()
    return agent.url


async def freeze_leader(scene: Scene) -> str:
    """Stop the leader's process in the middle of its next write."""
    terms = scene.terms()
    if not terms:
        return ""
    agent, _ = scene.rng.choice(terms)
    agent.coordination.freeze_at_next_commit = scene.monitor.disturbed
    return agent.url


async def thaw(scene: Scene) -> str:
    """Let all stopped processes go on."""
    for agent in scene.cluster.living:
        agent.coordination.freeze_at_next_commit = None
        agent.coordination.thaw()
    return "all"


async def kill(scene: Scene) -> str:
    """End a sidecar at once."""
    agent = scene.any_agent()
    if not agent.alive:
        return ""
    await agent.kill()
    return agent.url


async def leave(scene: Scene) -> str:
    """Ask a sidecar to end."""
    agent = scene.any_agent()
    agent.stop.set()
    return agent.url


async def start(scene: Scene) -> str:
    """Start a sidecar wherever there is none."""
    living = {agent.host.name for agent in scene.cluster.living}
    alone = [host for host in scene.cluster.hosts if host.name not in living]
    return " ".join(scene.start(host).url for host in alone)


async def start_beside(scene: Scene) -> str:
    """Start a sidecar, beside any that runs."""
    return scene.start(scene.any_host()).url


async def jump_wall_clock(scene: Scene) -> str:
    """Set the clock of a host to another time, seconds or days away."""
    agent = scene.any_agent()
    jump_ms = scene.rng.choice(_JUMPS_MS)
    agent.clock.jump_ms += jump_ms
    return f"{agent.url} by {jump_ms} ms"


PROCESS_FAULTS: Final = (
    Happening("freeze a sidecar", 1, freeze, harms=True),
    Happening("freeze the leader in a write", 1, freeze_leader, harms=True),
    Happening("thaw all sidecars", 3, thaw),
    Happening("kill a sidecar", 1, kill, harms=True),
    Happening("stop a sidecar", 1, leave, harms=True),
    Happening("start missing sidecars", 5, start),
    Happening("start a second sidecar", 1, start_beside, harms=True),
    Happening("set a wall clock", 1, jump_wall_clock),
)

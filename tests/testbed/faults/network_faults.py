import asyncio
from typing import Final

from tests.testbed.faults.agent import SESSION_S, Agent
from tests.testbed.faults.scene import Action, Scene
from tests.testbed.memory.link import LossPlace
from tests.testbed.memory.server import Server

LONGEST_LAG_S: Final = 2.0
_CONNECTED_S: Final = 0.5
"""After this time, a client that changed servers has set all its watches again."""
_ELECTION_S: Final = (0.2, 2.0)
_NOTICES_LATER_S: Final = 4.0
"""Longest time after the next election until a deposed leader notices."""
_OUTAGES_S: Final = (0.2 * SESSION_S, 0.6 * SESSION_S, 1.5 * SESSION_S, 2.5 * SESSION_S)


async def suspend(scene: Scene) -> str:
    agent = scene.any_agent()
    agent.coordination.suspend()
    return agent.url


async def swallow(scene: Scene) -> str:
    """Drop all messages of a sidecar silently; its client does not notice."""
    agent = scene.any_agent()
    agent.coordination.swallow()
    return agent.url


async def cut_all_off(scene: Scene) -> str:
    """Disconnect all sidecars from a running service, so that sessions expire."""
    for agent in scene.cluster.living:
        agent.coordination.suspend()
    return "all"


async def reconnect(scene: Scene) -> str:
    for agent in scene.cluster.living:
        agent.coordination.reconnect()
    return "all"


async def delay_replies(scene: Scene) -> str:
    agent, lag_s = scene.any_agent(), scene.rng.uniform(0.05, LONGEST_LAG_S)
    agent.coordination.delay_replies(lag_s)
    return f"{agent.url} by {lag_s:.3f} s"


async def scatter_events(scene: Scene) -> str:
    """Delay events of a session by different times, so that they arrive out of order."""
    agent, lag_s = scene.any_agent(), scene.rng.uniform(0.05, LONGEST_LAG_S)
    agent.coordination.scatter_events(lag_s)
    return f"{agent.url} by up to {lag_s:.3f} s"


async def lag_server(scene: Scene) -> str:
    agents, lag_s = _some_agents(scene), scene.rng.uniform(0.05, LONGEST_LAG_S)
    server = scene.cluster.service.add_server()
    for agent in agents:
        agent.coordination.connect_to(server)
    scene.begin(_lag_after(scene, server, lag_s))
    return f"{' '.join(agent.url for agent in agents)} by {lag_s:.3f} s"


async def _lag_after(scene: Scene, server: Server, lag_s: float) -> None:
    await asyncio.sleep(_CONNECTED_S)
    if server in scene.cluster.service.others:
        scene.monitor.disturbed()
        scene.cluster.service.lag(server, lag_s)


async def depose_server(scene: Scene) -> str:
    """Isolate the leader of the ensemble; it still answers reads while the others elect another."""
    service = scene.cluster.service
    if service.down:
        return ""
    agents, server = _some_agents(scene), service.add_server()
    for agent in agents:
        agent.coordination.connect_to(server)
    election_s = scene.rng.uniform(*_ELECTION_S)
    notices_s = election_s + scene.rng.uniform(0.0, _NOTICES_LATER_S)
    scene.begin(_depose(scene, server, election_s, notices_s))
    return f"{' '.join(agent.url for agent in agents)} for {notices_s:.3f} s"


async def _depose(scene: Scene, server: Server, election_s: float, notices_s: float) -> None:
    service = scene.cluster.service
    await asyncio.sleep(_CONNECTED_S)
    if server not in service.others:
        return
    scene.monitor.disturbed()
    server.leave_ensemble()
    for agent in scene.cluster.living:
        if agent.coordination.is_on(server):
            service.mute(agent.coordination.session.session_id)
        elif not service.down:
            agent.coordination.lose_connection()
    service.go_down()
    await asyncio.sleep(election_s)
    end_outage(scene)
    await asyncio.sleep(notices_s - election_s)
    scene.monitor.disturbed()
    stop_server(scene, server)


def stop_server(scene: Scene, server: Server) -> None:
    """Stop a server if it runs; its clients connect to another one."""
    if server not in scene.cluster.service.others:
        return
    scene.cluster.service.remove_server(server)
    for agent in scene.cluster.agents:
        if agent.coordination.is_on(server):
            agent.coordination.lose_connection()
            agent.coordination.connect_again()


def _some_agents(scene: Scene) -> list[Agent]:
    agents = scene.cluster.living or scene.cluster.agents[-1:]
    return scene.rng.sample(agents, scene.rng.randint(1, len(agents)))


async def hurry(scene: Scene) -> str:
    scene.cluster.service.hurry()
    for agent in scene.cluster.agents:
        agent.coordination.delay_replies(0.0)
        agent.coordination.scatter_events(0.0)
    return "all"


async def lose_writes(scene: Scene) -> str:
    """Break the connection at some of the next writes, before or after they are applied."""
    losses, rng = scene.cluster.losses, scene.rng
    losses.place = rng.choice(list(LossPlace))
    count = rng.randrange(1, 4)
    losses.lost = frozenset(losses.writes + rng.randrange(10) for _ in range(count))
    return f"{losses.place} {sorted(losses.lost)}"


async def service_outage(scene: Scene) -> str:
    if scene.cluster.service.down:
        return ""
    lasts_s = scene.rng.choice(_OUTAGES_S)
    scene.cluster.service.go_down()
    for agent in scene.cluster.living:
        agent.coordination.lose_connection()
    scene.begin(_come_up_after(scene, lasts_s))
    return f"for {lasts_s:g} s"


def end_outage(scene: Scene) -> None:
    if scene.cluster.service.down:
        scene.cluster.service.come_up()
        for agent in scene.cluster.living:
            agent.coordination.connect_again()


def stop_servers(scene: Scene) -> None:
    for server in scene.cluster.service.others:
        stop_server(scene, server)


async def _come_up_after(scene: Scene, lasts_s: float) -> None:
    await asyncio.sleep(lasts_s)
    end_outage(scene)


NETWORK_FAULTS: Final = (
    Action("cut a sidecar off", 2, suspend, harms=True),
    Action("swallow a sidecar's messages", 1, swallow, harms=True),
    Action("cut all sidecars off", 1, cut_all_off, harms=True),
    Action("reconnect all sidecars", 7, reconnect),
    Action("delay a session", 1, delay_replies, harms=True),
    Action("scatter a session's events", 1, scatter_events, harms=True),
    Action("let a server of the ensemble lag", 1, lag_server, harms=True),
    Action("depose the ensemble's leader", 1, depose_server, harms=True),
    Action("let no message be late", 3, hurry),
    Action("lose writes", 3, lose_writes, harms=True),
    Action("take the service down", 1, service_outage, harms=True),
)

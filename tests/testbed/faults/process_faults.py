import math
from typing import Final

from loadmanager.core.bounds import COUNT, DAY_MS, MINUTE_MS, MOST_INT64, RATE, WINDOW_S
from loadmanager.ports.broker import BrokerError
from tests.testbed.faults.scene import Action, Scene
from tests.testbed.in_process import CommandName, Fault

_JUMPS_MS: Final = (
    *(-30 * DAY_MS, -DAY_MS, -MINUTE_MS, -2_000),
    *(2_000, MINUTE_MS, DAY_MS, 30 * DAY_MS),
)


async def freeze(scene: Scene) -> str:
    agent = scene.any_agent()
    agent.coordination.freeze()
    return agent.url


async def freeze_leader(scene: Scene) -> str:
    """Freeze the process of a leader during its next write."""
    terms = scene.terms()
    if not terms:
        return ""
    agent, _ = scene.rng.choice(terms)
    agent.coordination.freeze_at_next_commit = scene.monitor.disturbed
    return agent.url


async def thaw(scene: Scene) -> str:
    for agent in scene.cluster.living:
        agent.coordination.freeze_at_next_commit = None
        agent.coordination.thaw()
    return "all"


async def kill(scene: Scene) -> str:
    agent = scene.any_agent()
    if not agent.alive:
        return ""
    await agent.kill()
    return agent.url


async def leave(scene: Scene) -> str:
    agent = scene.any_agent()
    agent.stop.set()
    return agent.url


async def start(scene: Scene) -> str:
    living = {agent.host.name for agent in scene.cluster.living}
    alone = [host for host in scene.cluster.hosts if host.name not in living]
    return " ".join(scene.start(host).url for host in alone)


async def start_beside(scene: Scene) -> str:
    return scene.start(scene.any_host()).url


async def jump_wall_clock(scene: Scene) -> str:
    agent = scene.any_agent()
    jump_ms = scene.rng.choice(_JUMPS_MS)
    agent.clock.jump_ms += jump_ms
    return f"{agent.url} by {jump_ms} ms"


PROCESS_FAULTS: Final = (
    Action("freeze a sidecar", 1, freeze, harms=True),
    Action("freeze the leader in a write", 1, freeze_leader, harms=True),
    Action("thaw all sidecars", 3, thaw),
    Action("kill a sidecar", 1, kill, harms=True),
    Action("stop a sidecar", 1, leave, harms=True),
    Action("start missing sidecars", 5, start),
    Action("start a second sidecar", 1, start_beside, harms=True),
    Action("set a wall clock", 1, jump_wall_clock),
)


_FAULTS: Final = (Fault.LATE, Fault.LOST_ANSWER, Fault.REFUSED, Fault.GARBAGE)
_COMMANDS: Final[tuple[CommandName, ...]] = ("stats", "renew_lease", "load", "unload", "topics")


_COUNTS: Final = ("topics", "producerCount", "consumerCount")
_RATES: Final = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_NONSENSE: Final = (2**62, 10**30, -1, 4e307, 1e-300, math.nan, math.inf, "many", None, True)


async def kill_broker(scene: Scene) -> str:
    host = scene.any_host()
    host.kill_broker()
    return host.name


async def restart_broker(scene: Scene) -> str:
    host = scene.any_host()
    host.restart_broker()
    return host.name


async def freeze_broker(scene: Scene) -> str:
    host = scene.any_host()
    host.freeze_broker()
    return host.name


async def cut_broker(scene: Scene) -> str:
    host = scene.any_host()
    host.cut = True
    return host.name


async def spoil_commands(scene: Scene) -> str:
    host, rng = scene.any_host(), scene.rng
    fault, command = rng.choice(_FAULTS), rng.choice(_COMMANDS)
    host.broker.inject(fault, command, times=rng.randrange(1, 4))
    return f"{host.name} {fault} {command}"


async def exaggerate(scene: Scene) -> str:
    host = scene.any_host()
    host.figures = dict.fromkeys(_COUNTS, scene.rng.choice((0, COUNT.most)))
    host.figures |= dict.fromkeys(_RATES, scene.rng.choice((0.0, 5e-324, RATE.most)))
    host.window = scene.rng.choice((WINDOW_S.least, WINDOW_S.most))
    return f"{host.name} {host.figures} over {host.window} s"


async def tell_nonsense(scene: Scene) -> str:
    """Let a broker report a figure outside its bound, or a value that is no number."""
    host, rng = scene.any_host(), scene.rng
    host.figures = {rng.choice((*_COUNTS, *_RATES)): rng.choice(_NONSENSE)}
    host.window = rng.choice((None, None, *_NONSENSE))
    return f"{host.name} {host.figures} over {host.window} s"


async def claim_broker(scene: Scene) -> str:
    host, epoch = scene.any_host(), scene.rng.choice((2**62, MOST_INT64))
    try:
        await host.claim_broker(epoch)
    except BrokerError:
        return ""
    return f"{host.name} agent epoch {epoch}"


async def repair_brokers(scene: Scene) -> str:
    for host in scene.cluster.hosts:
        host.cut = False
        host.thaw_broker()
        host.broker.heal()
        host.figures, host.window = {}, None
        if host.dead or host.claimed:
            host.restart_broker()
    return "all"


BROKER_FAULTS: Final = (
    Action("kill a broker", 1, kill_broker, harms=True),
    Action("restart a broker", 1, restart_broker, harms=True),
    Action("freeze a broker", 1, freeze_broker, harms=True),
    Action("cut a broker off", 1, cut_broker, harms=True),
    Action("spoil commands", 2, spoil_commands, harms=True),
    Action("exaggerate a broker's figures", 1, exaggerate, harms=True),
    Action("let a broker report nonsense", 1, tell_nonsense, harms=True),
    Action("claim a broker", 1, claim_broker, harms=True),
    Action("repair all brokers", 5, repair_brokers),
)

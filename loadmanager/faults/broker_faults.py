"""What may happen to brokers, and to what is commanded of them."""

from typing import Final

from loadmanager.adapters.broker.in_process import CommandName, Fault
from loadmanager.faults.scene import Happening, Scene

_FAULTS: Final = (Fault.LATE, Fault.LOST_ANSWER, Fault.REFUSED, Fault.GARBAGE)
_COMMANDS: Final[tuple[CommandName, ...]] = ("stats", "renew_lease", "load", "unload", "topics")


async def kill_broker(scene: Scene) -> str:
    """End a broker at once."""
    host = scene.any_host()
    host.kill_broker()
    return host.name


async def restart_broker(scene: Scene) -> str:
    """Replace a broker process by another, whose clock runs at another rate."""
    host = scene.any_host()
    host.restart_broker()
    return host.name


async def freeze_broker(scene: Scene) -> str:
    """Stop a broker's process."""
    host = scene.any_host()
    host.freeze_broker()
    return host.name


async def cut_broker(scene: Scene) -> str:
    """Let a broker refuse connections of its sidecar."""
    host = scene.any_host()
    host.cut = True
    return host.name


async def spoil_commands(scene: Scene) -> str:
    """Let some commands to a broker fail."""
    host, rng = scene.any_host(), scene.rng
    fault, command = rng.choice(_FAULTS), rng.choice(_COMMANDS)
    host.broker.inject(fault, command, times=rng.randrange(1, 4))
    return f"{host.name} {fault} {command}"


async def mend_brokers(scene: Scene) -> str:
    """Let all brokers be as they should."""
    for host in scene.cluster.hosts:
        host.cut = False
        host.thaw_broker()
        host.broker.heal()
        if host.dead:
            host.restart_broker()
    return "all"


BROKER_FAULTS: Final = (
    Happening("kill a broker", 1, kill_broker, harms=True),
    Happening("restart a broker", 1, restart_broker, harms=True),
    Happening("freeze a broker", 1, freeze_broker, harms=True),
    Happening("cut a broker off", 1, cut_broker, harms=True),
    Happening("spoil commands", 2, spoil_commands, harms=True),
    Happening("mend all brokers", 5, mend_brokers),
)

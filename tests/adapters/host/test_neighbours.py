"""Several brokers on one host without containers of their own: real processes, real counters."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.adapters.host.processes import Listener, listener_on
from loadmanager.config.sections import HostSettings

LISTENING = """
import socket, sys, time
taken = socket.create_server(("127.0.0.1", 0))
print(taken.getsockname()[1], flush=True)
if sys.argv[1] == "busy":
    while True:
        pass
time.sleep(600)
"""


@contextmanager
def listening(kind: str) -> Iterator[tuple[int, int]]:
    """Yield process id and port of a process that listens, and is busy or idle."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING, kind], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def probe(**settings: object) -> PsutilHostProbe:
    return PsutilHostProbe(HostSettings.model_validate(settings))


def test_the_process_that_listens_on_a_port_is_found() -> None:
    with listening("idle") as (process_id, port):
        found = listener_on(port)
    assert found == Listener(process_id, found.name if found else "")
    assert listener_on(port) is None


def test_brokers_of_one_host_are_measured_each_by_itself() -> None:
    with ExitStack() as held:
        busy, idle = (held.enter_context(listening(kind)) for kind in ("busy", "idle"))
        probes = {own: probe() for own in (busy, idle)}
        whole = probe()
        whole.sample(broker_process_id=busy[0])
        time.sleep(0.5)
        alone = whole.sample(broker_process_id=busy[0])
        assert alone.cpu is not None
        assert alone.memory is not None
        cores, memory = alone.cpu.limit, alone.memory.limit

        def measured(own: tuple[int, int], other: tuple[int, int]) -> float:
            usage = probes[own].sample(broker_port=own[1], neighbour_ports={other[1]})
            assert usage.memory is not None
            assert usage.memory.limit == pytest.approx(memory / 2, rel=0.01)
            if usage.cpu is None:
                return 0.0
            assert usage.cpu.limit == pytest.approx(cores / 2, rel=0.01)
            return usage.cpu.usage

        measured(busy, idle)
        measured(idle, busy)
        time.sleep(1.0)
        assert measured(busy, idle) > 2.0  # of 100: others may use the machine, too
        assert measured(idle, busy) < 2.0


def test_a_broker_of_the_same_host_name_that_is_not_here_shares_nothing() -> None:
    with listening("idle") as (process_id, port), listening("idle") as (_, gone):
        pass
    made = probe()
    with listening("idle") as (process_id, port):
        usage = made.sample(broker_process_id=process_id, broker_port=port, neighbour_ports={gone})
    assert usage.memory is not None
    assert usage.memory.limit == probe(scope="auto").sample().memory.limit  # type: ignore[union-attr]


def test_what_is_configured_counts_before_an_equal_part() -> None:
    with listening("idle") as own, listening("idle") as other:
        made = probe(cores=3.0, memory_limit_mib=512.0)
        for _ in range(2):
            usage = made.sample(
                broker_process_id=own[0], broker_port=own[1], neighbour_ports={other[1]}
            )
        assert usage.cpu is not None
        assert usage.memory is not None
        assert (usage.cpu.limit, usage.memory.limit) == (300.0, 512.0)
        assert usage.bandwidth_in is None


def test_without_the_right_to_look_the_whole_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(kind: str) -> list[object]:
        del kind
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    usage = probe().sample(broker_port=1, neighbour_ports={2})
    assert usage.memory is not None

"""One process tree, on the real machine: real processes, real counters."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.adapters.host.processes import _CpuTime, _used_since
from loadmanager.config.sections import HostSettings

# Burns a core for as long as it is told, in lines: in itself, or in a child that it waits for.
WORKER = """
import subprocess, sys, time
BURN = (
    "import sys, time; end = time.process_time() + float(sys.argv[1])\\n"
    "while time.process_time() < end: pass"
)
for line in sys.stdin:
    where, seconds = line.split()
    if where == "child":
        subprocess.run([sys.executable, "-c", BURN, seconds], check=True)
    else:
        end = time.process_time() + float(seconds)
        while time.process_time() < end:
            pass
    print("done", flush=True)
"""


@contextmanager
def worker() -> Iterator[tuple[int, Callable[[str, float], None]]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def burn(where: str, seconds: float) -> None:
            orders.write(f"{where} {seconds}\n")
            orders.flush()
            assert answers.readline() == "done\n"

        yield process.pid, burn
        orders.close()


def process_probe(clock_s: list[float] | None = None, **settings: object) -> PsutilHostProbe:
    made = HostSettings.model_validate({"scope": "process", "cores": 2.0, **settings})
    if clock_s is None:
        return PsutilHostProbe(made)
    return PsutilHostProbe(made, lambda: clock_s[0])


@pytest.mark.parametrize("where", ["self", "child"])
def test_a_burnt_core_is_seen_even_in_a_child_that_ended_meanwhile(where: str) -> None:
    clock_s = [0.0]
    seen = process_probe(clock_s)
    with worker() as (process_id, burn):
        burn(where, 0.01)
        assert seen.sample(broker_process_id=process_id).cpu is None
        burn(where, 0.5)
        clock_s[0] += 1.0
        usage = seen.sample(broker_process_id=process_id)
    assert usage.cpu is not None
    # 0.5 s of one core in what the probe takes for a second; starting Python adds some, and
    # counted twice it would be a whole second.
    assert 48 <= usage.cpu.usage < 100
    assert usage.cpu.limit == 200.0
    assert usage.memory is not None
    assert 1 < usage.memory.usage < 1000
    assert (usage.bandwidth_in, usage.bandwidth_out) == (None, None)


def test_an_unknown_process_is_told_once() -> None:
    seen = process_probe()
    with worker() as (process_id, _):
        pass
    with capture_logs() as logs:
        usages = [seen.sample(broker_process_id=process_id) for _ in range(2)]
        usages += [seen.sample() for _ in range(2)]
    assert {(usage.cpu, usage.memory) for usage in usages} == {(None, None)}
    assert [log["reason"] for log in logs] == [
        f"process {process_id}: no such process",
        "broker: its process id is not known",
    ]


def test_a_restarted_broker_begins_with_no_rate() -> None:
    clock_s = [0.0]
    seen = process_probe(clock_s)
    got = []
    for _ in range(2):
        with worker() as (process_id, burn):
            burn("self", 0.05)
            for _ in range(2):
                clock_s[0] += 1
                got.append(seen.sample(broker_process_id=process_id).cpu is not None)
    assert got == [False, True, False, True]


STORM = """
import os, sys
print("done", flush=True)
while True:
    child = os.fork()
    if child == 0:
        sum(range(20000))
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_storm_of_short_lived_children_is_neither_missed_nor_counted_twice() -> None:
    with subprocess.Popen([sys.executable, "-c", STORM], stdout=subprocess.PIPE) as storm:
        assert storm.stdout is not None
        storm.stdout.readline()
        seen = process_probe(cores=1.0)
        assert seen.sample(broker_process_id=storm.pid).cpu is None
        usages = [seen.sample(broker_process_id=storm.pid) for _ in range(100)]
        # The kernel counts in steps of 10 ms, and on a busy machine the storm has to wait.
        while not any(usage.cpu and usage.cpu.usage for usage in usages):
            usages.append(seen.sample(broker_process_id=storm.pid))
        storm.kill()
    used_s = [u.cpu.usage * u.window_s / 100 for u in usages if u.cpu is not None]
    assert len(used_s) == len(usages)
    assert min(used_s) >= 0
    # Parent and child take turns: together never much more than one core.
    assert 0 < sum(used_s) <= 1.3 * sum(u.window_s for u in usages) + 0.05


@pytest.mark.parametrize(("with_reaped_s", "used_s"), [(49.0, 4.0), (6.0, 1.0)])
def test_a_child_is_counted_once_or_not_if_it_left_the_tree(
    with_reaped_s: float, used_s: float
) -> None:
    parent, child = (1, 0.0), (2, 0.0)
    before = {parent: _CpuTime(5.0, 5.0), child: _CpuTime(40.0, 40.0)}
    # The child used 3 s more, ended and was waited for, or left; the parent itself used 1 s.
    assert _used_since(before, {parent: _CpuTime(6.0, with_reaped_s)}) == pytest.approx(used_s)

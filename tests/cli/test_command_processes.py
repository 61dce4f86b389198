"""Processes of commands: what they spare, how they end, and how much memory they may take."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadmanager.cli import main
from loadmanager.cli.options import freeze_imported_objects
from loadmanager.cli.pipeline import free_memory_bytes
from loadmanager.reference_broker import server
from loadmanager.wiring import sidecar as wiring

GIB = 2**30


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a folder that stands for the kernel's: a host of 16 GiB of which 12 are free."""
    meminfo = {"MemTotal": 16, "MemFree": 10, "MemAvailable": 12}
    meminfo |= dict.fromkeys(("Buffers", "Cached", "Shmem", "Active", "Inactive"), 0)
    lines = [f"{name}: {gib * GIB // 1024} kB" for name, gib in meminfo.items()]
    put(tmp_path / "proc" / "meminfo", "\n".join(lines))
    put(tmp_path / "proc" / "self" / "cgroup", "0::/pod/container")
    put(tmp_path / "cgroup" / "cgroup.controllers", "memory")
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def limit(host: Path, group: str, *, limit_gib: int, used_gib: int, cached_gib: int = 0) -> None:
    """Give a control group a limit; of what it uses the kernel could take ``cached_gib`` back."""
    folder = host / "cgroup" / group
    put(folder / "memory.max", str(limit_gib * GIB))
    put(folder / "memory.current", str(used_gib * GIB))
    put(folder / "memory.stat", f"anon 1\ninactive_file {cached_gib * GIB}")


def free_gib(host: Path) -> float | None:
    free = free_memory_bytes(host / "cgroup", host / "proc")
    return None if free is None else free / GIB


def test_without_a_limit_it_is_what_the_host_has(host: Path) -> None:
    assert free_gib(host) == 12


def test_a_container_has_what_its_limit_leaves(host: Path) -> None:
    limit(host, "pod/container", limit_gib=4, used_gib=3, cached_gib=2)
    assert free_gib(host) == 3


def test_of_nested_limits_the_one_that_leaves_least_counts(host: Path) -> None:
    limit(host, "pod/container", limit_gib=4, used_gib=1)
    limit(host, "pod", limit_gib=6, used_gib=5)
    assert free_gib(host) == 1


def test_a_limit_above_the_host_changes_nothing(host: Path) -> None:
    limit(host, "pod/container", limit_gib=64, used_gib=1)
    assert free_gib(host) == 12


def test_it_is_unknown_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    assert free_gib(tmp_path) is None


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_exists_already_is_looked_through_no_more() -> None:
    freeze_imported_objects()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 1_000


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        (["agent", "--set", "broker.id=localhost:8080"], wiring, "run_sidecar"),
        (["broker", "--listen", "127.0.0.1:0"], server, "run_broker"),
    ],
)
def test_agent_and_broker_spare_it_before_they_begin(
    monkeypatch: pytest.MonkeyPatch, command: list[str], module: object, name: str
) -> None:
    spared: list[int] = []

    def begin(*_arguments: object) -> None:
        spared.append(gc.get_freeze_count())
        raise OSError("seen enough")

    monkeypatch.setattr(module, name, begin)
    assert CliRunner().invoke(main, command).exit_code == 1
    assert spared[0] > 10_000

"""What processes of commands spare."""

import gc
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from loadmanager.cli import main
from loadmanager.cli.options import freeze_imported_objects
from loadmanager.reference_broker import server
from loadmanager.wiring import sidecar as wiring


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

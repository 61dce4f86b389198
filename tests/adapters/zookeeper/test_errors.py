import pytest
from kazoo import exceptions as kazoo
from kazoo.protocol.states import ZnodeStat

from loadmanager.adapters.zookeeper.errors import rejection, translated
from loadmanager.ports.coordination import (
    CoordinationError,
    Disconnected,
    NodeExists,
    NodeMissing,
    NotEmpty,
    SessionLost,
    VersionMismatch,
)

STAT = ZnodeStat(*range(11))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kazoo.NoNodeError(), NodeMissing),
        (kazoo.NodeExistsError(), NodeExists),
        (kazoo.BadVersionError(), VersionMismatch),
        (kazoo.NotEmptyError(), NotEmpty),
        (kazoo.ConnectionLoss(), Disconnected),
        (kazoo.OperationTimeoutError(), Disconnected),
        (kazoo.SessionMovedError(), Disconnected),
        (kazoo.ConnectionClosedError(), Disconnected),
        (kazoo.AuthFailedError(), Disconnected),
        (kazoo.SessionExpiredError(), SessionLost),
        (kazoo.NoAuthError(), CoordinationError),
        (kazoo.QuotaExceededError(), CoordinationError),
    ],
)
def test_an_error_keeps_its_meaning_and_names_the_path(
    error: kazoo.KazooException, expected: type[CoordinationError]
) -> None:
    made = translated(error, "/a")
    assert type(made) is expected
    assert str(made).startswith("/a: ")


def test_results_without_an_error_are_no_rejection() -> None:
    assert rejection(["/a", True, STAT], ["/a", "/b", "/c"]) is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_operation_that_failed_is_found_among_those_it_took_along(index: int) -> None:
    results: list[object] = [kazoo.RolledBackError()] * index
    results.append(kazoo.BadVersionError())
    results += [kazoo.RuntimeInconsistency()] * (2 - index)
    rejected = rejection(results, ["/a", "/b", "/c"])
    assert rejected is not None
    assert rejected.index == index
    assert isinstance(rejected.cause, VersionMismatch)
    assert str(rejected.cause).startswith(("/a", "/b", "/c")[index])


def test_a_commit_with_no_culprit_is_rejected_all_the_same() -> None:
    rejected = rejection([kazoo.RuntimeInconsistency()] * 2, ["/a", "/b"])
    assert rejected is not None
    assert rejected.index == 0
    assert "RuntimeInconsistency" in str(rejected.cause)

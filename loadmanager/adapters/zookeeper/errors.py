from collections.abc import Sequence
from typing import Any, Final

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)

from loadmanager.ports.coordination import (
    CommitRejected,
    CoordinationError,
    Disconnected,
    NodeExists,
    NodeMissing,
    NotEmpty,
    SessionLost,
    VersionMismatch,
)

_UNKNOWN_OUTCOME = "no reply; it may or may not have been applied"

# The first match counts: ConnectionClosedError is a subclass of SessionExpiredError.
_MEANINGS: Final[tuple[tuple[type[KazooException], type[CoordinationError], str], ...]] = (
    (NoNodeError, NodeMissing, "no such node, or no parent to create it in"),
    (NodeExistsError, NodeExists, "exists already"),
    (BadVersionError, VersionMismatch, "has another version than expected"),
    (NotEmptyError, NotEmpty, "has children"),
    (ConnectionLoss, Disconnected, _UNKNOWN_OUTCOME),
    (OperationTimeoutError, Disconnected, _UNKNOWN_OUTCOME),
    (RequestTimeoutError, Disconnected, _UNKNOWN_OUTCOME),
    (SessionMovedError, Disconnected, _UNKNOWN_OUTCOME),
    # kazoo gave up on a client that is closing or cannot log in; its session may live on.
    (ConnectionClosedError, Disconnected, _UNKNOWN_OUTCOME),
    (AuthFailedError, Disconnected, _UNKNOWN_OUTCOME),
    (SessionExpiredError, SessionLost, "the session has expired"),
)


def translated(error: Exception, where: str) -> CoordinationError:
    for kazoo_class, port_class, text in _MEANINGS:
        if isinstance(error, kazoo_class):
            return port_class(f"{where}: {text}")
    if isinstance(error, KazooException):
        return CoordinationError(f"{where}: ZooKeeper answered {type(error).__name__}")
    return Disconnected(f"{where}: an answer that cannot be read: {error}")


def rejection(results: Sequence[Any], paths: Sequence[str]) -> CommitRejected | None:
    """Return why a commit failed, or None if its results contain no error.

    kazoo returns errors among the results instead of raising them. The failed operation has its
    own error; ZooKeeper marks those before it as rolled back and those after it as inconsistent.
    """
    errors = [(i, result) for i, result in enumerate(results) if isinstance(result, Exception)]
    if not errors:
        return None
    bystanders = (RolledBackError, RuntimeInconsistency)
    culprits = [(i, error) for i, error in errors if not isinstance(error, bystanders)]
    index, error = (culprits or errors)[0]
    return CommitRejected(index, translated(error, paths[index]))

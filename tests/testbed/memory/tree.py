"""The tree of nodes and what one transaction does to it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    CoordinationError,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SetData,
    Stat,
    VersionMismatch,
)
from loadmanager.ports.session import parent_of


@dataclass(frozen=True, slots=True)
class Znode:
    """A node at one moment; ``pzxid`` is the transaction that last changed its children."""

    node: Node
    children: frozenset[str] = frozenset()
    pzxid: int = 0


EMPTY_ROOT = Znode(Node(b"", Stat(version=0, czxid=0, mzxid=0, ephemeral_owner=0)))
Tree = Mapping[str, Znode]


@dataclass(slots=True)
class Draft:
    """A transaction under way: its changes on top of a tree that stays as it is.

    ``created``, ``deleted`` and ``changed`` are the paths touched, in that order, for
    the watches. Changes of a node and of its list of children are distinguished.
    """

    tree: Tree
    zxid: int
    session_id: int
    changes: dict[str, Znode | None] = field(default_factory=dict)
    touched: list[tuple[str, str]] = field(default_factory=list)

    def find(self, path: str) -> Znode:
        znode = self.changes[path] if path in self.changes else self.tree.get(path)
        if znode is None:
            raise NodeMissing(f"{path}: no such node")
        return znode

    def apply(self, operation: Operation) -> Stat | None:
        match operation:
            case Create():
                return self._create(operation)
            case SetData():
                return self._set(operation)
            case Delete():
                self._delete(operation)
            case Check():
                _check_version(operation.path, self.find(operation.path), operation.version)
        return None

    def apply_to(self, tree: dict[str, Znode]) -> None:
        for path, znode in self.changes.items():
            if znode is None:
                tree.pop(path, None)
            else:
                tree[path] = znode

    def _create(self, operation: Create) -> Stat:
        parent_path, name = parent_of(operation.path), operation.path.rpartition("/")[2]
        if operation.path == "/" or self._has(operation.path):
            raise NodeExists(f"{operation.path}: exists already")
        parent = self.find(parent_path)
        if parent.node.stat.ephemeral_owner:
            raise CoordinationError(f"{parent_path}: is ephemeral and cannot have children")
        owner = self.session_id if operation.ephemeral else 0
        stat = Stat(version=0, czxid=self.zxid, mzxid=self.zxid, ephemeral_owner=owner)
        self.changes[operation.path] = Znode(Node(operation.data, stat), pzxid=self.zxid)
        self.changes[parent_path] = replace(
            parent, children=parent.children | {name}, pzxid=self.zxid
        )
        self.touched += [("node", operation.path), ("children", parent_path)]
        return stat

    def _set(self, operation: SetData) -> Stat:
        znode = self.find(operation.path)
        _check_version(operation.path, znode, operation.version)
        stat = replace(znode.node.stat, version=znode.node.stat.version + 1, mzxid=self.zxid)
        self.changes[operation.path] = replace(znode, node=Node(operation.data, stat))
        self.touched.append(("node", operation.path))
        return stat

    def _delete(self, operation: Delete) -> None:
        znode = self.find(operation.path)
        _check_version(operation.path, znode, operation.version)
        if operation.path == "/":
            raise CoordinationError("/: the root cannot be deleted")
        if znode.children:
            raise NotEmpty(f"{operation.path}: has {len(znode.children)} children")
        parent_path, name = parent_of(operation.path), operation.path.rpartition("/")[2]
        self.changes[operation.path] = None
        parent = self.find(parent_path)
        self.changes[parent_path] = replace(
            parent, children=parent.children - {name}, pzxid=self.zxid
        )
        self.touched += [
            ("node", operation.path),
            ("children", operation.path),
            ("children", parent_path),
        ]

    def _has(self, path: str) -> bool:
        return (self.changes[path] if path in self.changes else self.tree.get(path)) is not None


def drafted(draft: Draft, operations: Sequence[Operation]) -> list[Stat | None]:
    """Apply all operations to the draft; raises CommitRejected."""
    stats = []
    for index, operation in enumerate(operations):
        try:
            stats.append(draft.apply(operation))
        except CoordinationError as cause:
            raise CommitRejected(index, cause) from cause
    return stats


def ephemerals_of(tree: Tree, session_id: int) -> Iterator[str]:
    """Yield the paths a session owns, in the order they were created in."""
    owned = (path for path, znode in tree.items() if znode.node.stat.ephemeral_owner == session_id)
    return iter(sorted(owned, key=lambda path: (tree[path].node.stat.czxid, path)))


def _check_version(path: str, znode: Znode, version: int) -> None:
    found = znode.node.stat.version
    if version not in {-1, found}:
        raise VersionMismatch(f"{path}: version {found}; expected {version}")

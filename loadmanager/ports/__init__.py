"""What the application needs from the world, as protocols. Adapters implement them.

Nothing here imports an adapter, and no adapter's library shows through: the
application runs the same on ZooKeeper and on the in-memory coordination, beside a
real broker and beside a fake one.
"""

from loadmanager.ports.administration import (
    Conflict,
    Missing,
    Unfit,
)
from loadmanager.ports.broker import (
    BrokerControl,
    BrokerError,
    BrokerRefused,
    BrokerState,
    BrokerStats,
    BrokerUnreachable,
    StaleAgent,
)
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Connection,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    VersionMismatch,
    Watch,
)
from loadmanager.ports.drains import BrokerUnknown, DrainService, DrainStatus
from loadmanager.ports.host import Clock, HostProbe
from loadmanager.ports.leading import Account, LeaderDesk, LeaderElsewhere, SubjectUnknown
from loadmanager.ports.lookup import (
    LeaderInfo,
    LeaderLine,
    LookupRefused,
    LookupService,
    NamespaceTaken,
    NamespaceUnknown,
    NotLeader,
    Owner,
    Readiness,
    Redirection,
    Unavailable,
)
from loadmanager.ports.splits import BundleUnknown, SplitRefused, SplitService
from loadmanager.ports.unloads import UnloadRefused, UnloadService

__all__ = [
    "Account",
    "BrokerControl",
    "BrokerError",
    "BrokerRefused",
    "BrokerState",
    "BrokerStats",
    "BrokerUnknown",
    "BrokerUnreachable",
    "BundleUnknown",
    "Check",
    "Clock",
    "CommitRejected",
    "Conflict",
    "Connection",
    "Coordination",
    "CoordinationError",
    "Create",
    "Delete",
    "Disconnected",
    "DrainService",
    "DrainStatus",
    "HostProbe",
    "LeaderDesk",
    "LeaderElsewhere",
    "LeaderInfo",
    "LeaderLine",
    "LookupRefused",
    "LookupService",
    "Missing",
    "NamespaceTaken",
    "NamespaceUnknown",
    "Node",
    "NodeExists",
    "NodeMissing",
    "NotEmpty",
    "NotLeader",
    "Operation",
    "Owner",
    "Readiness",
    "Redirection",
    "SessionLost",
    "SessionState",
    "SetData",
    "SplitRefused",
    "SplitService",
    "StaleAgent",
    "Stat",
    "SubjectUnknown",
    "Unavailable",
    "Unfit",
    "UnloadRefused",
    "UnloadService",
    "VersionMismatch",
    "Watch",
]

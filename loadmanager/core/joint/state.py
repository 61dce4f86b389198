from dataclasses import dataclass, field

from loadmanager.core.joint.ages import Ages
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.persistence import Persistence
from loadmanager.core.joint.restarts import Restarts


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class JointState:
    """``contradicted`` are brokers whose reports are above the level, unlike predictions."""

    learned: Learned
    persistence: Persistence = field(default_factory=Persistence)
    restarts: Restarts = field(default_factory=Restarts)
    ages: Ages = field(default_factory=Ages)
    contradicted: Ages = field(default_factory=Ages)

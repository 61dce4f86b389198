"""How far the cluster is from the best possible, in one line for people."""

from collections.abc import Mapping
from typing import Any


def optimality_line(found: Mapping[str, Any] | None) -> str:
    """Return the line for what the leader answered; None is for nothing known yet."""
    if found is None:
        return "fullest broker: not known yet"
    policies = ""
    if found["boundWithinPolicies"] > found["bound"]:
        policies = f", within policies {found['boundWithinPolicies']:.1%}"
    bound = f"no assignment below {found['bound']:.1%}{policies}"
    return f"fullest broker {found['largest']:.1%}; {bound}; gap {found['gap']:.0%}"

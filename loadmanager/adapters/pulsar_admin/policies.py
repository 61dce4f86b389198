"""Policies on the placement of namespaces, which Pulsar does not apply to given destinations."""

from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import AnswerRefused, NotPulsar, PulsarAdmin
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import Namespace
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.wire.policies import decode_isolation

NONE_FOR_S: Final = 60.0
"""Time until isolation policies are read again from a cluster that had none.

Without policies, brokers log an error with a stack trace at each such request.
"""

_NONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.NO_CONTENT})


async def read_isolation(admin: PulsarAdmin, url: str, cluster: str) -> Policies:
    _, policies = await read_isolation_text(admin, url, cluster)
    return policies


async def read_isolation_text(admin: PulsarAdmin, url: str, cluster: str) -> tuple[str, Policies]:
    """Return isolation policies as Pulsar's text, and parsed; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/namespaceIsolationPolicies"
    if monotonic() < admin.missing_until_s.get(where, 0.0):
        return "{}", NO_POLICIES
    try:
        answer = await admin.text(where)
    except AnswerRefused as error:
        if error.status in _NONE:
            admin.missing_until_s[where] = monotonic() + NONE_FOR_S
            return "{}", NO_POLICIES
        raise
    try:
        return answer, Policies(isolation=decode_isolation(where, answer.encode()))
    except MalformedContent as error:
        raise NotPulsar(str(error)) from None


async def read_failure_domains(
    admin: PulsarAdmin, url: str, cluster: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return failure domains by name, in Pulsar's form; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/failureDomains"
    found = await admin.json(where, absent=_NONE, instead={})
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise NotPulsar(f"{where}: expected failure domains by name, each a JSON object")
    return found


async def read_anti_affinity_group(admin: PulsarAdmin, url: str, namespace: Namespace) -> str:
    """Return the anti-affinity group of a namespace, "" for none; raises as `PulsarAdmin.text`."""
    try:
        answer = await admin.text(f"{url}/admin/v2/namespaces/{namespace}/antiAffinity")
    except AnswerRefused as error:
        if error.status in _NONE:
            return ""
        raise
    return answer.strip().strip('"')

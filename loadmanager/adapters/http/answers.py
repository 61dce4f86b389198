"""Lookup answers, rendered once per owner and found again by the request's first line.

Each remembered answer carries the version of the cluster state that it was made from, and is
reused only under that version. Under a newer one the owner is resolved again, which costs a hash
and two dictionary accesses, and the text is rendered again only if the owner has changed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.adapters.http.recent import Recent
from loadmanager.adapters.http.replies import SERVER_NAME, Refused
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.load import BrokerUrls
from loadmanager.ports.lookup import LookupService, Owner

# Answers to longer lines are not remembered: 65,536 of this length fit in about 40 MB.
_MAX_LINE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """The response that names ``owner``, ready to send.

    ``before_date`` and ``after_date`` are the whole response except for the value of its
    ``Date`` header; ``headers`` and ``body`` are its parts, for callers that frame it themselves.
    """

    owner: Owner
    headers: Mapping[str, str]
    body: bytes
    before_date: bytes
    after_date: bytes


@dataclass(slots=True)
class _Remembered:
    version: int
    topic: TopicName
    listener: str
    answer: Answer


class Answers:
    def __init__(self, lookup: LookupService, max_entries: int = 65_536) -> None:
        self._lookup = lookup
        self._by_line: Recent[bytes, _Remembered] = Recent(max_entries)
        self._by_bundle: Recent[tuple[BundleId, str], Answer] = Recent(max_entries)

    def known(self, line: bytes) -> Answer | None:
        entry = self._by_line.get(line)
        if entry is None:
            return None
        if entry.version != self._lookup.cluster_state_version:
            return self._renewed(line, entry)
        return entry.answer

    def of_topic(self, topic: TopicName, listener: str, line: bytes | None) -> Answer | None:
        """Return the answer for ``topic`` from the cluster state, None if no owner is known.

        ``line`` is the first line of the request if the answer depends only on it; the answer
        is then remembered under it. Raises `Refused`: the owner has no listener of that name.
        """
        version = self._lookup.cluster_state_version
        owner = self._lookup.owner_if_known(topic)
        if owner is None:
            return None
        answer = self.naming(owner, listener)
        if line is not None and len(line) <= _MAX_LINE_BYTES:
            self._by_line.put(line, _Remembered(version, topic, listener, answer))
        return answer

    def naming(self, owner: Owner, listener: str) -> Answer:
        """Return the answer that names ``owner``, from memory if it is the same owner."""
        key = (owner.bundle, listener)
        answer = self._by_bundle.get(key)
        if answer is None or (answer.owner is not owner and answer.owner != owner):
            answer = render(owner, listener)
            self._by_bundle.put(key, answer)
        return answer

    def _renewed(self, line: bytes, entry: _Remembered) -> Answer | None:
        version = self._lookup.cluster_state_version
        owner = self._lookup.owner_if_known(entry.topic)
        if owner is None or (entry.listener and entry.listener not in owner.listeners):
            self._by_line.drop(line)
            return None
        entry.answer = self.naming(owner, entry.listener)
        entry.version = version
        return entry.answer


def render(owner: Owner, listener: str) -> Answer:
    body = json.dumps(lookup_data(urls_through(owner, listener)), separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Loadmanager-Bundle": owner.bundle,
        "X-Loadmanager-Fencing-Token": str(owner.fencing_token),
        "X-Loadmanager-Epoch": str(owner.epoch),
        "Server": SERVER_NAME,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\n{lines}Content-Length: {len(body)}\r\nDate: "
    return Answer(owner, headers, body, head.encode(), b"\r\n\r\n" + body)


def lookup_data(urls: BrokerUrls) -> dict[str, str]:
    """Return Pulsar's ``LookupData``, with every field.

    An absent URL is an empty string: C++ clients crash on a missing key. ``nativeUrl`` and
    ``brokerUrlSsl`` are older names that some clients still read.
    """
    return {
        "brokerUrl": urls.broker_url,
        "brokerUrlTls": urls.broker_url_tls,
        "httpUrl": urls.http_url,
        "httpUrlTls": urls.http_url_tls,
        "nativeUrl": urls.broker_url,
        "brokerUrlSsl": "",
    }


def urls_through(owner: Owner, listener: str) -> BrokerUrls:
    """Return the owner's URLs for clients that requested a named listener.

    A listener's binary URLs replace the broker's; so do its HTTP URLs if it has any. Raises
    `Refused`: the owner has no listener of that name.
    """
    if not listener:
        return owner.urls
    named = owner.listeners.get(listener)
    if named is None:
        known = ", ".join(sorted(owner.listeners)) or "none"
        raise Refused(
            412, f"broker {owner.broker} has no listener {listener!r}; its listeners: {known}"
        )
    if named.http_url or named.http_url_tls:
        return named
    return BrokerUrls(
        http_url=owner.urls.http_url,
        http_url_tls=owner.urls.http_url_tls,
        broker_url=named.broker_url,
        broker_url_tls=named.broker_url_tls,
    )

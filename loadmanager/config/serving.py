from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from loadmanager.config.deployment import BrokerSettings, ClusterSettings
from loadmanager.config.errors import Contradiction
from loadmanager.config.forms import HttpUrl, Section


class OwnershipSettings(Section):
    """How a broker's right to serve ends when its sidecar is cut off."""

    dynamic = frozenset({"drain_deadline_s"})

    self_fence_fraction: float = Field(0.66, ge=0.1, le=0.9)
    """Share of the session timeout after which the broker of a sidecar without ZooKeeper stops
    serving, at most what [zookeeper] tick_s allows. The rest is the margin before another broker
    may begin: a larger share tolerates longer gaps, a smaller one slower clocks and longer
    pauses."""
    heartbeat_fraction: float = Field(0.15, ge=0.01, le=0.4)
    """Share of the session timeout between two renewals of the broker's lease. Each begins with a
    heartbeat: a transaction that changes nothing, one write for ZooKeeper. A smaller share detects
    a restarted broker sooner and tolerates slightly longer outages."""
    drain_deadline_s: float = Field(30, ge=0, le=3600)
    """How long a stopping sidecar waits while the leader moves its broker's bundles, a few at a
    time; the remaining ones are then released at once. Stop timeouts must be 30 s
    longer."""


class LookupSettings(Section):
    """How lookups are answered."""

    dynamic = frozenset({"wait_s", "max_concurrent", "retry_after_s"})

    mode: Literal["answer", "redirect"] = "answer"
    """answer: any sidecar answers for every bundle, and asks the leader if the bundle has no owner.
    redirect: it redirects the client to the leader, as Pulsar does."""
    wait_s: float = Field(5.0, ge=0, le=60)
    """How long a lookup waits for a bundle that is under way before it is answered 503."""
    max_concurrent: int = Field(50_000, ge=1, le=10_000_000)
    """Maximum number of waiting lookups; further ones are answered 503 at once."""
    retry_after_s: float = Field(1, ge=0.1, le=3600)
    """Seconds after which a client is to retry, in the Retry-After header of a 503."""


class PulsarSettings(Section):
    """How a real Pulsar broker is asked; only with [broker] kind = "pulsar"."""

    admin_url: HttpUrl = ""
    """Web service of the broker, as this sidecar reaches it; the same scheme is used for the other
    brokers. Empty: [broker] http_url."""
    token_file: str = ""
    """File with a token that Pulsar accepts, of a superuser; read at each request, so that it may
    be renewed. Empty: none is sent."""
    ca_file: str = ""
    """CA certificates for the brokers' certificates. Empty: those of the system."""
    certificate_file: str = ""
    """Client certificate. Empty: none."""
    key_file: str = ""
    """Private key of certificate_file."""
    oauth2_key_file: str = ""
    """In place of token_file: JSON file of OAuth2 client credentials, as Pulsar's clients read it.
    Empty: none."""
    oauth2_issuer_url: HttpUrl = ""
    """Issuer of tokens. Empty: issuer_url of oauth2_key_file."""
    oauth2_audience: str = ""
    """Audience that the issuer expects. Empty: none is sent."""
    oauth2_scope: str = ""
    """Scope that the issuer expects. Empty: none is sent."""


def pulsar_contradictions(
    broker: BrokerSettings, pulsar: PulsarSettings, cluster: ClusterSettings
) -> Iterator[Contradiction]:
    kind = "broker.kind"
    if broker.kind == "contract":
        for key in PulsarSettings.model_fields:
            if getattr(pulsar, key):
                expected = f'no value, because [broker] kind is "{broker.kind}" and not "pulsar"'
                yield Contradiction.of(f"pulsar.{key}", expected, kind)
        return
    for key in ("control_url", "control_secret_file"):
        if getattr(broker, key):
            expected = 'no value, because [broker] kind is "pulsar"; [pulsar] says how it is asked'
            yield Contradiction.of(f"broker.{key}", expected, kind)
    if pulsar.token_file and pulsar.oauth2_key_file:
        expected = "no value beside token_file"
        yield Contradiction.of("pulsar.oauth2_key_file", expected, "pulsar.token_file")
    if bool(pulsar.certificate_file) != bool(pulsar.key_file):
        key = "key_file" if pulsar.certificate_file else "certificate_file"
        expected = "a value: certificate_file and key_file belong together"
        yield Contradiction.of(f"pulsar.{key}", expected)
    if cluster.hash not in {None, "crc32"}:
        expected = '"crc32", or no value: Pulsar\'s brokers place topics by it'
        yield Contradiction.of("cluster.hash", expected, kind)

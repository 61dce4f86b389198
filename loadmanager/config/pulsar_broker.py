"""How a real Pulsar broker is asked, where the broker is one."""

from collections.abc import Iterator

from loadmanager.config.deployment import BrokerSettings, ClusterSettings
from loadmanager.config.forms import HttpUrl, Section


class PulsarSettings(Section):
    """How a real Pulsar broker is asked; only with [broker] kind = "pulsar"."""

    admin_url: HttpUrl = ""
    """Web service of the broker, as this sidecar reaches it; the others are asked with the same
    scheme. Empty: [broker] http_url."""
    token_file: str = ""
    """File with a token that Pulsar accepts, of a superuser; read at each request, so that it may
    be renewed. Empty: none is sent."""
    ca_file: str = ""
    """Certificates that sign the brokers'. Empty: those that the system trusts."""
    certificate_file: str = ""
    """A client certificate to show. Empty: none."""
    key_file: str = ""
    """Private key of certificate_file."""


def faults_of_pulsar(
    broker: BrokerSettings, pulsar: PulsarSettings, cluster: ClusterSettings
) -> Iterator[tuple[str, str, str, tuple[tuple[str, str], ...]]]:
    """Yield section and key, what was expected, and the keys it follows from."""
    kind = ("broker", "kind")
    if broker.kind == "contract":
        for key in PulsarSettings.model_fields:
            if getattr(pulsar, key):
                why = f'no value, because [broker] kind is "{broker.kind}" and not "pulsar"'
                yield "pulsar", key, why, (kind,)
        return
    for key in ("control_url", "control_secret_file"):
        if getattr(broker, key):
            why = 'no value, because [broker] kind is "pulsar"; [pulsar] says how it is asked'
            yield "broker", key, why, (kind,)
    if bool(pulsar.certificate_file) != bool(pulsar.key_file):
        key = "key_file" if pulsar.certificate_file else "certificate_file"
        yield "pulsar", key, "a value: certificate_file and key_file belong together", ()
    if cluster.hash not in {None, "crc32"}:
        why = '"crc32", or no value: Pulsar\'s brokers place topics by it'
        yield "cluster", "hash", why, (kind,)

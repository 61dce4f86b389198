"""TLS of the server, and of requests to other sidecars."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import structlog

from loadmanager.core.errors import LoadManagerError

log = structlog.get_logger()

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsFilesUnusable(LoadManagerError):
    """A certificate, key or list of authorities cannot be used for TLS."""


@dataclass(slots=True)
class TlsFiles:
    """The files of a server's TLS, read again when they change.

    Attributes:
        certificate: this server's certificate, with the intermediate ones.
        key: its private key.
        client_authorities: CA certificates for clients' certificates; "" requests none.
        clients: whether a client must show one.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None
    clients: Literal["none", "optional", "required"] = "none"
    _context: ssl.SSLContext | None = None
    _seen: tuple[float, ...] = field(default=())

    def context(self) -> ssl.SSLContext:
        """Return the context of the server; `refresh` updates the same one.

        Raises:
            TlsFilesUnusable: a file cannot be read or does not fit the others.
        """
        if self._context is None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.verify_mode = _VERIFY[self.clients]
            self._load(context)
            self._context, self._seen = context, self._changed_at()
        return self._context

    def refresh(self) -> bool:
        """Read the files again if they changed, for new connections.

        Returns whether they were read. An error in the files is logged, and the former content
        stays in use.
        """
        if self._context is None or self._changed_at() == self._seen:
            return False
        self._seen = self._changed_at()
        try:
            # First in a separate context: an invalid pair must not be half loaded.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self._context)
        except TlsFilesUnusable as error:
            log.warning("tls.files.refused", error=str(error))
            return False
        log.info("tls.files.loaded", certificate=str(self.certificate))
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # Without a passphrase here, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            files = f"{self.certificate} and {self.key}"
            raise TlsFilesUnusable(
                f"{files}: {_words(error)}; expected a certificate and its key in PEM, "
                "without a passphrase"
            ) from None
        if self.client_authorities is not None:
            _trust(context, self.client_authorities)

    def _changed_at(self) -> tuple[float, ...]:
        files = [self.certificate, self.key, self.client_authorities]
        return tuple(_changed_at(path) for path in files if path is not None)


@dataclass(slots=True)
class ClientTls:
    """TLS of requests to other sidecars, its files read again when they change.

    Attributes:
        authorities: CA certificates of the servers; None for those of the system.
        certificate, key: of the client, if both are given.

    Raises:
        TlsFilesUnusable: a file cannot be read or does not fit the others.
    """

    authorities: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    context: ssl.SSLContext = field(init=False)
    _seen: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the files."""
        self._seen = self._changed_at()
        self.context = client_context(self.authorities, self.certificate, self.key)

    def refresh(self) -> None:
        """Read the files again if they changed, for new connections.

        An error in the files is logged, and the former content stays in use.
        """
        if (now := self._changed_at()) == self._seen:
            return
        self._seen = now
        try:
            client_context(self.authorities, self.certificate, self.key)  # a trial first
            _fill(self.context, self.authorities, self.certificate, self.key)
        except TlsFilesUnusable as error:
            log.warning("tls.files.refused", error=str(error))

    def _changed_at(self) -> tuple[float, ...]:
        files = (self.authorities, self.certificate, self.key)
        return tuple(_changed_at(path) for path in files if path is not None)


def client_context(
    authorities: Path | None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return a context for requests to other servers.

    ``authorities`` are the CA certificates of the servers, None for those of the system. With
    ``certificate`` and ``key`` this client authenticates itself.

    Raises:
        TlsFilesUnusable: a file cannot be read or does not fit the others.
    """
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _fill(context, authorities, certificate, key)
    return context


def _fill(
    context: ssl.SSLContext, authorities: Path | None, certificate: Path | None, key: Path | None
) -> None:
    if authorities is not None:
        _trust(context, authorities)
    if certificate is not None and key is not None:
        TlsFiles(certificate, key)._load(context)  # noqa: SLF001 - the same file pair, the same words


def _trust(context: ssl.SSLContext, authorities: Path) -> None:
    try:
        context.load_verify_locations(authorities)
    except (OSError, ssl.SSLError) as error:
        raise TlsFilesUnusable(
            f"{authorities}: {_words(error)}; expected certificates in PEM"
        ) from None


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _words(error: OSError) -> str:
    return error.strerror or str(error)

import ssl
from pathlib import Path
from typing import Literal

import structlog

from loadmanager.core.errors import LoadManagerError

log = structlog.get_logger()


class TlsFilesUnusable(LoadManagerError):
    pass


class _Files:
    """The files of a TLS context, read again when they change.

    ``certificate`` and ``key`` authenticate this end of a connection, ``authorities`` are the CA
    certificates of the other end.
    """

    def __init__(
        self,
        purpose: ssl.Purpose,
        certificate: Path | None,
        key: Path | None,
        authorities: Path | None,
        verify: ssl.VerifyMode,
    ) -> None:
        self._purpose = purpose
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self._seen = self._changed_at()
        self.context = ssl.create_default_context(purpose)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = verify
        self._load(self.context)

    def refresh(self) -> bool:
        """Read the files again if they changed, for new connections.

        Returns whether they were read. An error in the files is logged, and the former content
        stays in use.
        """
        seen = self._changed_at()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            # First in a separate context: an invalid pair must not be half loaded.
            self._load(ssl.create_default_context(self._purpose))
            self._load(self.context)
        except TlsFilesUnusable as error:
            log.warning("tls.files.refused", error=str(error))
            return False
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        if self._authorities is not None:
            try:
                context.load_verify_locations(self._authorities)
            except OSError as error:
                raise TlsFilesUnusable(
                    f"{self._authorities}: {_words(error)}; expected certificates in PEM"
                ) from None
        if self._certificate is not None and self._key is not None:
            try:
                # Without a passphrase here, OpenSSL would prompt for one on the terminal.
                context.load_cert_chain(self._certificate, self._key, password="")
            except OSError as error:
                raise TlsFilesUnusable(
                    f"{self._certificate} and {self._key}: {_words(error)}; expected a "
                    "certificate and its key in PEM, without a passphrase"
                ) from None

    def _changed_at(self) -> tuple[float, ...]:
        files = (self._certificate, self._key, self._authorities)
        return tuple(_changed_at(path) for path in files if path is not None)


class TlsFiles(_Files):
    """The files of a server's TLS; ``clients`` is whether a client must show a certificate."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_authorities: Path | None = None,
        clients: Literal["none", "optional", "required"] = "none",
    ) -> None:
        verify = ssl.VerifyMode[f"CERT_{clients.upper()}"]
        super().__init__(ssl.Purpose.CLIENT_AUTH, certificate, key, client_authorities, verify)

    def refresh(self) -> bool:
        is_read = super().refresh()
        if is_read:
            log.info("tls.files.loaded", certificate=str(self._certificate))
        return is_read


class ClientTls(_Files):
    """The files of TLS for requests to other servers; without authorities those of the system."""

    def __init__(
        self, authorities: Path | None, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        super().__init__(ssl.Purpose.SERVER_AUTH, certificate, key, authorities, ssl.CERT_REQUIRED)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _words(error: OSError) -> str:
    return error.strerror or str(error)

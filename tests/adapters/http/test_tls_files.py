import asyncio
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs
from tls_files import Files

from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles, TlsFilesUnusable


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_files_that_did_not_change_are_not_read_again(files: Files) -> None:
    tls = TlsFiles(files.certificate, files.key)
    assert tls.context() is tls.context()
    assert not tls.refresh()


def test_a_new_certificate_is_taken_in_by_the_same_context(files: Files) -> None:
    tls = TlsFiles(files.certificate, files.key)
    before = tls.context()
    files.issue()
    _age(files.certificate)
    assert tls.refresh()
    assert tls.context() is before
    assert not tls.refresh()


def test_a_key_that_does_not_fit_leaves_the_former_pair_in_use(
    files: Files, tmp_path: Path
) -> None:
    tls = TlsFiles(files.certificate, files.key)
    tls.context()
    (tmp_path / "other").mkdir()
    files.key.write_bytes(Files(tmp_path / "other").key.read_bytes())
    _age(files.key)
    assert not tls.refresh()


async def _names_shown(server: ssl.SSLContext, client: ClientTls) -> str:
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def met(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subject = writer.get_extra_info("peercert")["subject"]
        shown.set_result(next(v for part in subject for k, v in part if k == "commonName"))
        writer.close()

    listening = await asyncio.start_server(met, "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client.context, server_hostname="localhost"
        )
        await reader.read()
        writer.close()
        return await shown


async def test_a_client_shows_its_new_certificate_without_a_restart(files: Files) -> None:
    tls = TlsFiles(files.certificate, files.key, files.authorities, "required")
    certificate, key = files.client("sidecar")
    client = ClientTls(files.authorities, certificate, key)
    assert await _names_shown(tls.context(), client) == "sidecar"
    renewed = [path.read_bytes() for path in files.client("renewed")]
    key.write_bytes(renewed[1])
    _age(key)
    with capture_logs() as logs:
        client.refresh()
    assert [one["event"] for one in logs] == ["tls.files.refused"]
    assert await _names_shown(tls.context(), client) == "sidecar"
    certificate.write_bytes(renewed[0])
    _age(certificate)
    client.refresh()
    assert await _names_shown(tls.context(), client) == "renewed"


def test_what_cannot_be_used_is_named(files: Files, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(TlsFilesUnusable, match=f"{missing} and {files.key}: No such file"):
        TlsFiles(missing, files.key).context()
    with pytest.raises(TlsFilesUnusable, match=f"{files.key}.*expected a certificate and its key"):
        TlsFiles(files.authorities, files.key).context()
    with pytest.raises(TlsFilesUnusable, match=f"{missing}.*expected certificates in PEM"):
        ClientTls(missing)
    with pytest.raises(TlsFilesUnusable, match=f"{files.key}.*expected certificates in PEM"):
        TlsFiles(files.certificate, files.key, files.key, "required").context()


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(files: Files) -> None:
    key = load_pem_private_key(files.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"passphrase")
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, locked))
    with pytest.raises(TlsFilesUnusable, match="without a passphrase"):
        TlsFiles(files.certificate, files.key).context()


def test_old_versions_of_tls_are_not_spoken(files: Files) -> None:
    for context in (TlsFiles(files.certificate, files.key).context(), ClientTls(None).context):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def _age(path: Path) -> None:
    """Let the file look changed, however coarse the clock of the file system is."""
    stat = path.stat()

    os.utime(path, (stat.st_atime, stat.st_mtime + 10))

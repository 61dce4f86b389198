"""What commands say where a sidecar wants a token, and where they would show one to nobody."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from tls_files import Files

from loadmanager.cli import main


class Server:
    def __init__(
        self, status: int, location: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self.tokens: list[str] = []
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.tokens.append(self.headers.get("Authorization", ""))
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def unsafe() -> Iterator[Server]:
    server = Server(200)
    yield server
    server.close()


def test_a_refusal_for_want_of_a_token_says_how_to_get_one() -> None:
    server = Server(401)
    try:
        result = CliRunner().invoke(main, ["leader", "--url", server.url])
    finally:
        server.close()
    assert result.exit_code == 1
    assert "loadmanager token --right" in result.stderr
    assert "LOADMANAGER_TOKEN_FILE" in result.stderr


@pytest.mark.parametrize("command", [["leader"], ["pause"]])
def test_a_token_is_not_taken_from_https_to_http(
    command: list[str], unsafe: Server, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    (tmp_path / "token").write_text("a.b.c")
    safe = Server(307, unsafe.url, context)
    try:
        result = CliRunner().invoke(
            main,
            [
                *command,
                *("--url", safe.url, "--ca-file", str(files.authorities)),
                *("--token-file", str(tmp_path / "token")),
            ],
        )
    finally:
        safe.close()
    assert result.exit_code == 1
    assert "which has no TLS" in result.stderr
    assert (safe.tokens, unsafe.tokens) == (["Bearer a.b.c"], [])

"""Whom commands ask and as whom: options, the environment, profiles; and who sees no token."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tls_files import Files

from loadmanager.cli import main

LEADER = b'{"brokerId": "b1:8080", "serviceUrl": "http://b1:8080"}'


class Server:
    def __init__(
        self, status: int = 200, location: str = "", context: ssl.SSLContext | None = None
    ) -> None:
        self.tokens: list[str] = []
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.tokens.append(self.headers.get("Authorization", ""))
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", str(len(LEADER)))
                self.end_headers()
                self.wfile.write(LEADER)

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

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
def asked() -> Iterator[Server]:
    server = Server()
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
def test_no_token_goes_on_to_http(command: list[str], asked: Server, tmp_path: Path) -> None:
    files = Files(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    (tmp_path / "token").write_text("a.b.c")
    safe = Server(307, asked.url, context)
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
    assert (safe.tokens, asked.tokens) == (["Bearer a.b.c"], [])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("URL", "PROFILE", "TOKEN_FILE", "CA_FILE"):
        monkeypatch.delenv(f"LOADMANAGER_{name}", raising=False)
    (tmp_path / "loadmanager").mkdir()
    return tmp_path / "loadmanager"


def leader(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["leader", *arguments], env=environ)


def test_the_default_profile_says_whom_to_ask_and_as_whom(asked: Server, home: Path) -> None:
    (home / "token").write_text("abc.def.ghi\n")
    (home / "profiles.toml").write_text(
        f'[default]\nurl = "{asked.url}"\ntoken_file = "{home / "token"}"\n'
    )
    assert leader().exit_code == 0
    assert asked.tokens == ["Bearer abc.def.ghi"]


def test_another_profile_is_asked_for_by_name(asked: Server, home: Path) -> None:
    (home / "profiles.toml").write_text(
        f'[default]\nurl = "http://127.0.0.1:1"\n[test]\nurl = "{asked.url}"\n'
    )
    assert leader("--profile", "test").exit_code == 0
    assert leader(LOADMANAGER_PROFILE="test").exit_code == 0
    assert leader().exit_code == 1


def test_an_address_given_by_hand_takes_nothing_from_profiles(asked: Server, home: Path) -> None:
    (home / "token").write_text("abc")
    (home / "profiles.toml").write_text(
        f'[default]\nurl = "http://127.0.0.1:1"\ntoken_file = "{home / "token"}"\n'
    )
    assert leader("--url", asked.url).exit_code == 0
    assert leader(LOADMANAGER_URL=asked.url).exit_code == 0
    assert asked.tokens == ["", ""]


def test_a_token_can_stand_in_a_file_of_its_own(asked: Server, home: Path) -> None:
    (home / "token").write_text("abc")
    assert leader("--url", asked.url, "--token-file", str(home / "token")).exit_code == 0
    assert asked.tokens == ["Bearer abc"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[test]\nurl = 'http://x:1'", "no profile 'missing'; it has test"),
        ("missing = 3", "missing is no table; expected texts under url, token_file"),
        ("[missing]\nurl = 3", "[missing] url = 3; expected texts under url, token_file"),
        ("[missing]\nuri = 'x'", "[missing] uri = 'x'; expected texts under url, token_file"),
        ("[missing", "expected TOML with a table for each profile"),
        ("[missing]\nurl = 'nowhere'", "'nowhere'; expected http://host:port"),
        ("[missing]\ntoken_file = '/nowhere'", "/nowhere: No such file or directory; expected"),
        (
            "[missing]\nurl = 'https://x:1'\nca_file = '/nowhere'",
            "/nowhere: No such file or directory; expected certificates in PEM",
        ),
    ],
)
def test_a_profile_without_use_is_told_with_its_place(content: str, told: str, home: Path) -> None:
    (home / "profiles.toml").write_text(content)
    result = leader("--profile", "missing")
    assert result.exit_code == 2
    assert told in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("content", ["", "abc def", "abc\ndef", "abc\u2603", "abc\x7f"])
def test_a_file_that_holds_no_token_is_named_and_not_shown(content: str, home: Path) -> None:
    (home / "token").write_text(content, encoding="utf-8")
    result = leader("--url", "http://127.0.0.1:1", "--token-file", str(home / "token"))
    assert result.exit_code == 2
    assert "holds no token" in result.stderr
    assert "abc" not in result.output


def test_a_token_is_never_shown(home: Path) -> None:
    (home / "token").write_text("abc.def.ghi")
    result = leader("--url", "http://127.0.0.1:1", "--token-file", str(home / "token"))
    assert (result.exit_code, "abc" in result.output) == (1, False)

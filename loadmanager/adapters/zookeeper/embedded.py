import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import structlog

from loadmanager.config import java
from loadmanager.core.errors import LoadManagerError

log = structlog.get_logger()

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
LONGEST_SESSION_MS: Final = 120_000
WITH_PARENT: Final = Path(__file__).with_name("parent_death.py")
_POLL_INTERVAL_S: Final = 0.05
_ANSWER_TIMEOUT_S: Final = 2.0
_LOG_TAIL_LINES: Final = 15
_FREE_PORT_ATTEMPTS: Final = 3


HOW_TO_GET_IT: Final = "install Java 17 or newer, or: pip install 'loadmanager[demo]'"

_JARS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-[0-9]*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-buffer-*.jar",
    "netty-codec-base-*.jar",
    "netty-common-*.jar",
    "netty-handler-*.jar",
    "netty-resolver-*.jar",
    "netty-transport-*.jar",
)
"""The jars of PySpark that the server needs."""


class EmbeddedZooKeeperError(LoadManagerError):
    """The embedded ZooKeeper cannot run here; the message says what to do."""


def find_java() -> Path:
    """Raises `EmbeddedZooKeeperError`: no Java is installed, or none of them runs."""
    try:
        return java.find_java(HOW_TO_GET_IT)
    except java.NoJava as error:
        raise EmbeddedZooKeeperError(str(error)) from None


def zookeeper_class_path() -> str:
    """Raises `EmbeddedZooKeeperError`: PySpark is not installed, or does not contain ZooKeeper."""
    # Located, not imported: importing PySpark takes a second.
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise EmbeddedZooKeeperError(
            "ZooKeeper's jars come with PySpark, which is not installed; "
            "pip install 'loadmanager[demo]'"
        )
    folder = Path(package.origin).parent / "jars"
    missing = [pattern for pattern in _JARS[:2] if not any(folder.glob(pattern))]
    if missing:
        raise EmbeddedZooKeeperError(
            f"{folder}: no {' and no '.join(missing)}; pip install --force-reinstall pyspark"
        )
    jars = [jar for pattern in _JARS for jar in sorted(folder.glob(pattern))]
    return os.pathsep.join(str(jar) for jar in jars)


class EmbeddedZooKeeper:
    """One standalone ZooKeeper server, which ends with this process, even if that is killed.

    Port 0 takes a free one. ``data_dir`` is kept; None is a temporary folder, which is removed at
    the end, and writes are then not synced to disk, which is much faster. The shortest session
    timeout is two ticks, and an expiry is noticed up to one tick late.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | None = None,
        tick_ms: int = 2000,
        config: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._port = port
        self._data_dir = data_dir
        self._tick_ms = tick_ms
        self._config = dict(config or {})
        self._jvm_options = tuple(jvm_options)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` for clients; the port is known once it has started."""
        return f"{self._host}:{self._port}"

    @property
    def pid(self) -> int:
        """Raises `EmbeddedZooKeeperError`: it is not running."""
        return self._running().pid

    @property
    def log_file(self) -> Path:
        """The output of the server; `stop` removes it together with a temporary folder."""
        return self._home() / "zookeeper.log"

    def start(self) -> None:
        """Start the server and return when it answers.

        Raises `EmbeddedZooKeeperError`: Java or ZooKeeper is not installed, the port is in use, or
        the server ended or did not answer; the message says which.
        """
        if self._process is not None:
            raise EmbeddedZooKeeperError(f"a server runs on {self.address} already")
        java, class_path = find_java(), zookeeper_class_path()
        for attempt in range(1, _FREE_PORT_ATTEMPTS + 1):
            self._port = self._wanted_port or _free_port(self._host)
            _require_free(self._host, self._port)
            try:
                self._start_once(java, class_path)
            except EmbeddedZooKeeperError as error:
                # Another process may have taken the free port before the server did.
                taken = "Address already in use" in str(error)
                if not taken or self._wanted_port or attempt == _FREE_PORT_ATTEMPTS:
                    raise
            else:
                log.info("zookeeper.server.started", address=self.address, pid=self.pid)
                return

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                log.warning("zookeeper.server.killed", address=self.address, pid=process.pid)
                process.kill()
                process.wait()
        if self._folder is not None and self._data_dir is None:
            shutil.rmtree(self._folder)
        self._folder = None

    def exit_code(self) -> int | None:
        return self._running().poll()

    def log_tail(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            lines = self.log_file.read_text(errors="replace").splitlines()
            return "\n".join(lines[-_LOG_TAIL_LINES:])
        return "(it wrote no log)"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_once(self, java: Path, class_path: str) -> None:
        try:
            self._process = self._launched(java, class_path)
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def _launched(self, java: Path, class_path: str) -> subprocess.Popen[bytes]:
        if self._data_dir is not None:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._folder = self._data_dir
        else:
            self._folder = Path(tempfile.mkdtemp(prefix="loadmanager-zookeeper-"))
        settings_file = self._folder / "zoo.cfg"
        settings = self._settings(self._folder)
        settings_file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command: tuple[str | Path, ...] = (
            # Started through a program that ends it with this process, even if that is killed.
            *(sys.executable, "-I", "-S", WITH_PARENT, str(os.getpid())),
            java,
            # ZooKeeper keeps the last 500 transactions twice, each of up to a megabyte.
            "-Xmx1024m",
            # A small heap and a short life: a fast start matters more than peak speed.
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dlog4j2.level=INFO",
            *self._jvm_options,
            "-classpath",
            class_path,
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            settings_file,
        )
        with self.log_file.open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - no shell, and all parts are our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for this process only, which then stops the server.
                start_new_session=True,
            )

    def _settings(self, folder: Path) -> dict[str, str]:
        lasting = self._data_dir is not None
        return {
            "tickTime": str(self._tick_ms),
            "maxSessionTimeout": str(max(20 * self._tick_ms, LONGEST_SESSION_MS)),
            "dataDir": str(folder / "data"),
            "clientPort": str(self._port),
            "clientPortAddress": self._host,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr,conf,cons,mntr",
            "preAllocSize": "4096" if lasting else "1024",
            "forceSync": "yes" if lasting else "no",
            **self._config,
        }

    def _wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        # The folder in the answer shows that this server answers, and not another one.
        expected = f"dataDir={self._home() / 'data'}"
        while True:
            code = self.exit_code()
            if code is not None:
                raise EmbeddedZooKeeperError(
                    f"ZooKeeper on {self.address} died at its start with exit code {code}; "
                    f"its log ends:\n{self.log_tail()}"
                )
            if expected in four_letter_word(self._host, self._port, "conf"):
                return
            if time.monotonic() > deadline_s:
                raise EmbeddedZooKeeperError(
                    f"ZooKeeper on {self.address} did not answer within {START_TIMEOUT_S:g} s; "
                    f"its log ends:\n{self.log_tail()}"
                )
            time.sleep(_POLL_INTERVAL_S)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EmbeddedZooKeeperError("the server is not running; expected start() before")
        return self._process

    def _home(self) -> Path:
        if self._folder is None:
            raise EmbeddedZooKeeperError("the server has no folder; expected start() before")
        return self._folder


def four_letter_word(host: str, port: int, word: str) -> str:
    """Return a server's answer to one of ZooKeeper's four-letter words, "" for none."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), _ANSWER_TIMEOUT_S) as connection,
    ):
        connection.sendall(word.encode())
        while part := connection.recv(65536):
            answer += part
    return answer.decode(errors="replace")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        # As Java does: a connection in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EmbeddedZooKeeperError(
                f"ZooKeeper cannot listen on {host}:{port}: {error.strerror}; "
                "expected a free port (0 finds one)"
            ) from error

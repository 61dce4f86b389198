"""Java processes of a real Pulsar cluster, and the jars they run.

Jars come from Maven's public repository, once for each version, into the user's cache folder.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import Any, Final
from urllib.request import urlopen

import psutil
from secured_pulsar import Secured
from zookeeper_servers import mortal

from loadmanager.config.java import NoJava, find_java

POM: Final = Path(__file__).parents[1] / "real_pulsar" / "pom.xml"
READY_S: Final = 180.0
OLDEST_JAVA: Final = 17
_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class NoPulsar(Exception):
    """This machine cannot run Pulsar; the message says what is missing and how to get it."""


def jars_of(version: str) -> Path:
    """Return the folder with all jars of a version, fetched if they are not there yet.

    Raises:
        NoPulsar: Maven or a fitting Java is missing, or the jars cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "loadmanager-tests" / f"pulsar-{version}"
    if (folder / "complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise NoPulsar("needs Maven: apt-get install maven, or brew install maven")
    java()
    fetch = ["mvn", "-q", "-B", "-f", str(POM), _GOAL, "-DincludeScope=runtime"]
    fetch += [f"-Dpulsar.version={version}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False, cwd=POM.parent)
    if done.returncode != 0:
        raise NoPulsar(f"Pulsar {version} cannot be fetched with Maven: {done.stdout[-2000:]}")
    (folder / "complete").touch()
    return folder


def java() -> Path:
    """Return a Java that runs Pulsar.

    Raises:
        NoPulsar: there is none.
    """

    def unfit(candidate: Path) -> str | None:
        # A runtime that was cut down to what ZooKeeper needs has not all of Pulsar's modules.
        said = subprocess.run(
            [candidate, "--list-modules"], capture_output=True, text=True, check=False
        ).stdout
        modules = {line.partition("@")[0] for line in said.split()}
        missing = {"jdk.management", "java.management", "jdk.unsupported", "java.naming"} - modules
        return f"lacks {', '.join(sorted(missing))}" if missing else None

    try:
        return find_java(f"install Java {OLDEST_JAVA} or newer, such as openjdk-17-jre", unfit)
    except NoJava as error:
        raise NoPulsar(f"needs a whole Java: {error}") from None


class Processes:
    """Java processes of one cluster; they end with it, and with this process."""

    def __init__(self, jars: Path, folder: Path, begins: Mapping[str, list[str]]) -> None:
        self._folder = folder
        self._begins = begins
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        opens = [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED]
        memory = ["-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC"]
        netty = ["-Dio.netty.tryReflectionSetAccessible=true"]
        self._java = [str(java()), *memory, *netty, *opens, "-cp", f"{jars}/*"]

    def run(self, main: str, *arguments: str) -> None:
        with (self._folder / "setup.log").open("wb") as log:
            subprocess.run(
                [*self._java, main, *arguments],
                check=True,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                timeout=READY_S,
            )

    def start(self, name: str, main: str, values: Mapping[str, object]) -> None:
        file = self._folder / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        option = "--conf" if name == "bookie" else "--broker-conf"
        self._commands[name] = [
            *(*self._begins.get(name, []), *self._java),
            *(main, option, str(file)),
        ]
        self.start_again(name)

    def start_again(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=mortal,  # noqa: PLW1509 - it asks for a signal and takes no lock
            )

    def signal(self, name: str, how: Signals) -> None:
        self._running[name].send_signal(how)

    def end_one(self, name: str, how: Signals) -> None:
        self.signal(name, how)
        self._running[name].wait(READY_S)

    def log(self, name: str) -> list[str]:
        return (self._folder / f"{name}.log").read_text(errors="replace").splitlines()

    def cpu_s(self, name: str) -> float:
        times = psutil.Process(self._running[name].pid).cpu_times()
        return float(times.user + times.system)

    def until_ready(self, urls: list[str], secured: Secured | None = None) -> None:
        deadline_s = time.monotonic() + READY_S
        for url in urls:
            while not _says_ok(url, secured):
                for name, process in self._running.items():
                    said = "\n".join(self.log(name))[-3000:]
                    assert process.poll() is None, f"{name} ended:\n{said}"
                assert time.monotonic() < deadline_s, f"{url} is not ready after {READY_S:g} s"
                time.sleep(0.2)

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()


def _says_ok(url: str, secured: Secured | None) -> bool:
    request, context = secured.request(url) if secured else (url, None)
    try:
        with urlopen(request, timeout=2, context=context) as reply:  # noqa: S310 - loopback
            content: Any = reply.read()
            return bool(content.strip() == b"ok")
    except OSError:
        return False

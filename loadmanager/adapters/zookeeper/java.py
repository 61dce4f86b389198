import importlib.util
import os
from pathlib import Path
from typing import Final

from loadmanager.config import java
from loadmanager.core.errors import LoadManagerError

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

"""Master and workers of a standalone Spark cluster, run from the jars of PySpark.

PySpark does not contain the scripts that start them.
"""

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadmanager.pipeline.runtime import SparkUnavailable, java_home

_HEAP: Final = "512m"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_DEPLOY: Final = "org.apache.spark.deploy"
_OPENED: Final = ("java.lang", "java.net", "java.nio", "java.util", "sun.nio.ch")
"""The internal packages of Java that Spark's network code accesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One process of a cluster: its main class in Spark and its arguments."""

    main_class: str
    host: str
    arguments: Sequence[str] = field(default_factory=tuple)


def master_node(*, host: str, port: int, web_port: int) -> Node:
    """Return a master that listens on ``host``; a port of 0 selects a free one."""
    arguments = ("--host", host, "--port", str(port), "--webui-port", str(web_port))
    return Node(main_class=f"{_DEPLOY}.master.Master", host=host, arguments=arguments)


def worker_node(
    master: str, *, host: str, web_port: int, cores: int, memory: str, work_dir: Path
) -> Node:
    """Return a worker that offers ``cores`` and ``memory`` (``2g``) to a master's executors.

    The standard error of executors is written below ``work_dir``.
    """
    offers = ("--cores", str(cores), "--memory", memory, "--work-dir", str(work_dir))
    place = ("--host", host, "--webui-port", str(web_port))
    return Node(
        main_class=f"{_DEPLOY}.worker.Worker", host=host, arguments=(*place, *offers, master)
    )


@contextmanager
def running(node: Node) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a node, yield its process, and stop it at the end. It inherits our standard streams.

    Raises:
        SparkUnavailable: PySpark or Java is missing.
    """
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise SparkUnavailable("Spark is not installed; pip install 'loadmanager[pipeline]'")
    spark_home = Path(package.origin).parent
    # The shim exists as long as the node runs: workers start executors with it.
    with tempfile.TemporaryDirectory(prefix="loadmanager-java-") as folder:
        home = java_home(Path(folder) / "home")
        process = subprocess.Popen(  # noqa: S603 - the Java that was just found
            [home / "bin" / "java", *_java_options(spark_home), node.main_class, *node.arguments],
            env={
                **os.environ,
                "JAVA_HOME": str(home),
                "SPARK_HOME": str(spark_home),
                "SPARK_SCALA_VERSION": _scala_version(spark_home),
                "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", node.host),
            },
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _scala_version(spark_home: Path) -> str:
    """Return the Scala version of Spark's jars, which Spark's own scripts pass to the nodes.

    Raises:
        SparkUnavailable: the jars are missing.
    """
    names = [jar.name for jar in (spark_home / "jars").glob("spark-core_*.jar")]
    if not names:
        text = f"{spark_home / 'jars'}: no spark-core_*.jar"
        raise SparkUnavailable(f"{text}; pip install --force-reinstall pyspark")
    return names[0].removeprefix("spark-core_").partition("-")[0]


def _java_options(spark_home: Path) -> Iterator[str]:
    yield f"-Xmx{_HEAP}"
    yield f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    # Java 17 does not know the second of the next options; later versions warn without them.
    yield "-XX:+IgnoreUnrecognizedVMOptions"
    yield from ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
    for package in _OPENED:
        yield f"--add-opens=java.base/{package}=ALL-UNNAMED"
    yield from ("-cp", f"{spark_home / 'jars'}/*")

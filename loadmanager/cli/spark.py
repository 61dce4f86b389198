"""``loadmanager spark``: a small Spark cluster, where there is none."""

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from loadmanager.cli.options import option, stopped_by_signals
from loadmanager.cli.sections import SectionedGroup

if TYPE_CHECKING:
    from loadmanager.pipeline.nodes import Node

_web_port = option("--web-port", default=0, help="Port of its web page; 0 takes a free one.")


@click.group("spark", cls=SectionedGroup)
def spark_group() -> None:
    """Run the nodes of a Spark cluster for `loadmanager pipeline --master`.

    PySpark, as pip installs it, can run jobs but has no scripts for a cluster. These
    nodes trust all that can reach them: keep them in a network of their own.

    Example: loadmanager spark worker spark://spark-1:7077 --host spark-2
    """


@spark_group.command("master")
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option("--port", default=7077, help="Its port; 0 takes a free one.")
@_web_port
def master_command(host: str, port: int, web_port: int) -> None:
    """Run the master of a cluster in the foreground.

    Example: loadmanager spark master --host spark-1
    """
    from loadmanager.pipeline.nodes import master_node

    _run(master_node(host=host, port=port, web_port=web_port))


@spark_group.command("worker")
@click.argument("master", metavar="spark://HOST:PORT")
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option(
    "--cores", type=click.IntRange(1, 1024), help="Tasks at a time. Without it, one for each core."
)
@option("--memory", default="2g", help="Memory of all executors on it together.")
@option(
    "--work-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for logs of executors. Without it, a temporary one that is removed at the end.",
)
@_web_port
def worker_command(
    *, master: str, host: str, cores: int | None, memory: str, work_dir: Path | None, web_port: int
) -> None:
    """Run a worker of a cluster in the foreground.

    Its executors run the Python that PYSPARK_PYTHON names where a job is submitted: install the
    same one, with loadmanager[pipeline], on every host.

    Example: loadmanager spark worker spark://spark-1:7077 --host spark-2 --memory 6g
    """
    from loadmanager.pipeline.nodes import worker_node

    with ExitStack() as stack:
        if work_dir is None:
            work_dir = Path(stack.enter_context(TemporaryDirectory(prefix="loadmanager-spark-")))
        node = worker_node(
            master,
            host=host,
            web_port=web_port,
            cores=cores or len(os.sched_getaffinity(0)),
            memory=memory,
            work_dir=work_dir.resolve(),
        )
        _run(node)


def _run(node: "Node") -> None:
    """Run a node until it is stopped, or ends by itself."""
    from loadmanager.pipeline.nodes import running
    from loadmanager.pipeline.runtime import SparkUnavailable

    stopping = stopped_by_signals()
    try:
        with running(node) as process:
            while not stopping.wait(0.2):
                code = process.poll()
                if code is not None:
                    raise click.ClickException(f"Spark ended by itself with exit code {code}")
    except SparkUnavailable as error:
        raise click.ClickException(str(error)) from None

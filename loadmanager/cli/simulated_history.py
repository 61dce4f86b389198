"""The history that ``loadmanager simulate --history`` writes, a folder for each run."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from loadmanager.adapters.history import recorded
from loadmanager.core.planner import Planner
from loadmanager.simulator.comparing import Job
from loadmanager.simulator.recording import Recording, origin_of
from loadmanager.simulator.run import Witness


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """Gives each run a witness that writes what agents and leader would have written.

    A run that is ``alone`` writes to the folder itself, as a cluster would. Of several,
    each has a folder of its own in it: they are so many clusters.
    """

    folder: Path
    alone: bool

    @contextmanager
    def __call__(self, job: Job, planner: Planner) -> Iterator[Witness]:
        """Give the witness of one run; raises `HistoryUnavailable` if not all was written."""
        strategy = job.strategy
        told = " ".join([strategy.name, strategy.mode, *strategy.settings])
        origin = origin_of(job.scenario, told, job.seed)
        with _warnings_alone(), recorded(self.folder_of(job), origin) as sink:
            yield Recording.of(job.scenario, planner, sink)

    def folder_of(self, job: Job) -> Path:
        """Return where the history of a run is written."""
        if self.alone:
            return self.folder
        strategy = job.strategy
        name = f"{strategy.name}-{strategy.mode}-seed-{job.seed}"
        return self.folder / Path(job.name).stem / name


@contextmanager
def _warnings_alone() -> Iterator[None]:
    """Let the writer log what goes wrong, to standard error: the other is for the figures."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)

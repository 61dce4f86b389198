"""The history that ``loadmanager simulate --history`` writes, a folder for each run."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Final, Self

import structlog

from loadmanager.adapters.history import recorded
from loadmanager.adapters.history.disk import Disk
from loadmanager.config import ConfigError
from loadmanager.core.history.records import Origin
from loadmanager.core.planner import Planner
from loadmanager.simulator.recording import Recording, origin_of
from loadmanager.simulator.run import Witness
from loadmanager.simulator.simulation_jobs import Comparison, Job

_MOST_SHOWN: Final = 5
"""Maximum number of faults printed: a thousand runs usually have the same one."""


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """Creates a witness for each run that writes its history.

    A single run writes to the folder itself, as a cluster would. Of several, each
    has a folder of its own in it. ``folders`` are then those of the scenarios, by the
    names they were requested by, and None for a single run.
    """

    folder: Path
    folders: Mapping[str, Path] | None

    @classmethod
    def of(cls, folder: Path, comparison: Comparison) -> Self:
        """Return the history of all runs of a comparison, to be written below ``folder``.

        Raises:
            ConfigError: there is history of other runs already where one is to be written.
            OSError: what is there, or a trace, cannot be read.
        """
        several = comparison.runs > 1
        history = cls(folder, _folders(folder, comparison.scenarios) if several else None)
        taken = list(islice(history.taken(comparison.jobs()), _MOST_SHOWN))
        if taken:
            raise ConfigError(taken)
        return history

    def taken(self, jobs: Iterable[Job]) -> Iterator[str]:
        """Yield a fault for each folder that holds the history of others.

        What the same run wrote before is no fault: it is written again, byte for byte.
        """
        expected = {self.folder_of(job): _origin(job).instance for job in jobs}
        for folder, instance in {self.folder: "", **expected}.items():
            files = (one for one in Disk().find(folder) if one.name.instance != instance)
            other = next((one.path for one in files), None)
            if other is None and self.folders is None:
                other = next(folder.glob("*/*-seed-*/date=*"), None)
            if other is not None:
                yield (
                    f"--history {self.folder}: {folder} holds the history of another run or "
                    f"cluster already, such as {other.relative_to(folder)}, and the two would be "
                    "mixed; expected a new folder, or delete what is there"
                )

    def renamed(self) -> Iterator[tuple[str, Path]]:
        """Yield the scenarios that share their file's name with one before, and their folders."""
        for name, folder in (self.folders or {}).items():
            if folder.name != Path(name).stem:
                yield name, folder

    @contextmanager
    def __call__(self, job: Job, planner: Planner) -> Iterator[Witness]:
        """Give the witness of one run; raises `HistoryUnavailable` if not all was written."""
        with warnings_alone(), recorded(self.folder_of(job), _origin(job)) as sink:
            yield Recording.of(job.scenario, planner, sink)

    def folder_of(self, job: Job) -> Path:
        if self.folders is None:
            return self.folder
        strategy = job.strategy
        return self.folders[job.name] / f"{strategy.name}-{strategy.mode}-seed-{job.seed}"


def _origin(job: Job) -> Origin:
    strategy = job.strategy
    text = " ".join([strategy.name, strategy.mode, *strategy.settings])
    return origin_of(job.scenario, text, job.seed)


def _folders(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return a folder for each scenario, named after its file, numbered where equal."""
    stems = {name: Path(name).stem for name in names}
    taken: set[str] = set()
    found: dict[str, Path] = {}
    for name, stem in stems.items():
        numbered = (f"{stem}-{number}" for number in count(2))
        others = (one for one in numbered if one not in stems.values())
        called = next(one for one in chain([stem], others) if one not in taken)
        taken.add(called)
        found[name] = folder / called
    return found


@contextmanager
def warnings_alone() -> Iterator[None]:
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

from typing import Literal

from pydantic import Field

from loadmanager.config.forms import Section
from loadmanager.core.history.files import MOST_ROLL_MIB


class HistorySettings(Section):
    """Load reports and decisions as files, for the pipeline. Off unless ``dir`` is set.

    The format is in docs/history-format.md.
    """

    dir: str = Field("", examples=["/var/lib/loadmanager/history"])
    """Directory for the files, which any number of sidecars may share, or a URL that fsspec
    supports,
    such as s3://bucket/prefix. Empty: no history."""
    spool_dir: str = ""
    """Directory on this host for files that are not uploaded yet; required if dir is a URL."""
    write: Literal["all", "reports", "rounds"] = "all"
    """reports: load reports of this sidecar's broker. rounds: views and decisions of this sidecar
    while it leads. all: both."""
    broker_class: str = ""
    """Class of brokers with the same hardware and image, recorded in every report: costs are
    estimated for each class separately."""
    flush_interval_s: float = Field(5, ge=0.1, le=3600)
    """Interval between writes to disk. A crash loses at most the lines of one interval. A shorter
    one compresses worse."""
    roll_mib: float = Field(64, ge=0.001, le=MOST_ROLL_MIB)
    """A file of this compressed size is finished. The pipeline reads each file as a whole and needs
    memory for it."""
    roll_interval_s: float = Field(900, ge=1, le=3600)
    """A file of this age is finished. A shorter interval makes data available to the pipeline
    sooner, in more files."""
    compression_level: int = Field(6, ge=1, le=9)
    """Level of gzip: 1 is the fastest, 9 the smallest."""
    max_age_days: float = Field(30, ge=0, le=36_500)
    """This sidecar's finished files are deleted at this age. 0: never."""
    max_size_gib: float = Field(10, ge=0, le=1_000_000)
    """The oldest of this sidecar's finished files are deleted above this total size. 0: never."""
    queue_records: int = Field(10_000, ge=10, le=10_000_000)
    """Maximum number of records that wait while the disk is slow or missing; further ones are
    counted and dropped."""
    base_every_rounds: int = Field(15, ge=1, le=10_000)
    """Number of rounds between two records of the leader's state, from which a replay can start.
    Fewer need more space."""

    seed: str = Field("", examples=["/var/lib/loadmanager/pipeline/seed.json.gz"])
    """Seed of a new leader's averages, written by `loadmanager pipeline rollup`: a file or a URL
    that fsspec supports. It is read when a term begins with too few averages from the previous
    leader. Empty: such a leader starts without averages."""
    seed_max_age_days: float = Field(7, gt=0, le=36_500)
    """A seed whose history ended longer ago is not used."""

    @property
    def is_remote(self) -> bool:
        return "://" in self.dir

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadmanager.core.ids import BundleId
from loadmanager.core.rates import Rates
from loadmanager.core.seed import BundleSeed, Seed, SeedHead, encode_seed, read_seed
from loadmanager.ports.history import SeedUnreadable


def rates(msgs_per_s: float) -> Rates:
    return Rates(msgs_per_s, 0.0, 1000.0 * msgs_per_s, 0.0)


def head(until_ms: int, cluster: str = "east") -> SeedHead:
    return SeedHead(
        cluster=cluster, made_at_ms=until_ms, since_ms=max(until_ms - 10**9, 0), until_ms=until_ms
    )


def bundle_seed(bundle: BundleId, msgs_per_s: float) -> BundleSeed:
    return BundleSeed(
        bundle=bundle, long=rates(msgs_per_s), long_samples=1000, mean=rates(msgs_per_s)
    )


def write_seed(path: Path, seed_head: SeedHead, sizes: Mapping[BundleId, float]) -> Path:
    pieces = encode_seed(seed_head, (bundle_seed(*item) for item in sizes.items()))
    path.write_bytes(b"".join(pieces))
    return path


@dataclass
class GivenSeed:
    """A source of a seed that is given, or of an error; ``hours`` are those asked for.

    With ``hangs`` it never answers.
    """

    seed_head: SeedHead | None = None
    sizes: Mapping[BundleId, float] = field(default_factory=dict)
    error: SeedUnreadable | None = None
    hangs: bool = False
    hours: list[int] = field(default_factory=list)

    async def read(self, hour: int) -> Seed:
        self.hours.append(hour)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        assert self.seed_head is not None
        every = [bundle_seed(*item) for item in self.sizes.items()]
        packed = b"".join(encode_seed(self.seed_head, every))
        return read_seed("seed", gzip.decompress(packed).splitlines(), hour)

"""Rows of the cost model from arrays, in the place of rows from Spark."""

from dataclasses import dataclass

import numpy as np

from loadmanager.pipeline.cost_model.rows import Rows, Summing, Sums, added


@dataclass(frozen=True, eq=False)
class InMemory:
    rows: Rows
    batch: int = 1 << 16

    def sums(self, summing: Summing) -> Sums:
        order = np.lexsort((self.rows.block, self.rows.unit))
        rows = self.rows.take(order)
        batches = (rows.take(slice(at, at + self.batch)) for at in range(0, len(rows), self.batch))
        return added(summing(batches))

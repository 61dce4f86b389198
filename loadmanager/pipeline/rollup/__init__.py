"""The job ``rollup``: loads over time as means, percentiles and profiles; the leader's averages."""

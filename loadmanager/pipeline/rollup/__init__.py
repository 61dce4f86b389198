"""What rollup makes of loads over time: means, percentiles, profiles, the leader's averages."""

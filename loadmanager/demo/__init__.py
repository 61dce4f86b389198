"""A whole cluster on one machine: ZooKeeper, brokers, sidecars, traffic, and a display of it."""

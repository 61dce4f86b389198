"""The decision core on modelled brokers: which strategy is better, by how much, and why."""

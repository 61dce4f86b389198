"""The decision core on modelled brokers, to compare strategies."""

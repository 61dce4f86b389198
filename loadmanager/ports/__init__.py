"""The application's external dependencies, as protocols that adapters implement.

The protocol of ZooKeeper is a `Link`; sessions and watches upon it are the same for all links.

Nothing here imports an adapter or exposes an adapter's library: the application runs unchanged
on ZooKeeper or in-memory coordination, and beside a real or a fake broker.
"""

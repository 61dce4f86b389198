"""The application's external dependencies, as protocols that adapters implement.

Nothing here imports an adapter or exposes an adapter's library: the application runs unchanged
on ZooKeeper or in-memory coordination, and beside a real or a fake broker.
"""

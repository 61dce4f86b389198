"""The agent: membership, lease, ownership and locks, load reports, and shutdown."""

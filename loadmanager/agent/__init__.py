"""This broker's side: membership, lease, ownership and locks, load reports, shutdown."""

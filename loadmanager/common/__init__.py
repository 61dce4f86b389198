"""What all parts of one sidecar share: its context, the cluster as it sees it, settings."""

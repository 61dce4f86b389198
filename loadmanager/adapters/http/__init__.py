"""The HTTP server for lookups, admin REST and metrics, and the client of the leader's sidecar."""

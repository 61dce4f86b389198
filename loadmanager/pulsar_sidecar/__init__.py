"""A sidecar beside a real Pulsar broker, which owns its bundles by itself and obeys no agent."""

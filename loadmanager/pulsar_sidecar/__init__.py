"""A sidecar beside a real Pulsar broker, which owns its bundles under Pulsar's own locks."""

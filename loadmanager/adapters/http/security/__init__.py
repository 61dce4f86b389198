"""Access control over HTTP: TLS, bearer tokens, roles, and the audit log of changes."""

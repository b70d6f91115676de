"""Who calls, and what must not be seen: identity, redaction, artifacts."""

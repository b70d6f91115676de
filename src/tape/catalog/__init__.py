"""Documents that users register: playbooks and subscriptions, in YAML, versioned in the store."""

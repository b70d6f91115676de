"""Store and forward: what a subscription does with messages while a downstream is away."""

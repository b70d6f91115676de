"""Who hears it: the hub and its subscriptions."""

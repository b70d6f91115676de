"""Push subscriptions: deliveries over HTTP are verified and become runs."""

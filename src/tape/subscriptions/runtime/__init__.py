"""Runtimes of pull subscriptions: supervised by a server, remote, or local."""

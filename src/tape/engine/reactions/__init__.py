"""The server's side of reactions: registry, matcher, tasks and dead letters."""

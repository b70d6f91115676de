"""One surface over the dead letters of a server: tasks, messages, spools, quarantine and relays."""

"""Plain values that client and server share: entries, subjects, patterns, payloads and the hash chain."""

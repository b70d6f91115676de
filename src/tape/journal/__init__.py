"""What happened: entries, subjects, and the one global order."""

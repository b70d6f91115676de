"""What it means: projections of the journal, each change written together with its entry."""

"""The HTML report about a time window of the journal."""

"""Amazon SQS: connection and source."""

"""The spool: store-and-forward buffer of a subscription while a downstream is unavailable."""

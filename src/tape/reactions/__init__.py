"""What entries trigger: reactions are matched against the journal and become tasks and runs."""

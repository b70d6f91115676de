"""The wire contract: `tape.proto` and what is generated from it (`make proto`)."""

"""What every package may use: clock, retry, configuration, telemetry. Imports nothing of Tape but `tape.errors`."""

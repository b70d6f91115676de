"""The database underneath: one writer with group commit, readers, migrations."""

from tape.store.connection import Reader
from tape.store.database import Database
from tape.store.sqlite_limits import SqliteLimits
from tape.store.transaction import Transaction
from tape.store.urls import open_database
from tape.store.writer import WriterLimits

__all__ = ["Database", "Reader", "SqliteLimits", "Transaction", "WriterLimits", "open_database"]

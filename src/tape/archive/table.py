"""The archive: a Delta table of Parquet files, partitioned by day and kind.

Files are added to the table in one commit that also has the last archived `global_seq` (an
application transaction whose version is that number). There is no second record that could disagree: files
without their commit were never there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tape.archive import files as parquet
from tape.archive.files import FILE_COLUMNS, PARTITIONS, READ_COLUMNS, ArchiveFile
from tape.archive.location import open_filesystem, resolve_url
from tape.archive.schema import arrow_schema
from tape.base.clock import now_ms
from tape.errors import ArchiveBusy, ArchiveDamaged, ArchiveUnreachable, PipelineInput
from tape.journal.appender import Head

APP = "tape-archive"
REPLACING = "tape-archive-replacing"
# A replaced file is deleted after this time, so that readers that have opened it can finish.
KEPT_HOURS = 168
_BEGIN, _ANCHOR = "tape.begin", "tape.anchor"


class ArchiveTable:
    """An archive at a folder or an object store's URL."""

    def __init__(self, url: str, table: DeltaTable, options: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.filesystem = open_filesystem(url, options)
        self._table = table

    @classmethod
    def open(cls, url: str, options: Mapping[str, str] | None = None) -> ArchiveTable:
        """An archive that exists. Raises PipelineInput, ArchiveUnreachable, or ArchiveDamaged if its log is damaged."""
        url = resolve_url(url)
        if not DeltaTable.is_deltatable(url, dict(options or {})):
            raise PipelineInput(f"There is no archive at {url}. Make one with: tape pipeline run archive --lake {url}")
        archive = cls(url, _open_table(url, options), options)
        if _BEGIN not in archive._settings:
            raise PipelineInput(f"The table at {url} is no archive of a journal; choose another folder.")
        return archive

    @classmethod
    def open_or_create(cls, url: str, head: Head, options: Mapping[str, str] | None = None) -> ArchiveTable:
        """The archive at a URL; a new one begins with the oldest entry of the journal."""
        if DeltaTable.is_deltatable(resolve_url(url), dict(options or {})):
            return cls.open(url, options)
        fields = [*arrow_schema(FILE_COLUMNS), pa.field("day", pa.string()), pa.field("kind", pa.string())]
        DeltaTable.create(
            resolve_url(url),
            pa.schema(fields),
            mode="ignore",
            partition_by=list(PARTITIONS),
            name="tape journal",
            configuration={_BEGIN: str(head.oldest), _ANCHOR: head.anchor.hex()},
            storage_options=dict(options or {}),
            raise_if_key_not_exists=False,
        )
        return cls.open(url, options)

    @property
    def _settings(self) -> dict[str, str]:
        return self._table.metadata().configuration

    @property
    def begin(self) -> int:
        """The first global_seq of the archive."""
        return int(self._settings[_BEGIN])

    @property
    def anchor(self) -> bytes:
        """The chain value just before the first entry."""
        return bytes.fromhex(self._settings[_ANCHOR])

    @property
    def until(self) -> int:
        """The last global_seq that is archived."""
        return self._table.transaction_version(APP) or self.begin - 1

    @property
    def version(self) -> int:
        """The number of the commit that is seen."""
        return self._table.version()

    def refresh(self) -> None:
        """Load the commits of other processes."""
        self._table.update_incremental()

    def files(self) -> list[ArchiveFile]:
        """The files of the archive, by their first entry."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        found = [
            ArchiveFile(
                path=action["path"],
                size=action["size_bytes"],
                entries=action["num_records"],
                first=action["min.global_seq"],
                last=action["max.global_seq"],
                first_ms=action["min.ts_ms"],
                last_ms=action["max.ts_ms"],
                day=action["partition.day"],
                kind=action["partition.kind"],
            )
            for action in actions
        ]
        return sorted(found, key=lambda file: (file.first, file.path))

    def add(self, written: Sequence[ArchiveFile], until: int) -> None:
        """Add files to the archive, together with the last archived global_seq.

        Raises ArchiveBusy if another process has added files since the last refresh.
        """
        note = {"tape.after": str(self.until), "tape.until": str(until)}
        self._commit([_add_action(file, changes_data=True) for file in written], note, [Transaction(APP, until)])

    def replace(self, old: Sequence[ArchiveFile], new: Sequence[ArchiveFile], why: str) -> None:
        """Replace files by others with the same entries, atomically for all readers.

        Raises ArchiveBusy if another process has replaced files since the last refresh.
        """
        now = now_ms()
        gone = [RemoveAction(file.path, False, now, file.size, {"day": file.day, "kind": file.kind}) for file in old]
        # A commit of the same application that was not seen is a conflict, and only one replaces files at a time.
        exclusive = Transaction(REPLACING, (self._table.transaction_version(REPLACING) or 0) + 1)
        self._commit([*gone, *(_add_action(file, changes_data=False) for file in new)], {"tape.why": why}, [exclusive])

    def read_file(self, file: ArchiveFile, after: int, until: int, columns: Sequence[str] = READ_COLUMNS) -> pa.Table:
        """Read the entries of one file within a range. Raises ArchiveDamaged, naming the file."""
        return parquet.read_file(self.filesystem, file, after, until, columns)

    def chain_at(self, global_seq: int) -> bytes | None:
        """The chain value of an archived entry, as it is archived; None if it is not there."""
        for file in self.files():
            if file.first <= global_seq <= file.last:
                table = self.read_file(file, global_seq - 1, global_seq)
                if table.num_rows:
                    return bytes(table.column("chain")[0].as_py())
        return None

    def vacuum(self) -> int:
        """Delete files that have been no part of the archive for a week; the number of those."""
        return len(self._table.vacuum(KEPT_HOURS, dry_run=False, full=True))

    def _commit(
        self, actions: list[AddAction | RemoveAction], note: dict[str, str], transactions: list[Transaction]
    ) -> None:
        try:
            self._table.create_write_transaction(
                actions,
                mode="append",
                schema=self._table.schema(),
                partition_by=list(PARTITIONS),
                commit_properties=CommitProperties(custom_metadata=note, app_transactions=transactions),
                post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
            )
        except CommitFailedError as error:
            raise ArchiveBusy(
                f"The archive at {self.url} was changed by another process; nothing was written: {error}"
            ) from error
        self.refresh()


def _open_table(url: str, options: Mapping[str, str] | None) -> DeltaTable:
    """The Delta table, with its log read."""
    try:
        return DeltaTable(url, storage_options=dict(options or {}))
    except DeltaError as error:
        reason = str(error).partition("\n")[0]
        try:
            open_filesystem(url, options).get_file_info("_delta_log")
        except OSError as silence:
            raise ArchiveUnreachable(f"The archive at {url} cannot be reached: {silence}") from error
        raise ArchiveDamaged(f"The log of the archive at {url} cannot be read: {reason}") from error


def _add_action(file: ArchiveFile, *, changes_data: bool) -> AddAction:
    facts = {
        "numRecords": file.entries,
        "minValues": {"global_seq": file.first, "ts_ms": file.first_ms},
        "maxValues": {"global_seq": file.last, "ts_ms": file.last_ms},
        "nullCount": {"global_seq": 0, "ts_ms": 0},
    }
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={"day": file.day, "kind": file.kind},
        modification_time=now_ms(),
        data_change=changes_data,
        stats=msgspec.json.encode(facts).decode(),
    )

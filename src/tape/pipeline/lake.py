"""The archive: a Delta table of Parquet files, partitioned by day and kind.

Executors write files; the driver adds them to the table in one commit that also holds how far the journal
is archived (an application transaction whose version is a `global_seq`). So there is no second place that
could disagree: files without their commit were never there.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tape.errors import ArchiveDamaged, PipelineInput
from tape.journal.page import Head
from tape.pipeline.columns import COLUMNS, arrow_schema
from tape.pipeline.options import resolve_folder

APP = "tape-archive"
PARTITIONS = ("day", "kind")
FILE_COLUMNS = tuple(name for name in COLUMNS if name != "kind")
READ_COLUMNS = (*FILE_COLUMNS, "kind")
_BEGIN, _ANCHOR = "tape.begin", "tape.anchor"
# What a task reports about each file it wrote.
WRITTEN = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("entries", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("day", pa.string()),
        ("kind", pa.string()),
    ]
)


class File(msgspec.Struct, frozen=True):
    """A file of the archive and the stretch of the journal that it has entries of."""

    path: str
    entries: int
    first: int
    last: int
    kind: str


class Lake:
    """An archive at a folder or an object store's URL."""

    def __init__(self, url: str, table: DeltaTable) -> None:
        self.url = url
        self._table = table

    @classmethod
    def open(cls, url: str) -> Lake:
        """An archive that exists. Raises PipelineInput."""
        url = resolved(url)
        if not DeltaTable.is_deltatable(url):
            raise PipelineInput(f"There is no archive at {url}. Make one with: tape pipeline run archive --lake {url}")
        lake = cls(url, DeltaTable(url))
        if _BEGIN not in lake._settings:
            raise PipelineInput(f"The table at {url} is no archive of a journal; choose another folder.")
        return lake

    @classmethod
    def open_or_create(cls, url: str, head: Head) -> Lake:
        """The archive at a URL; a new one begins with the oldest entry of the journal."""
        if DeltaTable.is_deltatable(resolved(url)):
            return cls.open(url)
        fields = [*arrow_schema(FILE_COLUMNS), pa.field("day", pa.string()), pa.field("kind", pa.string())]
        DeltaTable.create(
            resolved(url),
            pa.schema(fields),
            mode="ignore",
            partition_by=list(PARTITIONS),
            name="tape journal",
            configuration={_BEGIN: str(head.oldest), _ANCHOR: head.anchor.hex()},
            raise_if_key_not_exists=False,
        )
        return cls.open(url)

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

    def refresh(self) -> None:
        """See what others have committed."""
        self._table.update_incremental()

    def files(self) -> list[File]:
        """The files of the archive, by their first entry."""
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        found = [
            File(a["path"], a["num_records"], a["min.global_seq"], a["max.global_seq"], a["partition.kind"])
            for a in actions
        ]
        return sorted(found, key=lambda file: file.first)

    def add(self, written: list[dict[str, Any]], until: int) -> None:
        """Make files part of the archive, together with how far it now reaches."""
        now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values={"day": file["day"], "kind": file["kind"]},
                modification_time=now_ms,
                data_change=True,
                stats=msgspec.json.encode(
                    {
                        "numRecords": file["entries"],
                        "minValues": {"global_seq": file["first"]},
                        "maxValues": {"global_seq": file["last"]},
                        "nullCount": {"global_seq": 0},
                    }
                ).decode(),
            )
            for file in written
        ]
        self._table.create_write_transaction(
            actions,
            mode="append",
            schema=self._table.schema(),
            partition_by=list(PARTITIONS),
            commit_properties=CommitProperties(
                custom_metadata={"tape.after": str(self.until), "tape.until": str(until)},
                app_transactions=[Transaction(APP, until)],
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
        )
        self.refresh()

    def read_file(self, file: File, after: int, until: int) -> pa.Table:
        """The entries of one file within a stretch. Raises ArchiveDamaged, naming the file."""
        filesystem, root = filesystem_of(self.url)
        try:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=filesystem) as content:
                found = content.metadata.num_rows
                table = content.read_row_groups(_groups(content, after, until), columns=list(FILE_COLUMNS))
        except (OSError, pa.ArrowException) as error:
            raise ArchiveDamaged(f"The archive's file {file.path} cannot be read: {error}") from error
        if found != file.entries:
            raise ArchiveDamaged(f"The archive's file {file.path} has {found} entries, not {file.entries}.")
        numbers = table.column("global_seq")
        table = table.filter(pc.and_(pc.greater(numbers, after), pc.less_equal(numbers, until)))
        table = table.select(FILE_COLUMNS).append_column("kind", pa.array([file.kind] * table.num_rows, pa.string()))
        return table.cast(arrow_schema(READ_COLUMNS))

    def compact(self) -> int:
        """Rewrite small files of one day and kind into larger ones; the number of files that went."""
        return int(self._table.optimize.compact()["numFilesRemoved"])


def _groups(content: pq.ParquetFile, after: int, until: int) -> list[int]:
    """The row groups that can have entries of a stretch."""
    column = content.schema_arrow.get_field_index("global_seq")
    found = []
    for number in range(content.metadata.num_row_groups):
        facts = content.metadata.row_group(number).column(column).statistics
        if facts is None or not facts.has_min_max or (facts.max > after and facts.min <= until):
            found.append(number)
    return found


def resolved(url: str) -> str:
    """A lake's URL that means the same in every process of a cluster."""
    if not url:
        raise PipelineInput("The archive's place is missing: give a folder or a URL such as s3://bucket/tape.")
    return resolve_folder(url)


def filesystem_of(url: str) -> tuple[pa.fs.FileSystem, str]:
    """How to reach a lake's files, and the folder that they are in."""
    filesystem, root = pa.fs.FileSystem.from_uri(url if "://" in url else Path(url).as_uri())
    return filesystem, root


def write_files(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write entries as files, one for each day and kind, and report them. Runs in a task."""
    entries = pa.Table.from_batches(batches, arrow_schema(tuple(COLUMNS)))
    if not entries.num_rows:
        return
    filesystem, root = filesystem_of(url)
    days = pc.strftime(entries.column("ts"), format="%Y-%m-%d")
    keyed = entries.append_column("day", days)
    written = []
    for pair in keyed.group_by(list(PARTITIONS)).aggregate([]).to_pylist():
        chosen = pc.and_(pc.equal(keyed.column("day"), pair["day"]), pc.equal(keyed.column("kind"), pair["kind"]))
        part = entries.filter(chosen).select(FILE_COLUMNS).sort_by("global_seq")
        first, last = part.column("global_seq")[0].as_py(), part.column("global_seq")[-1].as_py()
        folder = f"day={pair['day']}/kind={pair['kind']}"
        path = f"{folder}/{first:016d}-{last:016d}-{uuid.uuid4().hex[:8]}.parquet"
        filesystem.create_dir(f"{root}/{folder}", recursive=True)
        chains = {"tape.first_chain": part.column("chain")[0].as_py().hex()}
        chains["tape.last_chain"] = part.column("chain")[-1].as_py().hex()
        pq.write_table(
            part.replace_schema_metadata(chains),
            f"{root}/{path}",
            filesystem=filesystem,
            compression="zstd",
            coerce_timestamps="us",
        )
        size = filesystem.get_file_info(f"{root}/{path}").size
        written.append({"path": path, "size": size, "entries": part.num_rows, "first": first, "last": last, **pair})
    yield pa.RecordBatch.from_pylist(written, WRITTEN)

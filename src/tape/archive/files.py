"""The archive's Parquet files: written by day and kind in the journal's order, with checksums, and read in groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from operator import eq

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from tape.archive.schema import TYPES, arrow_schema
from tape.base.ids import new_suffix
from tape.errors import ArchiveDamaged, ArchiveUnreachable
from tape.model.entry import type_of

PARTITIONS = ("day", "kind")
FILE_COLUMNS = tuple(name for name in TYPES if name != "kind")
# The folder's name says a kind once for all entries of a file.
READ_COLUMNS = (*FILE_COLUMNS, "kind")
# A group of rows is what a reader takes at once.
GROUP_ROWS = 16_384
GROUP_BYTES = 8 << 20
_FIRST_CHAIN, _LAST_CHAIN = "tape.first_chain", "tape.last_chain"


class ArchiveFile(msgspec.Struct, frozen=True):
    """A file of the archive and the range of global_seqs of its entries.

    Its name ends in the beginnings of the chain values of its first and its last entry.
    """

    path: str
    size: int
    entries: int
    first: int
    last: int
    first_ms: int
    last_ms: int
    day: str
    kind: str


class RowGroup(msgspec.Struct, frozen=True):
    """Rows of a file that are read together."""

    file: ArchiveFile
    number: int
    first: int
    last: int


def write_files(filesystem: pa.fs.FileSystem, entries: pa.Table) -> list[ArchiveFile]:
    """Write entries as files, one per day and kind; they are part of the archive once a commit adds them."""
    keyed = entries.append_column("day", pc.strftime(entries.column("ts"), format="%Y-%m-%d"))
    written = []
    for pair in keyed.group_by(list(PARTITIONS)).aggregate([]).to_pylist():
        chosen = pc.and_(pc.equal(keyed.column("day"), pair["day"]), pc.equal(keyed.column("kind"), pair["kind"]))
        part = entries.filter(chosen).select(FILE_COLUMNS).sort_by("global_seq")
        written.append(write_file(filesystem, [part], part, part, pair["day"], pair["kind"]))
    return sorted(written, key=lambda file: file.first)


def write_file(
    filesystem: pa.fs.FileSystem, parts: Iterable[pa.Table], first: pa.Table, last: pa.Table, day: str, kind: str
) -> ArchiveFile:
    """Write one file from tables that follow each other in the journal's order, of which these have the ends."""
    begin, end = first.slice(0, 1).to_pylist()[0], last.slice(last.num_rows - 1).to_pylist()[0]
    chains = [begin["chain"].hex(), end["chain"].hex()]
    name = f"{begin['global_seq']:016d}-{end['global_seq']:016d}-{chains[0][:16]}-{chains[1][:16]}"
    folder = f"day={day}/kind={kind}"
    path = f"{folder}/{name}-{new_suffix()}.parquet"
    schema = arrow_schema(FILE_COLUMNS).with_metadata({_FIRST_CHAIN: chains[0], _LAST_CHAIN: chains[1]})
    filesystem.create_dir(folder, recursive=True)
    entries = 0
    with (
        filesystem.open_output_stream(path) as stream,
        pq.ParquetWriter(
            stream, schema, compression="zstd", write_page_checksum=True, sorting_columns=[pq.SortingColumn(0)]
        ) as writer,
    ):
        for part in parts:
            entries += part.num_rows
            writer.write_table(part.cast(schema), row_group_size=rows_per_group(part))
    return ArchiveFile(
        path=path,
        size=filesystem.get_file_info(path).size,
        entries=entries,
        first=begin["global_seq"],
        last=end["global_seq"],
        first_ms=begin["ts_ms"],
        last_ms=end["ts_ms"],
        day=day,
        kind=kind,
    )


def rows_per_group(part: pa.Table) -> int:
    """How many rows to put into one group, so that reading it takes little memory."""
    return max(min(GROUP_ROWS, GROUP_BYTES * int(part.num_rows) // max(int(part.nbytes), 1)), 1)


def read_footer(filesystem: pa.fs.FileSystem, file: ArchiveFile) -> tuple[pq.FileMetaData, list[RowGroup]]:
    """Read the Parquet metadata and row groups of a file. Raises ArchiveDamaged if its entry count differs."""
    with translate_errors(filesystem, file), pq.ParquetFile(file.path, filesystem=filesystem) as content:
        facts = content.metadata
        column = content.schema_arrow.get_field_index("global_seq")
    if facts.num_rows != file.entries:
        raise ArchiveDamaged(f"The archive's file {file.path} has {facts.num_rows} entries, not {file.entries}.")
    groups = []
    for number in range(facts.num_row_groups):
        known = facts.row_group(number).column(column).statistics
        has_ends = known is not None and known.has_min_max
        groups.append(RowGroup(file, number, *((known.min, known.max) if has_ends else (file.first, file.last))))
    return facts, groups


def read_group(
    filesystem: pa.fs.FileSystem, facts: pq.FileMetaData, group: RowGroup, columns: Sequence[str]
) -> pa.Table:
    """Columns of a group. Raises ArchiveDamaged, naming the file."""
    file = group.file
    stored = [name for name in columns if name != "kind"]
    with (
        translate_errors(filesystem, file),
        pq.ParquetFile(file.path, metadata=facts, filesystem=filesystem, page_checksum_verification=True) as content,
    ):
        table = content.read_row_group(group.number, columns=stored)
    table = table.select(stored)  # files give columns in their own order
    if "kind" in columns:
        table = table.append_column("kind", pa.repeat(pa.scalar(file.kind), table.num_rows))
    return table.select(columns).cast(arrow_schema(columns))


def read_file(
    filesystem: pa.fs.FileSystem, file: ArchiveFile, after: int, until: int, columns: Sequence[str] = READ_COLUMNS
) -> pa.Table:
    """Read the entries of one file within a range of global_seqs. Raises ArchiveDamaged, naming the file."""
    facts, groups = read_footer(filesystem, file)
    tables = [
        read_group(filesystem, facts, group, columns) for group in groups if group.last > after and group.first <= until
    ]
    table = pa.concat_tables(tables) if tables else arrow_schema(columns).empty_table()
    return table.filter(in_range(table, after, until))


def in_range(table: pa.Table, after: int, until: int) -> pa.ChunkedArray:
    """The mask of the rows within a range of global_seqs."""
    numbers = table.column("global_seq")
    return pc.and_(pc.greater(numbers, after), pc.less_equal(numbers, until))


def check_file(file: ArchiveFile, table: pa.Table) -> None:
    """Raise ArchiveDamaged if what was read of a file is not what its name, its folder and its own columns say."""
    name = file.path.rpartition("/")[2].split("-")
    if len(name) == 5:  # not rewritten by another tool
        for number, chain in ((file.first, name[2]), (file.last, name[3])):
            there = table.column("chain").filter(pc.equal(table.column("global_seq"), number))
            if len(there) and not there[0].as_py().hex().startswith(chain):
                raise ArchiveDamaged(f"The archive's file {file.path} has another entry {number} than its name says.")
    times, moments = table.column("ts_ms"), table.column("ts").cast(pa.int64())
    days = pc.strftime(table.column("ts"), format="%Y-%m-%d")
    is_derived = pc.and_(pc.equal(moments, pc.multiply(times, 1000)), pc.equal(days, file.day))
    types = (type_of(file.kind, subject) for subject in table.column("subject").to_pylist())
    if not (pc.all(is_derived).as_py() and all(map(eq, types, table.column("type").to_pylist()))):
        raise ArchiveDamaged(f"The archive's file {file.path} has a day, ts or type that its entries don't have.")


def files_in_range(files: Iterable[ArchiveFile], after: int, until: int) -> Iterator[ArchiveFile]:
    """The files that can have entries of a range."""
    return (file for file in files if file.last > after and file.first <= until)


@contextlib.contextmanager
def translate_errors(filesystem: pa.fs.FileSystem, file: ArchiveFile) -> Iterator[None]:
    """Translate read errors to ArchiveDamaged, or to ArchiveUnreachable if the object store does not answer."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArchiveDamaged(f"The archive's file {file.path} is missing.") from error
    except (OSError, pa.ArrowException) as error:
        try:
            filesystem.get_file_info(file.path)
        except OSError as silence:
            raise ArchiveUnreachable(f"The archive's file {file.path} cannot be reached: {silence}") from error
        raise ArchiveDamaged(f"The archive's file {file.path} cannot be read: {error}") from error

"""An archive in an object store is written, read, compacted and repaired as one in a folder is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from tape.archive.compaction import compact
from tape.archive.table import ArchiveTable
from tape.client import AsyncTapeClient
from tape.errors import ArchiveDamaged
from tape.journal.history import EntryFilter
from tape.pipeline.archive_repair import repair_archive
from tape.pipeline.archive_verifier import verify_archive
from tape.server.server import Server
from tests.archive.conftest import archive, content, fill, forget, order, prepare
from tests.conftest import settings_for
from tests.objects import KEY, SECRET, S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def options(s3: S3Server) -> dict[str, str]:
    """What the server wants to know."""
    return {
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_endpoint_url": s3.endpoint,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


def test_an_archive_in_s3_is_repaired_and_compacted(
    sqlite_url: str, tmp_path: Path, s3: S3Server, options: dict[str, str]
) -> None:
    prepare(sqlite_url, str(tmp_path / "folder"), 200, (200,))
    prepare(sqlite_url, "s3://spool/mended", 0, (100, 200), options)
    lake = ArchiveTable.open("s3://spool/mended", options)
    whole = content(ArchiveTable.open(str(tmp_path / "folder")))
    assert content(lake, options) == whole
    missing, cut, *_ = lake.files()
    lake.filesystem.delete_file(missing.path)
    obstore.put(s3.store("spool"), f"mended/{cut.path}", b"nothing")
    report = verify_archive(lake, sqlite_url)
    assert set(report.damaged) == {missing.path, cut.path}
    with pytest.raises(ArchiveDamaged, match="is missing"):
        lake.read_file(missing, 0, 200)
    assert repair_archive(lake, sqlite_url, report).entries == missing.entries + cut.entries
    assert lake.filesystem.get_file_info(f"_quarantine/{cut.path.replace('/', ',')}").is_file
    assert compact(lake) == 4
    assert verify_archive(lake, sqlite_url).ok
    assert content(lake, options) == whole


async def test_a_server_reads_an_archive_in_s3(sqlite_url: str, options: dict[str, str]) -> None:
    settings = settings_for(sqlite_url, lake="s3://spool/read", lake_options=tuple(options.items()))
    async with Server(settings) as server:
        await fill(server.database, [order(number) for number in range(1, 301)])
        await archive(server.database, "s3://spool/read", 200, options)
        await forget(server.database, 151)
        server.hub.ring.clear()
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            following = client.follow(reconnect=False)
            assert [(await anext(following)).global_seq for _ in range(300)] == list(range(1, 301))
        past = server.hub.history.archive
        assert past is not None
        assert len(past.read(EntryFilter(values={"type": ["refund.paid"]}), 0, 150, 100)) == 10

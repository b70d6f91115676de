"""The options of `format("tape")`, validated before anything is read or written."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec

from tape.archive.location import resolve_url
from tape.base.store_url import describe_source
from tape.base.url_mask import mask_urls
from tape.cel import compile_predicate
from tape.errors import PipelineInput
from tape.model.pattern import Pattern
from tape.store import Database, open_database
from tape.store.sqlite import SqliteDatabase
from tape.store.urls import is_memory

# A position in the journal: one of its ends, a global_seq, or a time.
Offset = Literal["earliest", "latest"] | int | dt.datetime


class ReadOptions(msgspec.Struct, frozen=True):
    """The options of a reader. Offsets are `global_seq`s: reading begins after `starting` and includes `ending`."""

    store: str
    subject: str = ""
    where: str = ""
    starting: Offset = "earliest"
    ending: Offset = "latest"
    max_per_trigger: int = 0
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    lake: str = ""


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of a writer: the store, and the producer and batch id that make a retried write idempotent."""

    store: str
    producer: str = ""
    batch_id: str = ""
    checkpoint: str = ""


_READ = (
    "store",
    "subject",
    "where",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "lake",
)
_WRITE = ("store", "producer", "batchId")
# Options that Spark itself adds.
_OF_SPARK = {"path", "checkpointlocation", "querynameforstreaming", "queryname"}


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a reader. By default a stream starts at the latest entry, as Kafka's does."""
    options = known_options(given, _READ)
    pattern, where = options.get("subject", ""), options.get("where", "")
    Pattern(pattern)
    compile_predicate(where)
    if streaming and "endingoffsets" in options:
        raise PipelineInput("endingOffsets is for batch reads; a stream has no end. Use trigger(availableNow=True).")
    if not streaming and "maxoffsetspertrigger" in options:
        raise PipelineInput("maxOffsetsPerTrigger is for streams; a batch read takes endingOffsets.")
    starting = _offset(options, "startingOffsets", "latest" if streaming else "earliest")
    ending = _offset(options, "endingOffsets", "latest")
    lake = options.get("lake", "")
    if lake:
        # The database resolves a time among its own entries only; a predicate also works on the archive.
        if isinstance(starting, dt.datetime):
            where, starting = _and(f"ts_ms >= {_ms(starting)}", where), "earliest"
        if isinstance(ending, dt.datetime):
            where, ending = _and(f"ts_ms < {_ms(ending)}", where), "latest"
    return ReadOptions(
        store=resolve_store(options.get("store", "")),
        subject=pattern,
        where=where,
        starting=starting,
        ending=ending,
        max_per_trigger=count_option(options, "maxOffsetsPerTrigger", 0),
        min_partitions=count_option(options, "minPartitions", 1),
        fail_on_data_loss=flag_option(options, "failOnDataLoss", True),
        lake=resolve_url(lake) if lake else "",
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer."""
    options = known_options(given, _WRITE)
    return WriteOptions(
        store=resolve_store(options.get("store", "")),
        producer=options.get("producer", ""),
        batch_id=options.get("batchid", ""),
        checkpoint={name.lower(): value for name, value in given.items()}.get("checkpointlocation", ""),
    )


def shown(url: str) -> str:
    """Return a URL without its password, for messages."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:…@", url)


def resolve_store(url: str) -> str:
    """Return a store URL that is valid in every process of a cluster: absolute paths. Raises PipelineInput."""
    if not url:
        raise PipelineInput('The option store is missing. Example: .option("store", "sqlite:tape.db")')
    database = journal_database(url)
    return f"sqlite:{database.path.resolve()}" if isinstance(database, SqliteDatabase) else url


def journal_database(url: str) -> Database:
    """Open the database of a store URL. Raises PipelineInput if it does not exist: Spark never creates one."""
    if is_memory(url):
        raise PipelineInput(
            f"The store {mask_urls(url)!r} is in the memory of one process; Spark reads from others."
            " Use sqlite: or postgres:."
        )
    database = open_database(url)
    if isinstance(database, SqliteDatabase) and not Path(database.path).is_file():
        raise PipelineInput(
            f"There is no journal at {database.path}{describe_source(url)}."
            f" Start one with: tape serve --store {mask_urls(url)}"
        )
    return database


def known_options(given: Mapping[str, str], known: tuple[str, ...], form: str = "tape") -> dict[str, str]:
    """Return the options by lower-case name. Raises PipelineInput, which suggests the nearest known option."""
    by_lower = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in by_lower and name.lower() not in _OF_SPARK:
            close = get_close_matches(name.lower(), by_lower, n=1)
            hint = f"Did you mean {by_lower[close[0]]}?" if close else f"Known are {', '.join(known)}."
            raise PipelineInput(f'format("{form}") has no option {name!r} here. {hint}')
    return {name.lower(): value for name, value in given.items()}


def _offset(options: Mapping[str, str], name: str, default: Offset) -> Offset:
    text = options.get(name.lower())
    if text is None:
        return default
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise PipelineInput(
            f"{name} is {text!r}; use earliest, latest, a global_seq, or a time such as 2026-01-31T12:00Z."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _and(condition: str, where: str) -> str:
    return f"{condition} && ({where})" if where.strip() else condition


def _ms(moment: dt.datetime) -> int:
    return int(moment.timestamp() * 1000)


def count_option(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise PipelineInput(f"{name} is {text!r}; it must be a whole number of at least 1.")
    return int(text)


def flag_option(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise PipelineInput(f"{name} is {text!r}; it must be true or false.")
    return text == "true"

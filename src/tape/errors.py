"""Every error that Tape raises: one tree, a stable code each, and what to do next in the message.

`status` is the canonical gRPC status name; the gRPC and HTTP services of the server translate it.
`retryable` says whether the same call may succeed later without being changed.
`docs/errors.md` has one paragraph per code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class TapeError(Exception):
    """Anything that Tape refuses or fails to do."""

    code: str = "TAPE-1000"
    status: str = "INTERNAL"
    retryable: ClassVar[bool] = False
    # Of an append whose outcome is not known: `append(…, request_id=error.request_id)` appends at most once.
    request_id: str = ""


# ── 10xx: the input is wrong; change it ──────────────────────────────────────────────────────────


class InvalidInput(TapeError):
    """A field has a value that Tape cannot accept."""

    code = "TAPE-1001"
    status = "INVALID_ARGUMENT"


class InvalidSubject(InvalidInput):
    """A subject does not follow `/tape/<kind>/<verb>/<dim>…`."""

    code = "TAPE-1002"


class InvalidPattern(InvalidInput):
    """A subject pattern is malformed."""

    code = "TAPE-1003"


class InvalidJson(InvalidInput):
    """A payload is not JSON."""

    code = "TAPE-1004"


class PayloadTooLarge(InvalidInput):
    """A payload is larger than the server takes."""

    code = "TAPE-1005"


class InvalidPredicate(InvalidInput):
    """A CEL text does not compile: the message shows the line and column and what was expected."""

    code = "TAPE-1006"

    def __init__(self, reason: str, text: str = "", offset: int = 0) -> None:
        before = text[:offset]
        self.reason = reason
        self.text = text
        self.offset = offset
        self.line = before.count("\n") + 1
        self.column = offset - (before.rfind("\n") + 1) + 1
        super().__init__(f"line {self.line}, column {self.column}: {reason}{_excerpt(text, offset)}")

    def __reduce__(self) -> tuple[type[InvalidPredicate], tuple[str, str, int]]:
        return InvalidPredicate, (self.reason, self.text, self.offset)


# ── 11xx: the cursor points outside the journal ──────────────────────────────────────────────────


class CursorError(TapeError):
    """A cursor that the journal cannot serve."""

    code = "TAPE-1100"
    status = "OUT_OF_RANGE"


class CursorBeyondHead(CursorError):
    """The cursor is ahead of the newest entry: it belongs to another journal."""

    code = "TAPE-1101"

    def __init__(self, cursor: int, head: int) -> None:
        super().__init__(
            f"from_global_seq {cursor} is beyond the head of this journal ({head}): it was taken from another journal, "
            "or the database was just replaced by an older state and the server has not named the lost range yet. Try "
            f"again in a few seconds; if the error stays, use {head} to begin now, or 0 to begin with the oldest entry."
        )
        self.cursor = cursor
        self.head = head


class CursorExpired(CursorError):
    """The cursor points to entries that retention has removed."""

    code = "TAPE-1102"

    def __init__(self, cursor: int, oldest: int) -> None:
        super().__init__(
            f"from_global_seq {cursor} is below the oldest retained entry ({oldest}): entries {cursor + 1} to "
            f"{oldest - 1} were pruned. Use 0 to begin with the oldest entry that is left."
        )
        self.cursor = cursor
        self.oldest = oldest


class EntryDamaged(TapeError):
    """An entry is not what was written, cannot be read, or is missing without a reason; `first` to `last` name it."""

    code = "TAPE-1103"
    status = "DATA_LOSS"
    first: int = 0
    last: int = 0
    detail: str = ""

    def __init__(self, first: int, last: int, detail: str) -> None:
        which = f"Entry {first} is" if first == last else f"Entries {first} to {last} are"
        super().__init__(
            f"{which} damaged: {detail}. Resume after {last} to leave out what is damaged, or read with skip_gaps."
            " `tape verify` names all damage."
        )
        self.first = first
        self.last = last
        self.detail = detail


class CursorDiverged(CursorError):
    """The cursor points to entries that the database lost; `first` to `last` is the range without entries."""

    code = "TAPE-1104"
    status = "DATA_LOSS"
    cursor: int = 0
    first: int = 0
    last: int = 0

    def __init__(self, cursor: int, first: int, last: int) -> None:
        super().__init__(
            f"from_global_seq {cursor}: entries {first} to {last} were lost by the database (see journal.diverged at"
            f" {last + 1}). Resume after {last}, or read with skip_gaps; what you have read of them is nowhere else."
        )
        self.cursor = cursor
        self.first = first
        self.last = last


# ── 12xx: it is not there ────────────────────────────────────────────────────────────────────────


class NotFound(TapeError):
    """Nothing has that name."""

    code = "TAPE-1200"
    status = "NOT_FOUND"


# ── 13xx: conflicts with another writer ──────────────────────────────────────────────────────────


class VersionConflict(TapeError):
    """A compare-and-set found another version than the caller expected."""

    code = "TAPE-1301"
    status = "ABORTED"


class IllegalTransition(TapeError):
    """Something is in a state from which it cannot go where it was asked to."""

    code = "TAPE-1302"
    status = "FAILED_PRECONDITION"


class LeaseHeld(TapeError):
    """Another owner holds the lease."""

    code = "TAPE-1303"
    status = "FAILED_PRECONDITION"
    retryable = True


class ScopeDenied(TapeError):
    """The run was not granted the scope that an effect needs."""

    code = "TAPE-1304"
    status = "PERMISSION_DENIED"
    scope = ""
    tool = ""
    granted: Sequence[str] = ()

    def __init__(
        self, detail: str = "", *, scope: str = "", tool: str = "", granted: Sequence[str] | None = None
    ) -> None:
        held = ", ".join(granted or ()) or "none"
        super().__init__(detail or f'policy violation: {tool or "the effect"} needs scope "{scope}" (granted: {held}).')
        self.scope = scope
        self.tool = tool
        self.granted = granted or ()


# ── 14xx: too much at once ───────────────────────────────────────────────────────────────────────


class Overloaded(TapeError):
    """The queue of writes is full; nothing was written. Slow down and try again."""

    code = "TAPE-1401"
    status = "RESOURCE_EXHAUSTED"
    retryable = True


class PredicateOverBudget(TapeError):
    """The predicate of a stream or a query uses more CPU than its tenant's budget; the stream has ended."""

    code = "TAPE-1402"
    status = "RESOURCE_EXHAUSTED"


class TenantLimitReached(Overloaded):
    """A tenant or user has as many calls, bytes, appends or streams as it may have. Try again after `retry_after_s`."""

    code = "TAPE-1403"
    retry_after_s: float = 1.0

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


# ── 15xx: the database underneath ────────────────────────────────────────────────────────────────


class StoreError(TapeError):
    """The database refused or failed."""

    code = "TAPE-1500"


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    code = "TAPE-1501"
    status = "UNAVAILABLE"
    retryable = True


class StoreFull(StoreError):
    """The disk of the database is full. Free disk space; no restart is needed."""

    code = "TAPE-1502"
    status = "UNAVAILABLE"
    retryable = True


class StoreBusy(StoreError):
    """Another process held the database's write lock for too long."""

    code = "TAPE-1503"
    status = "UNAVAILABLE"
    retryable = True


class StoreDamaged(StoreError):
    """The database file is not what was written. `tape verify` says which entries are affected."""

    code = "TAPE-1504"
    status = "DATA_LOSS"


class BackendCrashed(StoreDamaged):
    """Reading a damaged page ends PostgreSQL's process: the connection was lost twice at the same statement."""

    code = "TAPE-1306"


class BackendStuck(StoreDamaged):
    """PostgreSQL's process searches an index without an end and cannot be interrupted: its pages point in a circle."""

    code = "TAPE-1307"


class UnknownStore(StoreError):
    """The store URL names no database that Tape knows."""

    code = "TAPE-1505"
    status = "INVALID_ARGUMENT"


class SchemaOutdated(StoreError):
    """The database lacks migrations that this version needs."""

    code = "TAPE-1506"
    status = "FAILED_PRECONDITION"


class StoreNotFound(StoreError):
    """There is no database where the store URL points to, or it has no tables of Tape. Reading creates none."""

    code = "TAPE-1508"
    status = "NOT_FOUND"


class SchemaTooNew(StoreError):
    """The database was migrated by a newer version of Tape."""

    code = "TAPE-1507"
    status = "FAILED_PRECONDITION"


class StoreReplaced(StoreError):
    """The database under a running server has another journal, or none. Nothing is written to it."""

    code = "TAPE-1509"
    status = "UNAVAILABLE"
    retryable = True


class TailLost(StoreError):
    """The database lacks entries that were acknowledged, `first` to `last`; nothing is written before a decision."""

    code = "TAPE-1511"
    status = "DATA_LOSS"

    def __init__(self, message: str, first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


# ── 16xx: the server and the way to it ───────────────────────────────────────────────────────────


class ServerStopping(TapeError):
    """The server is shutting down; resume with another server, or when this one is back."""

    code = "TAPE-1601"
    status = "UNAVAILABLE"
    retryable = True


class ServerUnreachable(TapeError):
    """The client cannot reach the server."""

    code = "TAPE-1602"
    status = "UNAVAILABLE"
    retryable = True


class RpcFailed(TapeError):
    """The server answered with a gRPC status and no error code of Tape; `grpc_status` is its name."""

    code = "TAPE-1603"
    status = "UNKNOWN"
    grpc_status: str = "UNKNOWN"

    def __init__(self, message: str, grpc_status: str = "UNKNOWN") -> None:
        super().__init__(message)
        self.grpc_status = grpc_status


# ── 17xx: the installation and its settings ──────────────────────────────────────────────────────


class MissingExtra(TapeError):
    """A library of an optional extra is not installed."""

    code = "TAPE-1701"
    status = "FAILED_PRECONDITION"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs libraries that are not installed: pip install 'tape[{extra}]'")


class InvalidConfig(TapeError):
    """A flag, a TAPE_* variable or tape.toml has a value that makes no sense."""

    code = "TAPE-1702"
    status = "INVALID_ARGUMENT"


# ── 175x: raised in the code of a run ────────────────────────────────────────────────────────────


class NotInRun(TapeError):
    """Something that only makes sense within a run was called outside of one."""

    code = "TAPE-1750"
    status = "FAILED_PRECONDITION"


class EffectFailed(TapeError):
    """An effect failed, now or in an earlier drive of the run: both raise this, so that both go the same way."""

    code = "TAPE-1751"
    status = "FAILED_PRECONDITION"

    def __init__(self, tool: str, error_type: str = "", error_message: str = "") -> None:
        super().__init__(f"The effect {tool!r} failed: {error_type}: {error_message}".rstrip(": "))
        self.tool = tool
        self.error_type = error_type
        self.error_message = error_message


class RunInterrupted(BaseException):
    """A run cannot go on now. Nothing is lost: it is carried on later, or not at all if it was cancelled.

    Not an `Exception`: `except Exception` in an agent or a framework must not swallow it, nor does `except TapeError`
    see it.
    """

    code: str = "TAPE-1752"
    status: str = "FAILED_PRECONDITION"
    retryable: ClassVar[bool] = False


class RunParked(RunInterrupted):
    """A run waits at a gate; the signal it waits for makes it runnable again."""

    code = "TAPE-1753"


class RunCancelled(RunInterrupted):
    """A run was cancelled: it begins nothing new."""

    code = "TAPE-1754"


class EffectUnknown(RunInterrupted):
    """It is not known whether an effect happened. It is not repeated; the run continues once it is reconciled."""

    code = "TAPE-1755"


class RunEnded(RunInterrupted):
    """A run that is over was to be carried on; there is nothing left to do."""

    code = "TAPE-1756"


class RunFenced(RunInterrupted):
    """Another process has taken the lease of the run: this one may do nothing more for it."""

    code = "TAPE-2420"


class RunWaiting(RunParked):
    """A parked run was to decide, begin an effect or end: the server refuses it until the run is resumed."""

    code = "TAPE-2421"


class RunOver(RunEnded):
    """An ended run was to decide or to begin an effect: the server refuses it."""

    code = "TAPE-2422"


class RunRefused(IllegalTransition):
    """A server refuses a call of a run that cannot act. Clients raise `interruption`, whose code is sent."""

    code = "TAPE-2423"

    def __init__(self, interruption: RunInterrupted) -> None:
        super().__init__(str(interruption))
        self.interruption = interruption
        self.code = interruption.code
        self.status = interruption.status


class RunFailed(TapeError):
    """A run has no result: it failed, was cancelled, or is stuck."""

    code = "TAPE-2424"
    status = "FAILED_PRECONDITION"

    def __init__(self, run_id: str, ended_as: str = "", error_type: str = "", error_message: str = "") -> None:
        reason = f"{error_type}: {error_message}".strip(": ")
        super().__init__(f"The run {run_id!r} is {ended_as}" + (f": {reason}" if reason else "."))
        self.run_id = run_id
        self.ended_as = ended_as
        self.error_type = error_type
        self.error_message = error_message


class RunNotEnded(TapeError):
    """The result of a run was asked for that has not ended."""

    code = "TAPE-2425"
    status = "FAILED_PRECONDITION"


class RunResultRejected(TapeError):
    """The result of a run cannot be recorded: it is not JSON, or larger than a payload may be. The run stays open."""

    code = "TAPE-2426"
    status = "INVALID_ARGUMENT"


AnyTapeError = TapeError | RunInterrupted
"""Every error of Tape: what it refuses or fails to do, and what interrupts a run."""


class AckLost(TapeError):
    """Raised by a tool that acted and did not hear the answer: its effect becomes UNKNOWN, not FAILED."""

    code = "TAPE-1757"
    status = "UNKNOWN"


class BudgetExceeded(TapeError):
    """What a run is about to spend does not fit into its budget."""

    code = "TAPE-1758"
    status = "RESOURCE_EXHAUSTED"


class ResultNotRecorded(TapeError):
    """An effect happened, and its result cannot be written as JSON."""

    code = "TAPE-1759"


# ── 176x: agents of google-adk ───────────────────────────────────────────────────────────────────


class MissingIdentity(TapeError):
    """A run is to say for whom it acts, and does not."""

    code = "TAPE-1760"
    status = "FAILED_PRECONDITION"

    def __init__(self, missing: Sequence[str]) -> None:
        names = ", ".join(f"{name} (TAPE_{name.upper()})" for name in missing)
        super().__init__(f"The identity of the run lacks {names}. Set it in the environment or in RunIdentity(...).")
        self.missing = list(missing)


class RequestConflict(TapeError):
    """A request id was used before, for other content."""

    code = "TAPE-1762"
    status = "ALREADY_EXISTS"


class SessionExists(TapeError):
    """A session was to be created, and one with that id is there already."""

    code = "TAPE-1761"
    status = "ALREADY_EXISTS"


# ── 177x: what brings runs to their end ──────────────────────────────────────────────────────────


class InvalidConnector(TapeError):
    """A connector cannot be used, or answered something that no connector may answer."""

    code = "TAPE-1770"
    status = "INVALID_ARGUMENT"


# ── 195x: the tape in your process ───────────────────────────────────────────────────────────────


class InvalidEvent(InvalidInput):
    """Something that a SessionTape cannot record."""

    code = "TAPE-1951"


class SeqTaken(InvalidInput):
    """An entry brings a seq that lies before the head of the tape."""

    code = "TAPE-1952"


class SessionCursorExpired(CursorExpired):
    """The cursor points to entries that a SessionTape has let go (`max_events`)."""

    code = "TAPE-1953"

    def __init__(self, cursor: int, watermark: int) -> None:
        TapeError.__init__(
            self,
            f"seq {cursor} is below the oldest entry that this tape still has ({watermark}). Read from {watermark},"
            " pass skip_expired=True to go on there by itself, or raise max_events.",
        )
        self.cursor = cursor
        self.oldest = watermark
        self.watermark = watermark


class TapeFileInUse(TapeError):
    """Another tape already writes to the file: one file, one writer."""

    code = "TAPE-1954"
    status = "FAILED_PRECONDITION"


class TapeFileUnusable(TapeError):
    """The file of a tape cannot be opened, or is not one."""

    code = "TAPE-1955"
    status = "FAILED_PRECONDITION"


class MirrorBehind(TapeError):
    """A backend that sends in the background has as much waiting as it may hold."""

    code = "TAPE-1956"
    status = "RESOURCE_EXHAUSTED"
    retryable = True


class InvalidSnapshot(InvalidInput):
    """A file is not a snapshot of a session that this version can read."""

    code = "TAPE-1957"


class UnknownName(NotFound, KeyError):
    """No branch or signal has that name."""

    code = "TAPE-1958"

    __str__ = Exception.__str__  # KeyError would show the sentence in quotes


class InvalidRule(InvalidInput, ValueError):
    """A rule or a predicate of a reactor is incomplete or cannot work."""

    code = "TAPE-1959"


class InvalidSessionValue(InvalidInput, ValueError):
    """A parameter of a session's branches or cached effects has a value that cannot be used."""

    code = "TAPE-2470"


# ── 1975: sinks and the relay ────────────────────────────────────────────────────────────────────


class SinkError(TapeError):
    """An entry could not be handed to a sink."""

    code = "TAPE-1975"


class SinkRejected(SinkError):
    """The target of a sink will never take an entry as it is."""

    code = "TAPE-1976"
    status = "FAILED_PRECONDITION"


class SinkUnavailable(SinkError):
    """The target of a sink cannot take an entry now; `retry_after_s` is how long it asks to wait."""

    code = "TAPE-1977"
    status = "UNAVAILABLE"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SinkHeldBack(SinkError):
    """An entry was not sent because one before it in its run failed."""

    code = "TAPE-1978"
    status = "UNAVAILABLE"
    retryable = True

    def __init__(self, entry: Any, failed: Any) -> None:
        super().__init__(f"{entry.run_id}/{entry.seq} waits for {failed.run_id}/{failed.seq}, which failed.")


class RefusedAddress(SinkError):
    """The receiver has an address outside the public internet."""

    code = "TAPE-1979"
    status = "PERMISSION_DENIED"


class SinkClosed(SinkError):
    """The sink was closed while an entry was on its way."""

    code = "TAPE-1980"
    status = "CANCELLED"
    retryable = True


class InvalidCursorFile(TapeError):
    """The cursor file of a relay holds no cursor."""

    code = "TAPE-1981"
    status = "DATA_LOSS"


class CursorFileInUse(TapeError):
    """Another relay already uses the cursor file."""

    code = "TAPE-1982"
    status = "FAILED_PRECONDITION"


# ── 185x: HTTP service ───────────────────────────────────────────────────────────────────────────


class InvalidRequest(InvalidInput):
    """A header, a query parameter or a body of an HTTP request makes no sense."""

    code = "TAPE-1850"


class RequestTooLarge(InvalidInput):
    """The body of an HTTP request is larger than the route takes."""

    code = "TAPE-1851"


class TooManySubscribers(TapeError):
    """A session has as many open streams as it may have."""

    code = "TAPE-1852"
    status = "RESOURCE_EXHAUSTED"
    retryable = True


class HttpFailed(TapeError):
    """The server answered an HTTP request with an error; the message has its status and code."""

    code = "TAPE-1853"
    status = "UNKNOWN"


# ── 190x: who calls, and what must not be seen ───────────────────────────────────────────────────


class IdentityRequired(TapeError):
    """The caller did not say who it is: no token, or one without tenant, user and session."""

    code = "TAPE-1900"
    status = "UNAUTHENTICATED"


class TokenRejected(TapeError):
    """The token or service key does not prove who calls. `reason` is one stable word; a detail is for its issuer.

    `key_id` names a service key that has ended, if the caller has its secret.
    """

    code = "TAPE-1901"
    status = "UNAUTHENTICATED"

    def __init__(self, reason: str, detail: str = "", *, credential: str = "jwt", key_id: str = "") -> None:
        super().__init__(f"{credential} rejected: {reason}" + (f" ({detail})" if detail else ""))
        self.reason = reason
        self.key_id = key_id


class CertificateRejected(TokenRejected):
    """The client certificate gives the caller no tenant and no scopes. `reason` is one stable word."""

    code = "TAPE-1920"

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy, credential="client certificate")


class ScopeRequired(TapeError):
    """The caller's token lacks the scope that this needs."""

    code = "TAPE-1902"
    status = "PERMISSION_DENIED"


class SessionOutOfReach(TapeError):
    """The caller named a session that its token may not use."""

    code = "TAPE-1903"
    status = "PERMISSION_DENIED"


class ReservedKind(InvalidInput):
    """A client tried to append an entry of a kind that only Tape itself writes."""

    code = "TAPE-1904"
    status = "PERMISSION_DENIED"


class SubjectNotGranted(ScopeRequired):
    """The caller's token or key has grants, and they do not include this subject."""

    code = "TAPE-1908"


class KeyExists(TapeError):
    """A service key was to be created, and the tenant has one with that name."""

    code = "TAPE-1905"
    status = "ALREADY_EXISTS"


class TooManyKeys(TapeError):
    """The tenant or the database has as many service keys or revoked tokens as it may have."""

    code = "TAPE-1906"
    status = "FAILED_PRECONDITION"


class RedactionFailed(InvalidInput):
    """A payload could not be searched for secrets, so it was not stored."""

    code = "TAPE-1910"


class ArtifactStoreFailed(TapeError):
    """The object store for large fields refused or failed; nothing was appended."""

    code = "TAPE-1911"
    status = "UNAVAILABLE"


# ── 18xx: reactions and tasks ────────────────────────────────────────────────────────────────────


class InvalidReaction(InvalidInput):
    """A reaction cannot be registered as it was given."""

    code = "TAPE-1801"


class TaskNotHeld(TapeError):
    """The caller does not hold the lease of the task: the lease expired, or the task was settled."""

    code = "TAPE-1802"
    status = "FAILED_PRECONDITION"


class ShardsApart(TapeError):
    """The number of shards cannot change while the shards of a reaction have different cursors."""

    code = "TAPE-1803"
    status = "FAILED_PRECONDITION"
    retryable = True


class NothingToDispatch(TapeError):
    """No reaction is declared in this process, so there is nothing to run."""

    code = "TAPE-1830"
    status = "FAILED_PRECONDITION"


class DuplicateReaction(InvalidInput):
    """Two functions of one process are declared under the same reaction id."""

    code = "TAPE-1831"


class NeverRetry(TapeError):
    """A handler raises this to say that a task can never succeed: it becomes a dead letter at once."""

    code = "TAPE-1832"
    status = "FAILED_PRECONDITION"


class HandlerTimedOut(TapeError):
    """A handler took longer than its reaction's `timeout_s`; the task is tried again."""

    code = "TAPE-1833"
    status = "DEADLINE_EXCEEDED"
    retryable = True


class InvalidTarget(InvalidInput):
    """A publish target is not one that a bridge can serve."""

    code = "TAPE-1834"


class PublishFailed(TapeError):
    """A broker did not accept a message; the task is retried."""

    code = "TAPE-1835"
    status = "UNAVAILABLE"
    retryable = True


class PublishRejected(NeverRetry):
    """A broker will never accept a message as it is; the task becomes a dead letter without a retry."""

    code = "TAPE-1836"
    status = "FAILED_PRECONDITION"


# ── 20xx: the data pipeline ──────────────────────────────────────────────────────────────────────


class PipelineError(TapeError):
    """The data pipeline cannot do what it was asked to."""

    code = "TAPE-2000"
    status = "FAILED_PRECONDITION"


class PipelineInput(PipelineError):
    """An option, a column or a row that the pipeline cannot take."""

    code = "TAPE-2001"
    status = "INVALID_ARGUMENT"


class JournalDataLost(PipelineError):
    """Entries that a reader was going to read are gone."""

    code = "TAPE-2002"
    status = "DATA_LOSS"


class BatchOutOfOrder(PipelineError):
    """A batch comes from another stream than the one that its producer's name belongs to."""

    code = "TAPE-2003"


class JavaMissing(PipelineError):
    """There is no Java that Spark can use."""

    code = "TAPE-2004"


class ArchiveDamaged(PipelineError):
    """A file of the archive is missing or is not what was written."""

    code = "TAPE-2005"
    status = "DATA_LOSS"


class ArchiveBeyondRepair(ArchiveDamaged):
    """What is damaged in the archive cannot be rebuilt from the journal."""

    code = "TAPE-2020"


class ArchiveBusy(PipelineError):
    """Another process changed the archive at the same moment; this change was not made."""

    code = "TAPE-2021"
    status = "ABORTED"
    retryable = True


class ArchiveUnreachable(PipelineError):
    """The folder or object store that holds the archive does not answer."""

    code = "TAPE-2022"
    status = "UNAVAILABLE"
    retryable = True


class CheckpointRefused(PipelineError):
    """A job was started under a name whose checkpoint is of other options or of another version."""

    code = "TAPE-2060"


class ReactionChanged(PipelineError):
    """A reaction was changed or removed while its history was being matched."""

    code = "TAPE-2061"


class FanoutBlocked(PipelineError):
    """A sink does not take an entry, and the policy is to wait for it."""

    code = "TAPE-2062"


# ── 21xx: documents, playbooks and their executions ──────────────────────────────────────────────


class Problem(NamedTuple):
    """One thing that is wrong with a document: where it stands, and what to do about it."""

    path: str
    line: int
    message: str
    value: Any = None

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.path)))
        shown = _shown(self.value)
        is_quoted = (
            self.value in (None, "") or (shown if isinstance(self.value, str) else f"got {shown}") in self.message
        )
        # A message goes on from the value ("7 must be a text"), or is a sentence that names the field itself.
        names_itself = f"'{self.path.removeprefix('spec.')}" in self.message
        before = "" if is_quoted or names_itself else f"{shown} "
        after = f", got {shown}" if names_itself and not is_quoted and self.message[-1] not in "?)" else ""
        end = "" if self.message.endswith(("?", ".")) else "."
        return f"{where}{': ' * bool(where)}{before}{self.message}{after}{end}"


class InvalidDocument(InvalidInput):
    """A document of the catalog is wrong; `problems` has everything that is."""

    code = "TAPE-2100"

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        # The client rebuilds errors from their message alone.
        self.problems = [] if isinstance(problems, str) else list(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(map(str, problems)))


class ResourceNotFound(NotFound):
    """The catalog has no document of that path, or not in that version."""

    code = "TAPE-2101"


class PlaybookNotFound(ResourceNotFound):
    """The catalog has no playbook of that path."""

    code = "TAPE-2103"


class DocumentTooLarge(InvalidInput):
    """A document is larger than the catalog accepts."""

    code = "TAPE-2104"


class InvalidPayload(InvalidInput):
    """A payload does not have what the playbook's inputs ask for; the message names each of them."""

    code = "TAPE-2102"


class PlaybookError(TapeError):
    """A playbook cannot go on."""

    code = "TAPE-2110"
    status = "FAILED_PRECONDITION"


class TemplateFailed(PlaybookError):
    """An expression of a playbook has no value for what it was given."""

    code = "TAPE-2111"


class StepFailed(PlaybookError):
    """A step failed for good: its last attempt raised `error_type` with `error_message`."""

    code = "TAPE-2112"

    def __init__(self, step: str, error_type: str = "", error_message: str = "") -> None:
        self.step = step
        self.error_type = error_type
        self.error_message = error_message
        super().__init__(f"step {step}: {error_type}: {error_message}" if error_type else step)


class StepTimedOut(PlaybookError):
    """A step took longer than its `timeout_s`."""

    code = "TAPE-2113"
    status = "DEADLINE_EXCEEDED"


class StepRefused(PlaybookError):
    """A tool cannot do what the step asks for, and trying again would not help.

    `is_answer`: the service was reached and refused the request.
    """

    code = "TAPE-2114"
    is_answer = False


class ToolFailed(PlaybookError):
    """A tool failed with an error that may pass: its service is unavailable or busy."""

    code = "TAPE-2115"
    status = "UNAVAILABLE"


class DownstreamUnavailable(TapeError):
    """A step found the downstream of its subscription unavailable: the run waits for it and is resumed."""

    code = "TAPE-2116"
    status = "UNAVAILABLE"

    def __init__(self, downstream: str, reason: str = "") -> None:
        super().__init__(f"the downstream {downstream!r} is not available: {reason}" if reason else downstream)
        self.downstream = downstream


class InvalidBatchResults(PlaybookError):
    """The output of a playbook that ran for a batch of messages does not say what became of each of them."""

    code = "TAPE-2179"


class MessageRetry(TapeError):
    """A playbook wants to see a message of a batch again: its task is retried."""

    code = "TAPE-2180"
    status = "UNAVAILABLE"


# ── 2175: sources of subscriptions, and what becomes of their messages ───────────────────────────


class SourceError(TapeError):
    """A source of messages cannot be read."""

    code = "TAPE-2175"
    status = "FAILED_PRECONDITION"


class SourceMisconfigured(SourceError):
    """The settings of a source lack something, or have something that it cannot take."""

    code = "TAPE-2176"
    status = "INVALID_ARGUMENT"


class SourceMissing(SourceError):
    """The stream, consumer, topic or subscription is not at the broker."""

    code = "TAPE-2177"
    status = "NOT_FOUND"


class SourceUnavailable(SourceError):
    """The broker cannot be reached, or does not answer."""

    code = "TAPE-2178"
    status = "UNAVAILABLE"
    retryable = True


class NotAPlaybook(InvalidInput):
    """The catalog has a document of that path, but it is no playbook."""

    code = "TAPE-2185"


class SubscriptionNotReady(TapeError):
    """A subscription cannot be activated: with its configuration no run could start."""

    code = "TAPE-2186"
    status = "FAILED_PRECONDITION"

    def __init__(self, path: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        listed = " ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))
        super().__init__(
            f'{path} cannot start runs yet: {listed} Activate it with --force ("force": true) to hold its messages'
            " until that is mended."
        )


class SubscriptionHeld(TapeError):
    """A subscription is held: its configuration lets no run start. Its messages wait, and are dispatched later."""

    code = "TAPE-2187"
    status = "UNAVAILABLE"
    retryable = True


# ── 22xx: secrets, and deliveries from outside ───────────────────────────────────────────────────


class WalletError(TapeError):
    """The wallet cannot do what it was asked to."""

    code = "TAPE-2200"
    status = "FAILED_PRECONDITION"


class SecretNotFound(WalletError):
    """The wallet has no secret of that alias."""

    code = "TAPE-2201"
    status = "NOT_FOUND"


class WalletLocked(WalletError):
    """The master key is missing, is not the right one, can be read by others, or may not be used."""

    code = "TAPE-2202"


class SecretDamaged(WalletError):
    """A sealed secret does not open: it was changed, or copied from another row."""

    code = "TAPE-2203"
    status = "DATA_LOSS"


class SecretNotBound(WalletError):
    """A secret was to be sent to a host that it is not bound to."""

    code = "TAPE-2205"
    status = "PERMISSION_DENIED"

    def __init__(self, alias: str, hosts: Sequence[str], bound: Sequence[str]) -> None:
        asked = ", ".join(hosts)
        super().__init__(
            f"The secret {alias!r} is bound to {', '.join(bound)}, and may not be sent to"
            f" {asked or 'a host that the caller does not name'}. If that host is right, bind the secret to it:"
            f" tape wallet set {alias} --host {hosts[0] if hosts else 'HOST:PORT'}"
        )


class KeyServiceUnavailable(WalletError):
    """The service that holds the master key does not answer."""

    code = "TAPE-2204"
    status = "UNAVAILABLE"
    retryable = True


# ── 215x: subscriptions ──────────────────────────────────────────────────────────────────────────


class InvalidCadence(InvalidInput):
    """A cron expression cannot be read, or names a time that never comes."""

    code = "TAPE-2150"


class UnknownSubscription(NotFound):
    """No such subscription is registered, or in the catalog."""

    code = "TAPE-2151"


class NotASubscription(InvalidInput):
    """A document of the catalog is of another kind."""

    code = "TAPE-2152"


class IllegalAction(IllegalTransition):
    """What was asked of a subscription cannot be done in the state that it is in."""

    code = "TAPE-2153"


class UnknownEvent(InvalidInput):
    """An event that Tape does not take from outside."""

    code = "TAPE-2154"


class ApiRefused(HttpFailed):
    """The server refused a request to its `/api`; `http_status` is its answer."""

    code = "TAPE-2155"

    def __init__(self, message: str, http_status: int = 0, error_code: str = "") -> None:
        self.http_status = http_status
        # The code of the server's error, if its answer had one.
        self.error_code = error_code
        super().__init__(message)


class CircuitOpen(TapeError):
    """A delivery is not accepted: its downstream is unavailable, and the subscription has no spool."""

    code = "TAPE-2156"
    status = "UNAVAILABLE"
    retryable = True

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


class InternalTokenUnset(TapeError):
    """The server has no internal token, so endpoints that require that token reject all requests."""

    code = "TAPE-2210"
    status = "UNAVAILABLE"


def _excerpt(text: str, offset: int, width: int = 100) -> str:
    """The line of the text around an offset with a caret below; a long line is cut to what is near."""
    begin = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    line = text[begin : end if end >= 0 else len(text)].replace("\t", " ").rstrip("\r")
    column = offset - begin
    cut = max(column - width // 2, 0)
    shown = ("…" if cut else "") + line[cut : cut + width] + ("…" if len(line) > cut + width else "")
    return f"\n  {shown}\n  {' ' * (column - cut + bool(cut))}^"


def all_errors() -> dict[str, type[AnyTapeError]]:
    """Every error class by its code."""
    found: dict[str, type[AnyTapeError]] = {}
    waiting: list[type[AnyTapeError]] = [TapeError, RunInterrupted]
    while waiting:
        error = waiting.pop()
        found.setdefault(error.code, error)  # not a subclass that a program derived from it
        waiting.extend(error.__subclasses__())
    return dict(sorted(found.items()))


# ── 230x: outgoing HTTP requests ─────────────────────────────────────────────────────────────────


class HttpRequestFailed(TapeError):
    """An outgoing HTTP request has no usable response. `was_sent` is False if nothing of it has left the process."""

    code = "TAPE-2300"
    status = "UNAVAILABLE"
    was_sent: ClassVar[bool] = True


class HttpUnreachable(HttpRequestFailed):
    """No connection to the host could be made, so nothing of the request was sent."""

    code = "TAPE-2301"
    retryable = True
    was_sent = False


class HttpInterrupted(HttpRequestFailed):
    """The connection broke or the time limit passed after the request was sent; the host may have acted on it."""

    code = "TAPE-2302"
    retryable = True


class AddressNotAllowed(HttpRequestFailed):
    """The host resolves to addresses outside the public internet and is not in `http_allow`."""

    code = "TAPE-2303"
    status = "PERMISSION_DENIED"
    was_sent = False

    def __init__(self, host: str, port: int, refused: Mapping[str, str]) -> None:
        addresses = ", ".join(f"{address} ({rule})" for address, rule in sorted(refused.items()))
        shown = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{host} is {addresses}, which is not a public address. To allow it, add {shown}:{port} or its network to"
            f" http_allow: TAPE_HTTP_ALLOW={shown}:{port}, --http-allow or tape.toml."
        )
        self.host = host
        self.port = port
        self.refused = dict(refused)

    def __reduce__(self) -> tuple[type[AddressNotAllowed], tuple[str, int, dict[str, str]]]:
        return AddressNotAllowed, (self.host, self.port, self.refused)


class HttpResponseTooLarge(HttpRequestFailed):
    """The response has more bytes of body or of headers than the request allows."""

    code = "TAPE-2304"
    status = "RESOURCE_EXHAUSTED"


class InvalidHttpRequest(InvalidInput):
    """The URL, the method or a header of an outgoing request cannot be sent."""

    code = "TAPE-2305"


# ── 225x: store and forward ──────────────────────────────────────────────────────────────────────


class DamagedSpoolItem(TapeError):
    """A spooled message is not what was written."""

    code = "TAPE-2250"
    status = "DATA_LOSS"


class SpoolFull(TapeError):
    """A spool has reached its `max_bytes` and takes no more."""

    code = "TAPE-2251"
    status = "RESOURCE_EXHAUSTED"
    retryable = True


class SpoolUnavailable(TapeError):
    """The backend that stores a spool's messages is unavailable."""

    code = "TAPE-2252"
    status = "UNAVAILABLE"
    retryable = True


class InvalidSample(InvalidInput):
    """A saved HTTP request cannot be read, or cannot be signed here."""

    code = "TAPE-2253"


class UnknownDelivery(NotFound):
    """No such delivery was accepted for this subscription."""

    code = "TAPE-2254"


class DeliveryNotKept(TapeError):
    """The message of a delivery is no longer on the journal, so it cannot be sent again."""

    code = "TAPE-2255"
    status = "FAILED_PRECONDITION"


class ExecutionSkipped(TapeError):
    """An execution of a batch was not tried: one before it in its lane failed."""

    code = "TAPE-2280"
    status = "ABORTED"
    retryable = True


# ── 24xx: backup and restore ─────────────────────────────────────────────────────────────────────


class BackupError(TapeError):
    """A backup that cannot be made or restored."""

    code = "TAPE-2400"
    status = "FAILED_PRECONDITION"


class BackupDamaged(BackupError):
    """A file of a backup is missing, is not what was written, or says what no backup of Tape says."""

    code = "TAPE-2401"
    status = "DATA_LOSS"


class BackupTooNew(BackupError):
    """The backup was made by a newer version of Tape."""

    code = "TAPE-2402"


class BackupLocationFailed(BackupError):
    """The folder or object store of a backup cannot be read or written."""

    code = "TAPE-2403"
    status = "UNAVAILABLE"
    retryable = True


class BackupBusy(BackupError):
    """Another backup to the same location is running."""

    code = "TAPE-2404"
    status = "UNAVAILABLE"
    retryable = True


class BackupMismatch(BackupError):
    """The location holds something else: the backup of another journal, or files that are no backup."""

    code = "TAPE-2405"


class StoreNotEmpty(BackupError):
    """A backup is restored into an empty store only, and this one has data."""

    code = "TAPE-2406"


class RestoreUnfinished(StoreError):
    """A restore into this store was interrupted: it has no data, and is restored again by the same command."""

    code = "TAPE-2407"
    status = "FAILED_PRECONDITION"


# ── 245x: a store without a server ───────────────────────────────────────────────────────────────


class StoreHeld(StoreError):
    """Another process has the SQLite file open: the message names it."""

    code = "TAPE-2450"
    status = "FAILED_PRECONDITION"


class ForkedClient(TapeError):
    """A client was made before its process forked: the new process has no connection, and makes its own client."""

    code = "TAPE-2451"
    status = "FAILED_PRECONDITION"


class ClientClosed(TapeError):
    """A call was made with a client that `close()` has ended."""

    code = "TAPE-2452"
    status = "FAILED_PRECONDITION"


# ── 243x: gates, timers and schedules ────────────────────────────────────────────────────────────


class GateAnswered(TapeError):
    """A gate has another answer, or its deadline has passed; the message shows the answer, its author and its time."""

    code = "TAPE-2430"
    status = "FAILED_PRECONDITION"


class ScheduleExists(TapeError):
    """A schedule of that name exists with other settings."""

    code = "TAPE-2431"
    status = "ALREADY_EXISTS"


# ── 244x: changed code, forks and replays of runs ─────────────────────────────────────────────────


class RunChanged(RunInterrupted):
    """The code of a run asks for something else than the run has recorded: it is stopped before it acts.

    `recorded` and `asked` are the two sides, `difference` has a line for each field that differs, `file` and `line` are
    where the call is made.
    """

    code = "TAPE-2440"
    recorded = ""
    asked = ""
    difference = ""
    file = ""
    line = 0
    remedy = ""

    def __init__(self, message: str, *, recorded: str = "", asked: str = "", difference: str = "") -> None:
        super().__init__(message)
        self.recorded = recorded
        self.asked = asked
        self.difference = difference

    def __str__(self) -> str:
        facts = [f"recorded: {self.recorded}"] if self.recorded else []
        facts += [f"now:      {self.asked}"] if self.asked else []
        facts += self.difference.splitlines()
        facts += [f"called at {self.file}:{self.line}"] if self.file else []
        return "".join([super().__str__(), *(f"\n  {fact}" for fact in facts), self.remedy and f"\n{self.remedy}"])


class ForkRefused(TapeError):
    """A run cannot be forked there: the outcome of an effect is open, or its steps are not there to be shared."""

    code = "TAPE-2441"
    status = "FAILED_PRECONDITION"


class ReplayEnded(RunInterrupted):
    """A replay has come to the end of what the run has recorded; nothing further is performed."""

    code = "TAPE-2442"


class ReplayDiverged(TapeError):
    """Today's code does something else than a run has recorded."""

    code = "TAPE-2443"
    status = "FAILED_PRECONDITION"


# ── 246x: agent frameworks ───────────────────────────────────────────────────────────────────────


class CheckpointDamaged(TapeError):
    """The content of a checkpoint of LangGraph is not what was written, or was deleted."""

    code = "TAPE-2460"
    status = "DATA_LOSS"


# ── 229x: workers ────────────────────────────────────────────────────────────────────────────────


class NotServed(RpcFailed):
    """The server does not know the call at all: it is older than its client."""

    code = "TAPE-2290"
    status = "UNIMPLEMENTED"


# ── 227x: sources that are read by offset ────────────────────────────────────────────────────────


class MessagesLost(TapeError):
    """Messages were removed from their source before they were read."""

    code = "TAPE-2270"
    status = "DATA_LOSS"


class SourceReplaced(TapeError):
    """A topic or stream ends before what was read of it: it is not the one that was read."""

    code = "TAPE-2271"
    status = "DATA_LOSS"


class OrderNotKept(TapeError):
    """The order that a subscription asks for cannot be kept with its source."""

    code = "TAPE-2272"
    status = "FAILED_PRECONDITION"


class DrainedByServer(TapeError):
    """A scheduled subscription is active: the server drains it, and a second process must not."""

    code = "TAPE-2273"
    status = "FAILED_PRECONDITION"


class NotDeployable(TapeError):
    """A subscription cannot run on the platform that manifests were asked for."""

    code = "TAPE-2274"
    status = "FAILED_PRECONDITION"

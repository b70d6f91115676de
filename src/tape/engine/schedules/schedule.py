"""A schedule: when it begins runs, which, and what it has done."""

from __future__ import annotations

import hashlib
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from tape.engine.ledgers.run_record import PLAYBOOKS
from tape.errors import InvalidInput
from tape.model.cron import Cron
from tape.model.entry import check_id
from tape.store.records import Record

OVERLAPS = ("skip", "buffer_one", "allow", "cancel_other")
DEFAULT_CATCH_UP_MS = 3_600_000
MAX_CATCH_UP_MS = 366 * 86_400_000
MAX_JITTER_MS = 86_400_000
MAX_INPUT_BYTES = 16 << 10
MAX_CRON_CHARS = 200


class Schedule(Record, frozen=True):
    """A row of tape_schedules. `nominal_ms` is the next time of the cadence, `due_ms` that time with jitter."""

    tenant: str
    name: str
    cron: str
    time_zone: str = "UTC"
    overlap: str = "skip"
    catch_up_ms: int = DEFAULT_CATCH_UP_MS
    jitter_ms: int = 0
    # A run of an app, or the execution of a playbook: one of both is set.
    app_name: str = ""
    user_id: str = ""
    session_id: str = ""
    playbook: str = ""
    input_json: str = ""
    paused: bool = False
    created_at_ms: int = 0
    created_by: str = ""
    planned_at_ms: int = 0
    nominal_ms: int = 0
    due_ms: int = 0
    # The time of an occurrence that waits for the run before it; 0 if none does.
    buffered_ms: int = 0
    last_nominal_ms: int = 0
    last_fired_at_ms: int = 0
    last_run_id: str = ""
    last_error: str = ""
    begun: int = 0
    skipped: int = 0
    missed: int = 0

    @property
    def zone(self) -> tzinfo:
        """Its time zone."""
        return UTC if self.time_zone == "UTC" else ZoneInfo(self.time_zone)

    def next_nominal_ms(self, after_ms: int) -> int:
        """The first time of the cadence after a time."""
        return Cron.parse(self.cron).next_ms(after_ms, self.zone)

    def with_jitter(self, nominal_ms: int) -> int:
        """A time of the cadence with its jitter: the same each time it is computed."""
        if not self.jitter_ms:
            return nominal_ms
        digest = hashlib.sha256(f"{self.tenant}\0{self.name}\0{nominal_ms}".encode()).digest()
        return nominal_ms + int.from_bytes(digest[:8], "big") % self.jitter_ms

    def planned(self, after_ms: int, now: int) -> Schedule:
        """The schedule with its next time after a time. A paused one has none."""
        if self.paused:
            return msgspec.structs.replace(self, nominal_ms=0, due_ms=0, buffered_ms=0, planned_at_ms=now)
        nominal = self.next_nominal_ms(after_ms)
        return msgspec.structs.replace(
            self, nominal_ms=nominal, due_ms=self.with_jitter(nominal), buffered_ms=0, planned_at_ms=now
        )


SPEC = (
    *("cron", "time_zone", "overlap", "catch_up_ms", "jitter_ms"),
    *("app_name", "user_id", "session_id", "playbook", "input_json"),
)


def check(schedule: Schedule) -> None:
    """Raise InvalidInput with the field that cannot be."""
    if not schedule.name:
        raise InvalidInput("name is empty; a schedule has a name.")
    for name in ("name", "app_name", "user_id", "session_id", "playbook"):
        check_id(name, getattr(schedule, name))
    if len(schedule.cron) > MAX_CRON_CHARS:
        raise InvalidInput(f"cron has {len(schedule.cron)} characters; {MAX_CRON_CHARS} is the limit.")
    Cron.parse(schedule.cron)
    _check_zone(schedule.time_zone)
    if schedule.overlap not in OVERLAPS:
        raise InvalidInput(f"overlap {schedule.overlap[:40]!r} must be one of {', '.join(OVERLAPS)}.")
    for name, most in (("catch_up_ms", MAX_CATCH_UP_MS), ("jitter_ms", MAX_JITTER_MS)):
        if not 0 <= (value := getattr(schedule, name)) <= most:
            raise InvalidInput(f"{name} {value} must lie between 0 and {most}.")
    if bool(schedule.app_name) == bool(schedule.playbook):
        raise InvalidInput("A schedule begins runs of an app_name, or executions of a playbook: name one of them.")
    if schedule.playbook and (schedule.user_id or schedule.session_id):
        raise InvalidInput("user_id and session_id go with app_name; an execution of a playbook has none.")
    if schedule.app_name == PLAYBOOKS:
        raise InvalidInput(f"app_name {PLAYBOOKS!r} is that of executions; name the playbook instead.")
    _check_input(schedule.input_json, is_object=bool(schedule.playbook))


def _check_zone(name: str) -> None:
    try:
        if name != "UTC":
            ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, a path, or not a zone file
        raise InvalidInput(f"time_zone {name[:60]!r} is not a time zone such as Europe/Berlin or UTC.") from None


def _check_input(text: str, *, is_object: bool) -> None:
    if len(text.encode()) > MAX_INPUT_BYTES:
        raise InvalidInput(f"input_json has more than {MAX_INPUT_BYTES} bytes; store the content and name it here.")
    try:
        value = msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"input_json {text[:60]!r} is not JSON: {error}.") from None
    if is_object and not isinstance(value, dict):
        raise InvalidInput(f"input_json {text[:60]!r} must be an object: the payload of the playbook.")

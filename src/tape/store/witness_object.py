"""A witness in an object store: the last acknowledged entry on another machine, at most 1 s old.

Each process writes an object of its own, `<url>/<journal id>/<owner>.json`, in the background, at most once a second
and at least once an hour. Objects that were not written for a day belong to processes that have ended.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from typing import Any

import msgspec

from tape.base import structs
from tape.base.owner import new_owner
from tape.base.url_mask import mask_urls
from tape.errors import InvalidConfig, MissingExtra
from tape.store.tail import Tail

log = logging.getLogger(__name__)

WRITE_S = 1.0
# An object is written again after this long without a commit, so that it does not count as left behind.
RENEW_S = 3600.0
EXPIRY = dt.timedelta(days=1)
MAX_OBJECTS = 1_000
MAX_BYTES = 4_096
_TIMEOUT: dict[str, Any] = {
    "client_options": {"timeout": "5s", "connect_timeout": "5s"},
    "retry_config": {"max_retries": 2, "retry_timeout": dt.timedelta(seconds=10)},
}


class WitnessObject:
    """The witness of this process in an object store; credentials come from the environment."""

    def __init__(self, url: str) -> None:
        self.name = mask_urls(url)
        self.problem = ""
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as missing:  # pragma: no cover - the extra is installed where this is tested
            raise MissingExtra(f"The witness {self.name}", "objects") from missing
        self._obstore = obstore
        self._errors = (BaseError, OSError)
        options: dict[str, Any] = {"mkdir": True} if url.startswith("file://") else _TIMEOUT
        try:
            self._store: Any = from_url(url, **options)
        except (BaseError, ValueError) as error:
            raise InvalidConfig(f"witness {self.name!r} is no path and no object store: {error}.") from error
        self._owner = new_owner()
        self._tail: Tail | None = None
        self._is_dirty = threading.Event()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def last_known(self, journal_id: str) -> list[Tail]:
        """The tails in the objects of all processes; none if the store cannot be reached, with a warning."""
        try:
            listed = [each for page in self._obstore.list(self._store, f"{journal_id}/") for each in page]
            if len(listed) > MAX_OBJECTS:
                log.warning(
                    "the witness %s has %d objects; the newest %d are read", self.name, len(listed), MAX_OBJECTS
                )
            newest = sorted(listed, key=lambda each: each["last_modified"], reverse=True)[:MAX_OBJECTS]
            found = [self._read(each["path"]) for each in newest if each["size"] <= MAX_BYTES]
        except self._errors as error:
            self._fail(error)
            return []
        return [tail for tail in found if tail is not None and tail.journal_id == journal_id]

    def begin(self, tail: Tail) -> None:
        """Record the tail in an object of this process; delete those of processes that have ended."""
        self._tail = tail
        if self._put(tail):
            self._delete_expired(tail)
        self._thread = threading.Thread(target=self._put_until_closed, name="tape-witness-object", daemon=True)
        self._thread.start()

    def record(self, tail: Tail) -> None:
        """Note the tail; the object has it about 1 s later."""
        self._tail = tail
        if not self._is_dirty.is_set():
            self._is_dirty.set()

    def close(self) -> None:
        """Write the last tail, and end."""
        if self._thread is not None:
            self._is_closing.set()
            self._is_dirty.set()
            self._thread.join()
            self._thread = None

    def _put_until_closed(self) -> None:
        while not self._is_closing.is_set():
            self._is_dirty.wait(RENEW_S)
            self._is_dirty.clear()
            assert self._tail is not None
            if not self._put(self._tail):
                self._is_dirty.set()
            self._is_closing.wait(WRITE_S)

    def _put(self, tail: Tail) -> bool:
        content = {**msgspec.structs.asdict(tail), "chain": tail.chain.hex()}
        try:
            self._obstore.put(self._store, f"{tail.journal_id}/{self._owner}.json", msgspec.json.encode(content))
        except self._errors as error:
            self._fail(error)
            return False
        self.problem = ""
        return True

    def _read(self, path: str) -> Tail | None:
        try:
            content = msgspec.json.decode(bytes(self._obstore.get(self._store, path).bytes()))
            tail = structs.convert({**content, "chain": bytes.fromhex(content["chain"])}, Tail)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            log.warning("%s/%s is not a witness: %s", self.name, path, error)
            return None
        return tail

    def _delete_expired(self, tail: Tail) -> None:
        expired = dt.datetime.now(dt.UTC) - EXPIRY
        try:
            for page in self._obstore.list(self._store, f"{tail.journal_id}/"):
                old = [each["path"] for each in page if each["last_modified"] < expired]
                known = [path for path in old if (found := self._read(path)) is None or found.order <= tail.order]
                if known:
                    self._obstore.delete(self._store, known)
        except self._errors as error:
            log.warning("old objects of the witness %s are not deleted: %s", self.name, mask_urls(str(error)))

    def _fail(self, error: Exception) -> None:
        if not self.problem:
            log.warning("the witness %s is not available: %s", self.name, mask_urls(str(error)))
        self.problem = f"{self.name} is not available: {mask_urls(str(error))}"

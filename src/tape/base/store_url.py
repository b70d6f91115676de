"""The URL of a store and where it was found, so that an error about a store says which setting to correct."""

from __future__ import annotations

DEFAULT_STORE = "sqlite:tape.db"


class StoreUrl(str):
    """The URL of a store; `found_by` names the flag, the variable or the file that it comes from."""

    __slots__ = ("found_by",)
    found_by: str

    def __new__(cls, url: str, found_by: str) -> StoreUrl:
        """A URL from a source."""
        made = super().__new__(cls, url)
        made.found_by = found_by
        return made

    def __reduce__(self) -> tuple[type[StoreUrl], tuple[str, str]]:
        return StoreUrl, (str(self), self.found_by)


def describe_source(url: str) -> str:
    """` (found by: TAPE_STORE)` for a URL whose source is known; otherwise nothing."""
    return f" (found by: {url.found_by})" if isinstance(url, StoreUrl) else ""

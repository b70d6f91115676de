"""The redactor: secrets are replaced in the JSON text of payloads, and every other byte stays as it is.

One RE2 search decides whether a payload can have a secret at all; only then the payload is walked. Time is linear in
the size of the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tape.base.redaction_policy import DEFAULT_POLICY, HASH, RedactionPolicy
from tape.engine.security.redaction.detectors import GATE
from tape.engine.security.redaction.findings import SecretSpan, keyed_hash, mask, replace_spans
from tape.engine.security.redaction.keys import STEMS
from tape.engine.security.redaction.media import MEDIA
from tape.engine.security.redaction.patterns import compiled, escape
from tape.engine.security.redaction.scanner import Scanner, too_deep
from tape.engine.security.redaction.texts import TextSearch
from tape.errors import InvalidJson

# Where a text can have a secret by value. An escape \u00.. or \/ can spell a character of a pattern, and a string that
# begins with a brace or bracket can be JSON.
_TEXTS = GATE.replace("(?:\\\\*[\\\"'])?", "(?:\\\\+[\\\"']|')?") + (
    r"|\\u00[2-7]|\\/|\"[\[{]|" + "|".join('"' + escape(head).replace("/", r"\\?/") for head in MEDIA)
)
# Where the end of a string, which may be a key, has the stem of a secret's name.
_KEYS = r"(?i:(?:" + "|".join(STEMS) + r")[a-z0-9_.\- \]ñ]*\\*\")"
_GATE = f"{_KEYS}|{_TEXTS}"


def may_have_secret(payloads: Iterable[str]) -> bool:
    """Return whether one of the payloads can have a secret. If not, a redactor finds none in any of them."""
    # The end of a line ends a word, as the end of a payload does, so that no pattern is missed among others.
    return compiled(_GATE).search("\n".join(payloads).encode(errors="surrogatepass")) is not None


class Redactor:
    """Hides secrets as a policy says, except in event types that are declared safe: `order.paid`, or `metric.*`."""

    def __init__(
        self, safe_types: Sequence[str] = (), policy: RedactionPolicy = DEFAULT_POLICY, hash_key: bytes = b""
    ) -> None:
        self.policy = policy
        self._hide = keyed_hash(hash_key) if policy.action == HASH else mask
        self._safe = frozenset(name for name in safe_types if not name.endswith("*"))
        self._safe_prefixes = tuple(name[:-1] for name in safe_types if name.endswith("*"))

    def is_safe(self, kind: str) -> bool:
        """Return whether payloads of an event type are stored as they are."""
        return kind in self._safe or (bool(self._safe_prefixes) and kind.startswith(self._safe_prefixes))

    def redact(self, payload_json: str) -> str:
        """Return the payload without its secrets; the same text if it has none. Raises RedactionFailed."""
        return self.stored(payload_json, self.find(payload_json))

    def stored(self, payload_json: str, findings: Sequence[SecretSpan]) -> str:
        """Return the payload with what was found in it hidden; unchanged in a dry run."""
        return replace_spans(payload_json, findings) if findings and not self.policy.dry_run else payload_json

    def find(self, payload_json: str) -> list[SecretSpan]:
        """Return the secrets of a payload in their order. Raises RedactionFailed and InvalidJson."""
        if not may_have_secret((payload_json,)):
            return []
        data = payload_json.encode(errors="surrogatepass")
        try:
            msgspec.json.decode(data)
            search = TextSearch(self._hide) if compiled(_TEXTS).search(data) is not None else None
            return Scanner(payload_json, search, self._hide, self.policy.allow_keys).scan()
        except RecursionError as error:
            raise too_deep() from error
        except msgspec.DecodeError as error:
            raise InvalidJson(f"payload_json is not JSON that can be searched for secrets: {error}.") from error

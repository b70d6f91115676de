"""URL templates: `https://bank.example/payments/{business_key}`, filled in from an effect or an obligation."""

from __future__ import annotations

import json
import string
from typing import Any
from urllib.parse import quote

from tape.errors import InvalidConnector


def fields_of(record: Any) -> dict[str, Any]:
    """The values for placeholders: the fields of a request or payload, and those of the record."""
    own = {field.name: getattr(record, field.name) for field in record.DESCRIPTOR.fields}
    carried = content_of(own.get("request_json", own.get("payload_json", "")))
    return {**(carried if isinstance(carried, dict) else {}), **own}


def content_of(text: str) -> Any:
    """The value of a JSON text; a text that is not JSON is returned as it is."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text


def fill_in(template: str, record: Any) -> str:
    """The URL with its placeholders filled in; values are percent-encoded, so that none can change the path."""
    known = fields_of(record)
    filled = []
    for text, blank, _, _ in string.Formatter().parse(template):
        filled.append(text)
        if blank is None:
            continue
        if known.get(blank, "") in ("", ".", "..", None):
            raise InvalidConnector(
                f"The address {template!r} needs {blank!r}, and this effect has {known.get(blank)!r} there;"
                f" it has: {', '.join(sorted(name for name, value in known.items() if value))}."
            )
        filled.append(quote(str(known[blank]), safe=""))
    return "".join(filled)

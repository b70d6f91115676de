"""Names and labels that Kubernetes and Google Cloud accept, for every legal path of a subscription."""

from __future__ import annotations

import hashlib
import re

# Cloud Run allows 49 characters. Kubernetes allows 63, and appends up to 11 to the name of a StatefulSet or CronJob.
MAX_NAME = 49
_DIGEST = 8
_PREFIX = "tape-"
_MAX_LABEL = 63


def object_name(path: str, *parts: str) -> str:
    """The name of an object: readable, and different for different paths and parts.

    Lower-case letters, digits and dashes. `Orders.EU`, `orders/eu` and `orders-eu` would be the same text, so that a
    digest of the whole path ends it.
    """
    digest = hashlib.sha256("\n".join((path, *parts)).encode()).hexdigest()[:_DIGEST]
    text = re.sub(r"[^a-z0-9]+", "-", "-".join((path.rpartition("/")[2], *parts)).lower()).strip("-")
    length = MAX_NAME - len(_PREFIX) - 1 - _DIGEST
    return f"{_PREFIX}{text[:length].strip('-') or 'subscription'}-{digest}"


def labels(name: str, component: str) -> dict[str, str]:
    """The labels of an object, by which selectors find it: `name` is the object's own."""
    return {
        "app.kubernetes.io/name": "tape",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "tape",
    }


def google_labels(name: str, component: str) -> dict[str, str]:
    """Labels of Google Cloud: keys and values of lower-case letters, digits, dashes and underscores, at most 63."""
    return {"app": "tape", "component": component, "instance": name[:_MAX_LABEL]}

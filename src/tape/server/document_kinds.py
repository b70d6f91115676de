"""The kinds of documents in the catalog, with the validator of each."""

from __future__ import annotations

from tape.documents.document import Check
from tape.playbooks.document import read_playbook
from tape.subscriptions.document.validator import read_subscription

KINDS: dict[str, Check] = {"playbook": read_playbook, "subscription": read_subscription}

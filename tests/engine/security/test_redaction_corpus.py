"""Redaction, measured: how many secrets are hidden, and how many harmless payloads are changed."""

from __future__ import annotations

import json

import pytest

from tape.engine.security.redaction import Redactor, may_have_secret
from tests.engine.security.redaction_corpus import Case
from tests.engine.security.redaction_corpus.harmless import HARMLESS
from tests.engine.security.redaction_corpus.secrets import SECRETS

REDACTOR = Redactor()


def is_hidden(case: Case) -> bool:
    """Return whether no secret of the case survives, and the result is JSON."""
    clean = REDACTOR.redact(json.dumps(case.payload))
    json.loads(clean)
    return not any(secret in clean for secret in case.secrets)


def is_untouched(case: Case) -> bool:
    """Return whether the payload comes out byte for byte."""
    text = json.dumps(case.payload)
    return REDACTOR.redact(text) == text


def test_the_corpus_is_large_enough() -> None:
    assert len(SECRETS) >= 200
    assert len(HARMLESS) >= 200
    assert all(case.secrets for case in SECRETS)
    for cases in (SECRETS, HARMLESS):
        assert sum(case.is_held_out for case in cases) >= len(cases) // 3


@pytest.mark.parametrize("is_held_out", [False, True])
def test_at_least_95_percent_of_secret_payloads_are_hidden(is_held_out: bool) -> None:
    cases = [case for case in SECRETS if case.is_held_out is is_held_out]
    leaks = [case.name for case in cases if not is_hidden(case)]
    assert len(leaks) <= len(cases) * 0.05, leaks


@pytest.mark.parametrize("is_held_out", [False, True])
def test_at_most_2_percent_of_harmless_payloads_are_changed(is_held_out: bool) -> None:
    cases = [case for case in HARMLESS if case.is_held_out is is_held_out]
    changed = [case.name for case in cases if not is_untouched(case)]
    assert len(changed) <= len(cases) * 0.02, changed


@pytest.mark.parametrize("before", ["", '{"a":1}', '{"word":"x'])
@pytest.mark.parametrize("after", ["", '{"a":1}', 'x"}'])
def test_a_secret_is_not_missed_because_payloads_are_searched_together(before: str, after: str) -> None:
    texts = [json.dumps(case.payload) for case in SECRETS]
    found = [text for text in texts if REDACTOR.find(text)]
    assert len(found) > 150
    assert [text for text in found if not may_have_secret([before, text, after])] == []

"""Redaction: what is hidden, what is left exactly as it was, and what cannot be searched."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.engine.security.redaction import MEDIA, Redactor, is_secret
from tape.engine.security.redaction.detectors import CONTEXTS, VENDORS, Detector
from tape.engine.security.redaction.keys import STEMS
from tape.engine.security.redaction.patterns import compiled
from tape.errors import InvalidJson, RedactionFailed
from tape.model.service_key import make_key

REDACTOR = Redactor(["order.paid", "metric.*"])
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(300)).decode()


@pytest.mark.parametrize("detector", [*CONTEXTS, *VENDORS], ids=lambda detector: detector.rule)
def test_every_pattern_compiles(detector: Detector) -> None:
    assert compiled(detector.pattern).search(b"nothing") is None


@pytest.mark.parametrize(
    "key",
    [
        *("api_key", "apikey", "api-key", "x-api-key", "API_KEY", " Api_Key ", "x_api_key", "apiKey"),
        *("password", "passwd", "pass", "user_password", "userPassword", "PASSWORD", "db.password"),
        *("secret", "client_secret", "private_key", "signing_key", "clientSecret"),
        *("token", "access_token", "refresh_token", "id_token", "accessToken", "session-token"),
        *("cookie", "set-cookie", "Set-Cookie", "authorization", "Authorisation", "bearer", "bearer_token"),
    ],
)
@pytest.mark.parametrize("value", ["s3cr3t", "$ecret", {"a": "s3cr3t"}, ["s3cr3t"], [{"a": [1, "s3cr3t"]}]])
def test_a_secret_key_hides_text_lists_and_objects(key: str, value: Any) -> None:
    payload = {"a": [{key: value, "kept": 1}]}
    assert json.loads(REDACTOR.redact(json.dumps(payload))) == {"a": [{key: "***", "kept": 1}]}


@pytest.mark.parametrize("key", ["token", "secret", "pass", "authorization", "password", "pin", "cookies"])
@pytest.mark.parametrize("value", ["null", "true", "false", '""', "[]", "{}", "[1, 2.50]", '{"a": {"b": null}}'])
def test_values_without_text_keep_their_type(key: str, value: str) -> None:
    text = f'{{"{key}": {value}}}'
    assert REDACTOR.redact(text) is text


@pytest.mark.parametrize("key", ["pin", "cvv", "cvc", "password", "user_password", "Passcode", "otp"])
@pytest.mark.parametrize("number", ["4711", "-1", "1.10", "1e5"])
def test_numbers_under_pin_cvv_and_password_are_secrets(key: str, number: str) -> None:
    assert REDACTOR.redact(f'{{"{key}": {number} , "n": 2.50}}') == f'{{"{key}": "***" , "n": 2.50}}'


@pytest.mark.parametrize("key", ["token", "pass", "api_key", "secret", "cookie"])
def test_numbers_under_other_keys_are_kept(key: str) -> None:
    text = f'{{"{key}": 12}}'
    assert REDACTOR.redact(text) is text


def test_bytes_beside_a_secret_stay_the_same() -> None:
    text = '{ "price" : 1.10,\t"big":12345678901234567890123,"e":1E5,"ü":"\\u00fc\\/","password" : "x1" ,"z":[ 1.0 ]}'
    assert REDACTOR.redact(text) == text.replace('"x1"', '"***"')


def test_every_one_of_two_equal_keys_is_hidden() -> None:
    text = '{"password":"one","password":"two","a":"Bearer abc12345678","a":"x"}'
    assert REDACTOR.redact(text) == '{"password":"***","password":"***","a":"Bearer ***","a":"x"}'


def test_json_inside_a_text_is_searched_and_its_other_bytes_stay() -> None:
    inner = '{"n": 1.10, "password": "s3cr3t"}'
    clean = json.loads(REDACTOR.redact(json.dumps({"arguments": inner, "n": 1})))
    assert clean == {"arguments": '{"n": 1.10, "password": "***"}', "n": 1}


def test_a_finding_names_the_path_and_the_rule() -> None:
    text = json.dumps({"a": [1, {"password": "x1"}], "log": "basic YWRhOnMzY3IzdA== sent", "env": ["--token", "t1"]})
    assert [(found.path, found.rule) for found in REDACTOR.find(text)] == [
        ("a.1.password", "key"),
        ("log", "basic"),
        ("env.--token", "key"),
    ]


def test_descriptions_of_secrets_in_a_json_schema_are_kept() -> None:
    text = json.dumps({"properties": {"password": {"type": "string", "description": "The password."}}})
    assert REDACTOR.redact(text) is text


@pytest.mark.parametrize("key", ["bypass", "compass", "tokens", "max_tokens", "secretary", "passenger", "keyboard"])
def test_words_that_only_look_like_secrets_are_left_alone(key: str) -> None:
    assert not is_secret(key)
    text = f'{{"{key}": "kept" }}'
    assert REDACTOR.redact(text) is text


def test_pairs_of_name_and_value_are_understood() -> None:
    payload = [{"name": "Api-Key", "value": "x"}, {"name": "color", "value": "x"}, {"Key": "token", "Value": ["x"]}]
    assert json.loads(REDACTOR.redact(json.dumps(payload))) == [
        {"name": "Api-Key", "value": "***"},
        {"name": "color", "value": "x"},
        {"Key": "token", "Value": "***"},
    ]


def test_a_key_spelt_with_escapes_is_no_way_around() -> None:
    assert json.loads(REDACTOR.redact(r'{"pass\u0077ord": "s3cr3t"}')) == {"password": "***"}


def test_bearer_tokens_are_hidden_inside_texts() -> None:
    payload = {"log": "sent bearer abc.DEF-123/+=~ and then more", "bearers": "Bearer of news"}
    assert json.loads(REDACTOR.redact(json.dumps(payload))) == {
        "log": "sent Bearer *** and then more",
        "bearers": "Bearer of news",
    }


def test_media_become_a_note_of_their_size() -> None:
    jpeg = "/9j/" + "A" * 400
    payload = {
        "page": "see data:image/png;base64,aGVsbG8= and data:text/plain,hi%21",
        "none": "data:;base64,aGVsbG8=",
        "picture": PNG,
        "photo": jpeg,
        "short": PNG[:100],
        "prose": "the data: are here, all of them",
    }
    escaped = json.dumps(payload).replace(jpeg, jpeg.replace("/", "\\/"))
    clean = json.loads(REDACTOR.redact(escaped))
    assert clean == {
        "page": "see [redacted: image/png of 5 bytes] and [redacted: text/plain of 5 bytes]",
        "none": "[redacted: application/octet-stream of 5 bytes]",
        "picture": "[redacted: image/png of 308 bytes]",
        "photo": "[redacted: image/jpeg of 303 bytes]",
        "short": PNG[:100],
        "prose": "the data: are here, all of them",
    }


def test_declared_types_are_safe() -> None:
    assert REDACTOR.is_safe("order.paid")
    assert REDACTOR.is_safe("metric.cpu")
    assert not REDACTOR.is_safe("order.created")
    assert not Redactor().is_safe("order.paid")


def test_what_is_too_deep_to_search_is_refused() -> None:
    def deep(levels: int) -> str:
        return '{"a":' * levels + '{"token":"x"}' + "}" * levels

    assert "***" in REDACTOR.redact(deep(64))
    for levels in (65, 900, 5000):
        with pytest.raises((RedactionFailed, InvalidJson)):
            REDACTOR.redact(deep(levels))


MIB = 1024 * 1024
HOSTILE: dict[str, Callable[[int], str]] = {
    **{
        unit: lambda size, unit=unit: json.dumps({"text": unit * (size // len(unit))})  # type: ignore[misc]
        for unit in (
            *("data:;a=", "data:,", "Bearer ", "bearer a1b2c3d4 ", "eyJhbGciOi.", "password=", "password=x1 ", "://a:"),
            *("://a:b@", "-----BEGIN PRIVATE KEY-----", "\\", "sk-", "a.b_", "cookie: a=", "--token ", "<token>"),
        )
    },
    "long key": lambda size: json.dumps({"data:;a=token" * (size // 13): 1}),
    "numbers": lambda size: "[" + "1," * (size // 2) + '{"password":"x"}]',
    "lists": lambda size: "[" + "[]," * (size // 3) + '{"password":"x"}]',
    "objects": lambda size: "[" + '{"a":1},' * (size // 8) + '{"password":"x"}]',
    "passwords": lambda size: "[" + '{"password":"x"},' * (size // 17) + "1]",
    "nested passwords": lambda size: '{"password":' * 60 + "[" + "1," * (size // 2) + "1]" + "}" * 60,
    "bearers": lambda size: json.dumps(["bearer a1b2c3d4e5"] * (size // 21)),
    "json": lambda size: json.dumps(['{"a":"b"}'] * (size // 18)),
}


def cpu_s(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


@pytest.mark.parametrize("name", HOSTILE)
def test_a_mebibyte_of_hostile_json_takes_linear_time(name: str) -> None:
    eighth, whole = HOSTILE[name](MIB // 8), HOSTILE[name](MIB)
    for _ in range(5):  # other processes on the machine disturb a round, not all of them
        short, long = cpu_s(lambda: REDACTOR.redact(eighth)), cpu_s(lambda: REDACTOR.redact(whole))
        yard = cpu_s(lambda: sum(number * number for number in range(MIB)))
        # Linear is 8 times as long, quadratic 64 times. Below 20 ms the clock decides, not the shape.
        # The yardstick takes 45 ms on an idle machine, the worst shape 360 ms; both grow under load.
        if long < 24 * short + 0.02 and long < 32 * yard:
            break
    else:
        pytest.fail(f"{long:.3f} s for a mebibyte, {short:.3f} s for an eighth, {yard:.3f} s for the yardstick")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_nothing_else_is_ever_changed(value: Any) -> None:
    text = json.dumps(value)
    # Examples are also made of words that the code has, those that name secrets among them.
    words = (*STEMS, "authori", "data:", '"value"')
    if any(word in text.lower() for word in words) or any(head in text for head in MEDIA):
        return
    assert REDACTOR.redact(text) is text


@given(JSON, st.sampled_from(["password", "x_token", "Cookie"]))
def test_a_secret_never_survives_and_the_result_is_json(value: Any, key: str) -> None:
    text = json.dumps({"outer": [value, {key: {"deep": ["S3CR3T", value]}}]})
    clean = REDACTOR.redact(text)
    assert "S3CR3T" not in clean
    assert list(json.loads(clean)["outer"][1]) == [key]


def test_a_service_key_is_hidden_wherever_it_stands() -> None:
    key = make_key()
    text = json.dumps({"note": f"I used {key.text}, it works", "args": ["--as", key.text], "id": key.key_id})
    hidden = REDACTOR.redact(text)
    assert key.text[-49:] not in hidden
    assert json.loads(hidden) == {"note": "I used ***, it works", "args": ["--as", "***"], "id": key.key_id}
    harmless = json.dumps({"metric": "tape_journal_entries_total", "table": "tape_service_keys"})
    assert REDACTOR.redact(harmless) is harmless

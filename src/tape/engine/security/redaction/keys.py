"""Key rules: which names stand for a secret.

A name is split into words (`userPassword`, `X-API-Key`, `db.password`), words that say nothing about the kind of value
(`value`, `old`, `prod`, a number) are dropped from its end, and the last words decide.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

MAX_NAME_CHARS = 100
# Between the words of a name in ASCII.
_ASCII_BREAKS = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Secrecy(IntEnum):
    """What a name hides: nothing, text, or text and numbers."""

    NONE = 0
    TEXT = 1
    NUMBERS = 2


# A name without any of these holds no secret.
STEMS = (
    *("pass", "pwd", "secret", "key", "token", "cookie", "authori", "bearer", "cred", "jwt", "basic"),
    *("pin", "cvv", "cvc", "otp", "sessid", "sessionid", "recovery", "backup_code", "security_code"),
    *("kennwort", "contrase", "senha", "wachtwoord"),
)
# Names, and ends of names, whose numbers are secrets too.
_NUMBERS = frozenset(
    {
        *("password", "passwd", "passwords", "pwd", "passcode", "passphrase", "passwort", "kennwort", "senha"),
        *("contrasena", "contraseña", "wachtwoord"),
        *("pin", "cvv", "cvv2", "cvc", "otp", "totp", "security_code"),
    }
)
_TEXTS = frozenset(
    {
        *("pass", "passphrases", "secret", "secrets", "token", "bearer", "jwt", "jwts"),
        *("cookie", "cookies", "authorization", "authorisation", "credential", "credentials", "creds"),
        *(
            "api_key",
            "apikey",
            "secret_key",
            "access_key",
            "private_key",
            "signing_key",
            "encryption_key",
            "master_key",
        ),
        *("account_key", "storage_key", "license_key", "deploy_key", "auth_key", "hmac_key", "ssh_key", "rsa_key"),
        *("service_key", "root_key", "app_key", "application_key", "consumer_key", "subscription_key", "admin_key"),
        *("server_key", "webhook_key", "shared_key", "sas_key", "decryption_key", "basic_auth", "proxy_auth"),
        *("jsessionid", "phpsessid", "sessid", "apikeys", "recovery_code", "backup_code"),
        *("access_token", "auth_token", "session_token"),
    }
)
_PLURAL_TOKENS = frozenset(
    {
        *("access", "refresh", "auth", "api", "bearer", "id", "session", "secret", "device", "csrf", "oauth"),
        *("security", "service", "deploy", "bot", "jwt", "user"),
    }
)
# Words before `token` or `pass` that make it harmless.
_HARMLESS_BEFORE = {
    "token": frozenset(
        {
            *("page", "next", "previous", "prev", "continuation", "sync", "resume", "cursor", "pagination", "change"),
            *("stop", "eos", "bos", "pad", "unk", "sep", "cls", "mask", "special", "start", "end", "begin", "eot"),
            *("first", "last", "per", "max", "min", "prompt", "completion", "input", "output", "image", "watch"),
        }
    ),
    "pass": frozenset({"boarding", "first", "second", "single", "render", "season", "day", "ski", "bus", "by"}),
}
# A name that begins so asks a question or gives an order about a secret, and does not hold it.
_QUESTIONS = frozenset(
    {"has", "is", "needs", "need", "requires", "require", "required", "allow", "allows", "forgot", "show", "no"}
)
# Words at the end that say nothing about the kind of value.
_TAILS = frozenset(
    {
        *("value", "string", "plain", "plaintext", "raw", "old", "new", "current", "previous", "confirm", "hash"),
        *("confirmation", "repeat", "b64", "base64", "prod", "production", "staging", "dev", "live", "encrypted"),
        *("v1", "v2", "v3"),
    }
)
# Ends of names that are written as one word: PGPASSWORD, clientsecret.
_JOINED = (
    *("password", "passwd", "passphrase", "apikey", "secretkey", "privatekey", "accesskey", "accesstoken"),
    *("authtoken", "refreshtoken", "sessiontoken", "bearertoken", "apitoken", "clientsecret", "appsecret"),
)


def is_secret(key: str) -> bool:
    """Return whether a key names a secret: `password`, `user_password`, `X-Api-Key`, `accessTokens`."""
    return secrecy(key) is not Secrecy.NONE


def secrecy(key: str) -> Secrecy:
    """Return what the name of a value says about it."""
    return _of_long_name(key) if len(key) > MAX_NAME_CHARS else _of_name(key)


def split_words(name: str) -> list[str]:
    """Split a name into words in lower case: `awsSecretKey`, `X-API-Key` and `db.password` have several."""
    if name.isalnum() and name.islower():
        return [name]
    if name.isascii():
        return [word.lower() for word in _ASCII_BREAKS.split(name) if word]
    words: list[str] = []
    word = ""
    for index, char in enumerate(name):
        if not char.isalnum():
            if word:
                words.append(word)
            word = ""
            continue
        before = name[index - 1] if index else ""
        after = name[index + 1 : index + 2]
        if word and char.isupper() and (not before.isupper() or after.islower()):
            words.append(word)
            word = ""
        word += char.lower()
    if word:
        words.append(word)
    return words


def _of_long_name(key: str) -> Secrecy:
    # Only the end decides. The result is not cached, so that long names take no memory.
    return _judge(key[-MAX_NAME_CHARS:])


def _judge(key: str) -> Secrecy:
    lowered = key.lower()
    if not any(stem in lowered for stem in STEMS):
        return Secrecy.NONE
    words = split_words(key)
    while len(words) > 1 and (words[-1] in _TAILS or words[-1].isdigit()):
        words.pop()
    if not words or (len(words) > 1 and words[0] in _QUESTIONS):
        return Secrecy.NONE
    last = words[-1].rstrip("0123456789") or words[-1]
    before = words[-2] if len(words) > 1 else ""
    if before in _HARMLESS_BEFORE.get(last, ()):
        return Secrecy.NONE
    if last == "tokens":
        return Secrecy.TEXT if before in _PLURAL_TOKENS else Secrecy.NONE
    pair = f"{before}_{last}"
    if last in _NUMBERS or words[-1] in _NUMBERS or pair in _NUMBERS:
        return Secrecy.NUMBERS
    if last in _TEXTS or pair in _TEXTS or pair.removesuffix("s") in _TEXTS:
        return Secrecy.TEXT
    if last.endswith(("password", "passwd", "passphrase")):
        return Secrecy.NUMBERS
    return Secrecy.TEXT if last.removesuffix("s").endswith(_JOINED) else Secrecy.NONE


_of_name = lru_cache(maxsize=4096)(_judge)

"""Payloads with a secret."""

from __future__ import annotations

import json
from typing import Any

from tests.engine.security.redaction_corpus import number_cases
from tests.engine.security.redaction_corpus.values import ALNUM, LOWER, UPPER, URLSAFE, b64, basic, hexa, jwt, pem, pick

Row = tuple[str, Any, tuple[str, ...]]

# Keys whose value is a secret whatever it looks like.
KEYS = (
    *("password", "passwd", "pwd", "passphrase", "user_password", "userPassword", "PGPASSWORD", "db.password"),
    *("DB_PASS", "smtp-pass", "mysql_pwd", "old_password", "new_password", "password_confirmation", "password2"),
    *("hashed_password", "password_hash", "adminPassword", "RootPassword", "sshPassphrase", "ldapBindPassword"),
    *("secret", "client_secret", "clientSecret", "secret_key", "SECRET_KEY", "secretKey", "app_secret", "jwt_secret"),
    *("webhook_secret", "shared_secret", "consumer_secret", "totp_secret", "cookie_secret", "SecretString"),
    *("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "SecretAccessKey", "secret_value", "django_secret_key"),
    *("api_key", "apiKey", "APIKey", "X-API-Key", "apikey", "openai_api_key", "API_KEY_PROD", "datadog_api_key"),
    *("private_key", "privateKey", "ssh_private_key", "signing_key", "encryption_key", "master_key", "access_key"),
    *("account_key", "AccountKey", "storage_account_key", "license_key", "deploy_key", "auth_key", "hmac_key"),
    *("token", "access_token", "accessToken", "refresh_token", "id_token", "auth_token", "session_token", "csrf_token"),
    *(
        "bot_token",
        "GITHUB_TOKEN",
        "npm_token",
        "vault_token",
        "X-Auth-Token",
        "deviceToken",
        "oauthToken",
        "_authToken",
    ),
    *("personal_access_token", "bearer", "bearerToken", "jwt", "authorization", "Proxy-Authorization", "cookie"),
    *("Set-Cookie", "session_cookie", "JSESSIONID", "credential", "connection_password", "encryptionPassphrase"),
)
# Vendor formats: the value alone shows what it is.
VENDORS: dict[str, str] = {
    "aws-access-key": "AK" + "IA" + pick(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "aws-session-key": "AS" + "IA" + pick(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
    "gcp-api-key": "AI" + "za" + pick(35, URLSAFE),
    "gcp-oauth": "ya" + "29." + pick(60, URLSAFE),
    "gcp-client-secret": "GOC" + "SPX-" + pick(28, URLSAFE),
    "github-pat": "gh" + "p_" + pick(36),
    "github-oauth": "gh" + "o_" + pick(36),
    "github-app": "gh" + "s_" + pick(36),
    "github-fine": "github" + "_pat_" + pick(22) + "_" + pick(59),
    "gitlab-pat": "gl" + "pat-" + pick(20, URLSAFE),
    "gitlab-runner": "gl" + "rt-" + pick(20, URLSAFE),
    "slack-bot": "xo" + "xb-" + pick(12, "0123456789") + "-" + pick(12, "0123456789") + "-" + pick(24),
    "slack-user": "xo" + "xp-" + pick(12, "0123456789") + "-" + pick(12, "0123456789") + "-" + pick(32),
    "slack-app": "xa" + "pp-1-A" + pick(10, UPPER) + "-" + pick(13, "0123456789") + "-" + hexa(64),
    "slack-webhook": "https://hooks.slack"
    + ".com/services/T"
    + pick(8, UPPER)
    + "/B"
    + pick(8, UPPER)
    + "/"
    + pick(24),
    "stripe-live": "sk" + "_live_" + pick(24),
    "stripe-restricted": "rk" + "_live_" + pick(24),
    "stripe-test": "sk" + "_test_" + pick(24),
    "stripe-webhook": "wh" + "sec_" + pick(32),
    "openai": "sk" + "-" + pick(20) + "T3Blbk" + "FJ" + pick(20),
    "openai-project": "sk" + "-proj-" + pick(74, URLSAFE),
    "anthropic": "sk" + "-ant-api03-" + pick(93, URLSAFE) + "AA",
    "huggingface": "hf" + "_" + pick(34),
    "groq": "gs" + "k_" + pick(52),
    "replicate": "r8" + "_" + pick(37),
    "npm": "np" + "m_" + pick(36),
    "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + pick(70, URLSAFE),
    "rubygems": "ruby" + "gems_" + hexa(48),
    "docker": "dckr" + "_pat_" + pick(27, URLSAFE),
    "digitalocean": "dop" + "_v1_" + hexa(64),
    "databricks": "da" + "pi" + hexa(32),
    "sendgrid": "SG" + "." + pick(22, URLSAFE) + "." + pick(43, URLSAFE),
    "mailgun": "ke" + "y-" + hexa(32),
    "mailchimp": hexa(32) + "-us" + "12",
    "brevo": "xkey" + "sib-" + hexa(64) + "-" + pick(16),
    "twilio": "S" + "K" + hexa(32),
    "square": "sq0" + "atp-" + pick(22, URLSAFE),
    "square-secret": "sq0" + "csp-" + pick(43, URLSAFE),
    "shopify": "shp" + "at_" + hexa(32),
    "telegram": pick(10, "123456789") + ":AA" + pick(33, URLSAFE),
    "discord-bot": "M" + pick(23) + "." + pick(6, URLSAFE) + "." + pick(38, URLSAFE),
    "discord-webhook": "https://discord" + ".com/api/webhooks/" + pick(18, "123456789") + "/" + pick(68, URLSAFE),
    "vault": "hv" + "s." + pick(90, URLSAFE),
    "vault-batch": "hv" + "b." + pick(140, URLSAFE),
    "terraform": pick(14) + ".atlas" + "v1." + pick(64, URLSAFE),
    "grafana": "gl" + "sa_" + pick(32) + "_" + hexa(8),
    "newrelic": "NR" + "AK-" + pick(27, UPPER),
    "sentry": "sntr" + "ys_" + pick(80),
    "postman": "PM" + "AK-" + hexa(24) + "-" + hexa(34),
    "linear": "lin" + "_api_" + pick(40),
    "notion": "nt" + "n_" + pick(46),
    "airtable": "pa" + "t" + pick(14) + "." + hexa(64),
    "figma": "fig" + "d_" + pick(40, URLSAFE),
    "atlassian": "ATA" + "TT3xFf" + pick(180, URLSAFE) + "=" + hexa(8).upper(),
    "planetscale": "pscale" + "_tkn_" + pick(43, URLSAFE),
    "doppler": "dp" + ".pt." + pick(43),
    "alibaba": "LT" + "AI" + pick(20),
    "dynatrace": "dt" + "0c01." + pick(24, UPPER) + "." + pick(64, UPPER),
    "age": "AGE-SECRET" + "-KEY-1" + pick(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
    "hubspot": "pa" + "t-na1-" + "-".join((hexa(8), hexa(4), hexa(4), hexa(4), hexa(12))),
    "supabase": "sb" + "p_" + hexa(40),
    "langsmith": "lsv2" + "_pt_" + hexa(32) + "_" + hexa(10),
    "perplexity": "pp" + "lx-" + pick(48),
    "nvidia": "nv" + "api-" + pick(60, URLSAFE),
    "facebook": "EAAC" + "EdEose0cBA" + pick(40),
    "jwt": jwt(),
    "jwt-rs256": jwt("RS256"),
}


def _by_key() -> list[Row]:
    rows: list[Row] = []
    for number, key in enumerate(KEYS):
        value = (pick(20), pick(10, LOWER), b64(24), "correct horse " + pick(6, LOWER))[number % 4]
        payload = ({key: value}, {"config": {"user": "ada", key: value, "port": 5432}}, [{key: value}])[number % 3]
        rows.append((key, payload, (value,)))
    return rows


def _by_format() -> list[Row]:
    rows: list[Row] = []
    for number, (name, value) in enumerate(VENDORS.items()):
        payload = (
            {"note": value},
            {"log": f"request failed with {value}, retrying"},
            {"items": ["first", value]},
            {"arguments": json.dumps({"q": value, "n": 3})},
        )[number % 4]
        rows.append((name, payload, (value,)))
    return rows


def _in_text() -> list[Row]:
    rows: list[Row] = []

    def text(name: str, before: str, secret: str, after: str = "") -> None:
        rows.append((name, {"text": before + secret + after}, (secret,)))

    text("bearer", "Authorization: Bearer ", pick(40), "\nHost: api.example.com")
    text("bearer-lower", "sent authorization=bearer ", pick(32, LOWER), " to the gateway")
    text("bearer-curl", "curl -H 'Authorization: Bearer ", pick(32), "' https://api.example.com/v1")
    text("bearer-alone", "the header was Bearer ", pick(24, URLSAFE), ".")
    text("basic", "Authorization: Basic ", basic(), "\r\n")
    text("basic-alone", "proxy sent Basic ", basic("svc"), " and got 407")
    text("basic-lower", "header basic ", basic("root"), " refused")
    text("header-token", "Authorization: token ", pick(40, "0123456789abcdef"))
    text("header-key", "X-Api-Key: ", pick(32), "\nAccept: */*")
    text("cookie", "GET / HTTP/1.1\r\nCookie: sid=", pick(32), "; theme=dark")
    text("set-cookie", "Set-Cookie: session=", pick(40), "; HttpOnly; Path=/")
    text("url-postgres", "postgres://app:", pick(14), "@db.internal:5432/app")
    text("url-amqp", "connecting to amqp://guest:", pick(9), "@rabbit:5672/%2f failed")
    text("url-redis", "redis://:", pick(16), "@cache:6379/0")
    text("url-https", "git clone https://ada:", pick(20), "@git.example.com/x.git")
    text("url-mongo", "mongodb+srv://svc:", pick(12), "@cluster0.example.net/?retryWrites=true")
    text("url-mysql", "mysql+pymysql://root:", "p%40ss" + pick(5), "@10.0.0.5/shop")
    text("url-ftp", "see ftp://u1:", pick(8), "@files.example.com/a.csv for it")
    text("query-token", "GET https://api.example.com/v1?user=7&access_token=", pick(30), "&page=2")
    text("query-key", "https://maps.example.com/geo?api_key=", pick(30), "&q=Paris")
    text("query-sig", "https://acc.blob.core.windows.net/c/f?sv=2022&sig=", pick(43) + "%3D", "&se=2026")
    text("query-amz", "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature=", hexa(64))
    text("dsn", "host=db user=app password=", pick(10), " dbname=shop")
    text("mssql", "Server=db;Database=x;User Id=sa;Password=", pick(12) + "!", ";Encrypt=true")
    text("mssql-pwd", "Driver={ODBC};Uid=sa;Pwd=", pick(12), ";")
    text("azure-storage", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=", b64(64), ";Suffix=x")
    text("azure-bus", "Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=", b64(32))
    text("env", "PORT=80\nDB_PASSWORD=", pick(16), "\nDEBUG=1")
    text("env-export", 'export OPENAI_API_KEY="', pick(40), '"')
    text("env-secret", "AWS_REGION=eu-west-1\nAWS_SECRET_ACCESS_KEY=", pick(40, ALNUM + "/+"))
    text("yaml", "user: ada\npassword: ", pick(12), "\nport: 1")
    text("yaml-quoted", "smtp:\n  passwd: '", pick(12), "'\n")
    text("ini", "[default]\naws_secret_access_key = ", pick(40, ALNUM + "/+"))
    text("code", 'client = Client(api_key="', pick(32), '", timeout=5)')
    text("code-js", "const secret = '", pick(24), "';")
    text("python-dict", "{'user': 'ada', 'password': '", pick(11), "'}")
    text("xml", "<login><user>a</user><password>", pick(10), "</password></login>")
    text("flag", "mysql -u root --password ", pick(12), " shop")
    text("flag-equals", "deploy --auth-token=", pick(20), " --wait")
    text("curl-user", "curl -u ada:", pick(14), " https://api.example.com")
    text("netrc", "machine api.example.com login ada password ", pick(14), "\n")
    text("npmrc", "//registry.example.com/:_authToken=", pick(36))
    text("said", "my password is ", pick(10), " please log in")
    text("log-json", 'level=info body={"token":"', pick(22), '"} took 3ms')
    for label in ("RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        block = pem(label)
        rows.append((label, {"file": "key follows\n" + block}, (block.splitlines()[1], block.splitlines()[3])))
    block = pem("PGP PRIVATE KEY BLOCK")
    rows.append(("pgp", {"body": block}, (block.splitlines()[2],)))
    return rows


def _in_structures() -> list[Row]:
    rows: list[Row] = []

    def add(name: str, payload: Any, *secrets: str) -> None:
        rows.append((name, payload, secrets))

    a, b = pick(20), pick(18)
    add("pair-header", {"headers": [["Authorization", a], ["Accept", "*/*"]]}, a)
    add("pair-cookie", {"headers": [["Cookie", f"sid={a}; x=1"]]}, a)
    add("raw-headers", {"rawHeaders": ["Host", "a.example.com", "X-Api-Key", b]}, b)
    add("named", {"env": [{"name": "DB_PASSWORD", "value": a}, {"name": "PORT", "value": "80"}]}, a)
    add("named-key", [{"key": "api_key", "value": b}], b)
    add("named-upper", {"Parameters": [{"Name": "ClientSecret", "Value": a}]}, a)
    add("named-field", {"field": "password", "value": a}, a)
    add("named-after", {"value": b, "name": "auth_token"}, b)
    add("named-header", {"header": "X-Auth-Token", "value": b}, b)
    add("argv", {"argv": ["mysql", "-u", "root", "--password", a]}, a)
    add("argv-equals", {"argv": ["run", f"--api-key={a}"]}, a)
    add("plural", {"passwords": [a, b]}, a, b)
    add("plural-secrets", {"secrets": {"stripe": a, "mail": b}}, a, b)
    add("plural-keys", {"api_keys": [a]}, a)
    add("plural-tokens", {"access_tokens": {"ada": a}}, a)
    add("plural-cookies", {"cookies": {"sid": b}}, b)
    add("credentials", {"credentials": {"username": "ada", "password": a}}, a)
    add("private-keys", {"privateKeys": [a]}, a)
    add("pin-number", {"card": {"pin": 4711}}, "4711")
    add("cvv-number", {"cvv": 842, "brand": "x"}, "842")
    add("password-number", {"user": "ada", "password": 83746512}, "83746512")
    add("pin-text", {"pin": "0815"}, "0815")
    add("cvc", {"card": {"cvc": "173"}}, "173")
    add("otp", {"otp": "482913"}, "482913")
    add("json-in-text", {"body": json.dumps({"user": "ada", "password": a})}, a)
    add("json-in-json", {"body": json.dumps({"inner": json.dumps({"api_key": b})})}, b)
    add("json-list", {"arguments": json.dumps([{"name": "token", "value": a}])}, a)
    add("nested", {"a": {"b": [{"c": {"client_secret": a}}]}}, a)
    add(
        "service-account",
        {"type": "service_account", "private_key": pem("PRIVATE KEY"), "private_key_id": "x"},
        "BEGIN",
    )
    add("docker-auth", {"auths": {"r.example.com": {"auth": basic(), "password": a}}}, a)
    add("kube-secret", {"kind": "Secret", "stringData": {"db-password": a}}, a)
    add("oauth-answer", {"access_token": a, "token_type": "Bearer", "expires_in": 3600, "refresh_token": b}, a, b)
    add("tool-call", {"tool": "login", "arguments": {"username": "ada", "password": a}}, a)
    add("chat", {"messages": [{"role": "user", "content": f"use password={a} for it"}]}, a)
    return rows


SECRETS = tuple(number_cases([*_by_key(), *_by_format(), *_in_text(), *_in_structures()]))

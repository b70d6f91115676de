"""What one broker has and others have not: certificates and logins, headers with several values, outages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tape.brokers import SourceSettings, open_source
from tape.brokers.kafka.connection import security_of
from tape.brokers.settings import source_hosts
from tape.brokers.source import Delivery
from tape.errors import MissingExtra, SourceMisconfigured, SourceMissing, SourceUnavailable
from tests.broker_services import KafkaCluster, NatsServer
from tests.brokers.rigs import kafka_rig, nats_rig
from tests.certificates import self_signed
from tests.services import wait_for

SEED = "SUAGC3DS2Q5E3DVHBMMXBVJ4YPGVNVAIXIB7N5PGWD5BOXXD4EVLKOWCNY"


@pytest.fixture(scope="module")
def certificate() -> dict[str, str]:
    return self_signed()


class Guarded:
    """A NATS server with a configuration of its own."""

    def __init__(self, folder: Path, config: str) -> None:
        (folder / "nats.conf").write_text(f'jetstream {{ store_dir: "{folder}" }}\n{config}')
        log = folder / "log"
        program = Path(sys.executable).parent / "nats-server"
        command = [str(program), "-c", str(folder / "nats.conf"), "-a", "127.0.0.1", "-p", "-1", "-l", str(log)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: log.exists() and "Server is ready" in log.read_text(), "the NATS server")
        self.address = log.read_text().partition("Listening for client connections on ")[2].split()[0]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def public_key() -> str:
    import nkeys

    return str(nkeys.from_seed(SEED.encode()).public_key.decode())


LOGINS = {
    "user": ('authorization { user: "tape", password: "hush" }', {"user": "tape", "password": "hush"}),
    "token": ('authorization { token: "hush" }', {"token": "hush"}),
    "nkey": ('authorization { users: [ { nkey: "UKEY" } ] }', {"nkey": SEED}),
}


@pytest.mark.parametrize("login", LOGINS)
async def test_nats_requires_the_credential(login: str, tmp_path: Path) -> None:
    config, credential = LOGINS[login]
    server = Guarded(tmp_path, config.replace("UKEY", public_key()) if login == "nkey" else config)
    try:
        spec = {"url": f"nats://{server.address}", "stream": "NONE", "consumer": "none"}
        with pytest.raises(SourceMissing, match="stream 'NONE' not found"):
            await open_source("nats", spec, credential).open()
        with pytest.raises(SourceUnavailable, match="Authorization") as raised:
            await open_source("nats", spec).open()
        assert "hush" not in str(raised.value)
    finally:
        server.close()


async def test_nats_is_spoken_to_over_tls_when_certificates_are_given(
    certificate: dict[str, str], tmp_path: Path
) -> None:
    for name, text in certificate.items():
        (tmp_path / name).write_text(text)
    tls = (
        f'tls {{ cert_file: "{tmp_path}/cert", key_file: "{tmp_path}/key", ca_file: "{tmp_path}/cert", verify: true }}'
    )
    server = Guarded(tmp_path, tls)
    try:
        spec: dict[str, Any] = {"url": f"tls://{server.address}", "stream": "NONE", "consumer": "none"}
        files = {"ca": f"{tmp_path}/cert", "cert": f"{tmp_path}/cert", "key": f"{tmp_path}/key"}
        with pytest.raises(SourceMissing):  # the files of the spec
            await open_source("nats", spec | {"tls": files}).open()
        with pytest.raises(SourceMissing):  # the texts of a credential
            await open_source("nats", spec, certificate | {"ca": certificate["cert"]}).open()
        with pytest.raises(SourceUnavailable):  # a server whose certificate is not trusted
            await open_source("nats", spec, certificate).open()
    finally:
        server.close()


async def test_a_nats_consumer_is_made_when_the_spec_says_so_and_otherwise_asked_for(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    with pytest.raises(SourceMissing, match="'create: true'"):
        await rig.open(consumer="fresh").open()
    source = rig.open(consumer="fresh", create=True)
    await source.open()
    await rig.feed(b"one", b"two")
    assert await source.lag() == 2
    assert [each.body for each in await source.poll(1, 10)] == [b"one"]
    assert await source.lag() == 1
    await source.close()


async def test_a_consumer_that_would_lose_messages_is_refused(nats_server: NatsServer) -> None:
    import nats

    rig = await nats_rig(nats_server)
    connection = await nats.connect(rig.spec["url"])
    config = nats.js.api.ConsumerConfig(durable_name="careless", ack_policy=nats.js.api.AckPolicy.NONE)
    await connection.jetstream().add_consumer(rig.spec["stream"], config)
    await connection.close()
    with pytest.raises(SourceMissing, match="explicit acknowledgement"):
        await rig.open(consumer="careless").open()


async def test_headers_keep_all_their_values(nats_server: NatsServer, kafka_cluster: KafkaCluster) -> None:
    for rig in (await nats_rig(nats_server), await kafka_rig(kafka_cluster)):
        source = rig.open()
        await source.open()
        headers = [("X-Tag", "red"), ("x-tag", "green"), ("X-Tag", "blue: dark")]
        await rig.feed(b"one", headers=headers)
        (got,) = await source.poll(1, 20)
        assert list(got.headers) == headers
        await source.close()


async def test_nats_reports_an_outage_and_resumes_from_its_position() -> None:
    with NatsServer() as server:
        rig = await nats_rig(server)
        source = rig.open()
        await source.open()
        await rig.feed(b"one", b"two")
        first, second = await source.poll(2, 10)
        await source.ack([first.receipt])
        server.stop()
        with pytest.raises(SourceUnavailable, match="NATS at 127"):
            await source.poll(1, 10)
        with pytest.raises(SourceUnavailable):
            await source.open()
        server.start()
        await source.open()
        await source.nack([second.receipt])  # a receipt of the connection before
        (again,) = await source.poll(1, 10)
        assert again.body == b"two"
        await source.close()


async def test_kafka_reports_an_outage() -> None:
    with KafkaCluster() as cluster:
        rig = await kafka_rig(cluster)
        source = rig.open()
        await source.open()
        await rig.feed(b"one", b"two", b"three")
        got = await source.poll(1, 20)
        assert await source.lag() == 2

    async def go_on() -> None:
        for _ in range(100):
            await source.poll(1, 0.5)
            await source.ack([got[0].receipt])

    with pytest.raises(SourceUnavailable, match="Kafka at 127"):
        await go_on()
    await source.close()


async def test_kafka_reads_on_at_the_oldest_record_that_is_held(kafka_cluster: KafkaCluster) -> None:
    rig = await kafka_rig(kafka_cluster)
    source = rig.open()
    await source.open()
    await rig.feed(*(str(number).encode() for number in range(6)))
    found: list[Delivery] = []
    while len(found) < 6:
        found += await source.poll(2, 20)
    await source.nack([found[0].receipt, found[1].receipt])
    assert [source.will_redeliver(each.receipt) for each in found] == [True] * 6
    await source.nack([found[4].receipt])  # a later one: what stands before it is not passed over
    again: list[Delivery] = []
    while len(again) < 6:
        again += await source.poll(6, 20)
    assert [each.body for each in again] == [each.body for each in found]
    assert not any(source.will_redeliver(each.receipt) for each in again)
    await source.close()


async def test_receipts_of_something_else_are_refused(nats_server: NatsServer, kafka_cluster: KafkaCluster) -> None:
    for rig in (await nats_rig(nats_server), await kafka_rig(kafka_cluster)):
        source = rig.open()
        await source.open()
        for foreign in ("orders.secret", "topic:1", ""):
            with pytest.raises(SourceMissing, match="is not a receipt"):
                await source.ack([foreign])
        await source.close()


def test_kafka_logs_in_and_encrypts_as_configured(certificate: dict[str, str]) -> None:
    from confluent_kafka import Consumer

    def config(spec: dict[str, Any], credential: dict[str, str] | None = None) -> dict[str, Any]:
        return security_of(SourceSettings("kafka", spec, credential))

    assert config({}) == {"security.protocol": "PLAINTEXT"}
    assert config({}, {"username": "ada", "password": "hush"}) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": "hush",
    }
    full = config({"sasl_mechanism": "SCRAM-SHA-512"}, {"user": "ada", "password": "hush", **certificate})
    assert full["security.protocol"] == "SASL_SSL"
    assert full["sasl.mechanism"] == "SCRAM-SHA-512"
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, **full}).close()  # librdkafka agrees
    for spec, problem in (
        ({"security_protocol": "sasl_ssl"}, "requires 'user' and 'password'"),
        ({"user": "ada"}, "requires 'password'"),
        ({"user": "ada", "password": "x", "security_protocol": "ssl"}, "does not log in"),
        ({"tls": {"ca": certificate["cert"]}, "security_protocol": "plaintext"}, "does not encrypt"),
        ({"user": "ada", "password": "x", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
        ({"tls": {"cert": certificate["cert"]}}, "both 'cert' and 'key'"),
        ({"tls": {"ca": "/nowhere.pem"}}, "cannot be read"),
        ({"tls": {"ca": "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----"}}, "no PEM"),
        ({"tls": {"certs": "x"}}, "did you mean 'cert'"),
    ):
        with pytest.raises(SourceMisconfigured, match=problem):
            config(spec)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("nats", "nats"),
        ("kafka", "confluent_kafka"),
        ("mqtt", "paho.mqtt.client"),
        ("sqs", "botocore.session"),
        ("amqp", "aiormq"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    source: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"tape\[{source}\]"):
        open_source(source, {})


@pytest.mark.parametrize(
    ("source", "spec", "host"),
    [
        ("mqtt", {"url": "mqtt://Broker.example.com", "topic": "t", "client_id": "c"}, "broker.example.com:1883"),
        ("mqtt", {"url": "mqtts://u:p@broker.example.com/"}, "broker.example.com:8883"),
        ("amqp", {"url": "amqp://rabbit"}, "rabbit:5672"),
        ("amqp", {"url": "amqps://rabbit"}, "rabbit:5671"),
        ("sqs", {"region": "eu-central-1"}, "sqs.eu-central-1.amazonaws.com:443"),
        ("sqs", {"region": "cn-north-1"}, "sqs.cn-north-1.amazonaws.com.cn:443"),
        ("sqs", {"region": "eu-central-1", "endpoint": "http://127.0.0.1:5000"}, "127.0.0.1:5000"),
    ],
)
def test_the_hosts_that_a_credential_is_sent_to_are_known_before_it_is_revealed(
    source: str, spec: dict[str, Any], host: str
) -> None:
    assert source_hosts(source, spec) == (host,)


def test_a_credential_with_an_address_goes_nowhere_else() -> None:
    spec = {"url": "mqtt://evil.example.com", "topic": "t", "client_id": "c"}
    source: Any = open_source("mqtt", spec, {"url": "mqtts://broker.example.com", "user": "u", "password": "p"})
    assert source._connection.address.shown == "broker.example.com:8883"


def test_an_unknown_source_is_rejected() -> None:
    with pytest.raises(SourceMisconfigured, match="Available: nats, kafka, pubsub, mqtt, sqs, amqp"):
        open_source("webhook", {})

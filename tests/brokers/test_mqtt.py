"""What MQTT has and other brokers have not: sessions, shared subscriptions, QoS, logins."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tape.brokers import open_source
from tape.brokers.source import Delivery, Source
from tape.errors import SourceMisconfigured, SourceMissing, SourceUnavailable
from tests.brokers.rigs import Rig, mqtt_rig, or_skip
from tests.certificates import self_signed
from tests.mqtt_broker import Mosquitto, find_mosquitto

WAIT_S = 20


async def fetch(source: Source, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    for _ in range(20):
        found += await source.poll(count - len(found), WAIT_S)
        if len(found) == count:
            break
    return found


async def opened(rig: Rig, **more: Any) -> Source:
    source = rig.open(**more)
    await source.open()
    return source


@pytest.mark.parametrize("protocol", ["mqtt5", "mqtt3.1.1"])
async def test_an_outage_is_reported_and_unsettled_messages_come_again_with_their_ids(protocol: str) -> None:
    with or_skip(Mosquitto()) as broker:
        rig = await mqtt_rig(broker, protocol)
        source = await opened(rig)
        await rig.feed(b"one", b"two", b"three")
        first, second, third = await fetch(source, 3)
        await source.ack([first.receipt])
        broker.stop()
        with pytest.raises(SourceUnavailable, match="MQTT at 127"):
            await source.poll(1, WAIT_S)
        with pytest.raises(SourceUnavailable, match="MQTT at 127"):
            await source.ack([second.receipt])
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            await source.open()
        broker.start()
        await source.open()
        await source.ack([second.receipt])  # handled during the outage
        (again,) = await fetch(source, 1)
        assert (again.body, again.message_id, again.deliveries) == (b"three", third.message_id, 2)
        await source.ack([again.receipt])
        await rig.feed(b"four")
        assert [each.body for each in await fetch(source, 1)] == [b"four"]
        await source.close()


async def test_what_a_killed_process_had_is_redelivered_to_the_next_one(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    source = await opened(rig)
    await rig.feed(b"one", b"two")
    one, _ = await fetch(source, 2)
    await source.ack([one.receipt])
    other = await opened(rig)  # the broker ends the connection of the one before
    (again,) = await fetch(other, 1)
    assert (again.body, again.deliveries) == (b"two", 2)
    with pytest.raises(SourceUnavailable, match="MQTT at 127"):
        await source.poll(1, WAIT_S)
    await other.ack([again.receipt])
    await source.close()
    await other.close()


async def test_messages_published_without_a_connection_wait_in_the_session(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    await (await opened(rig)).close()
    await rig.feed(*(str(number).encode() for number in range(30)))  # more than the broker's window of 20
    source = await opened(rig)
    for number in range(30):
        (got,) = await fetch(source, 1)
        assert got.body == str(number).encode()
        await source.ack([got.receipt])
    await source.close()


async def test_a_session_that_the_broker_has_lost_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with or_skip(Mosquitto()) as broker:
        rig = await mqtt_rig(broker)
        source = await opened(rig)
        broker.stop()
        broker.forget()
        broker.start()
        with caplog.at_level(logging.WARNING):
            await source.open()
        assert "has lost the session of client_id" in caplog.text
        await rig.feed(b"after")
        assert [each.body for each in await fetch(source, 1)] == [b"after"]
        await source.close()


async def test_two_processes_share_a_subscription(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    topic = f"$share/workers/{rig.spec['topic']}"
    one, two = [await opened(rig, topic=topic, client_id=f"{rig.spec['client_id']}-{n}") for n in (1, 2)]
    await rig.feed(*(str(number).encode() for number in range(10)))
    found = [*await fetch(one, 5), *await fetch(two, 5)]
    assert sorted(each.body or b"" for each in found) == [str(number).encode() for number in range(10)]
    await one.close()
    await two.close()


async def test_the_broker_sends_no_more_than_max_in_flight(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    source = await opened(rig, max_in_flight=3)
    await rig.feed(*(str(number).encode() for number in range(5)))
    got = await fetch(source, 3)
    assert await source.poll(10, 0.3) == []
    await source.ack([got[0].receipt])
    assert [each.body for each in await fetch(source, 1)] == [b"3"]
    await source.close()


async def test_a_refused_message_is_not_overtaken_by_later_ones_of_its_topic(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    source = await opened(rig)
    await rig.feed(b"one", b"two")
    one, two = await fetch(source, 2)
    await source.nack([one.receipt], 0.2)
    assert [source.will_redeliver(each.receipt) for each in (one, two)] == [True, True]
    await rig.feed(b"three")
    again = await fetch(source, 3)
    assert [(each.body, each.deliveries) for each in again] == [(b"one", 2), (b"two", 1), (b"three", 1)]
    assert not any(source.will_redeliver(each.receipt) for each in again)
    await source.close()


async def test_user_properties_keep_all_their_values(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    source = await opened(rig)
    headers = [("X-Tag", "red"), ("x-tag", "green"), ("X-Tag", "blue")]
    await rig.feed(b"one", headers=headers)
    (got,) = await fetch(source, 1)
    assert list(got.headers) == headers
    assert got.ordering_key == got.metadata["topic"] == rig.spec["topic"]
    await source.close()


async def test_a_broker_that_grants_only_qos_0_is_refused() -> None:
    with or_skip(Mosquitto("allow_anonymous true\nmax_qos 0")) as broker:
        rig = await mqtt_rig(broker)
        with pytest.raises(SourceMissing, match=r"grants only QoS 0 .* messages could be lost"):
            await rig.open().open()


async def test_a_login_is_required_and_never_shown(tmp_path: Path) -> None:
    with or_skip(Mosquitto(f"password_file {password_file(tmp_path)}")) as broker:
        spec = {"url": f"mqtt://{broker.address}", "topic": "orders", "client_id": "tape"}
        source = open_source("mqtt", spec, {"username": "tape", "password": "hush"})
        await source.open()
        await source.close()
        in_url = open_source("mqtt", spec | {"url": f"mqtt://tape:hush@{broker.address}"})
        await in_url.open()
        await in_url.close()
        with pytest.raises(SourceUnavailable, match="refuses the connection: Not authorized") as raised:
            await open_source("mqtt", spec, {"user": "tape", "password": "hush2"}).open()
        assert "hush" not in str(raised.value)


def password_file(folder: Path) -> Path:
    program, environment = find_mosquitto_passwd()
    found = folder / "passwords"
    found.write_text("tape:hush\n")
    subprocess.run([program, "-U", str(found)], check=True, env=os.environ | environment)
    return found


def find_mosquitto_passwd() -> tuple[str, dict[str, str]]:
    from tests.debian_packages import NotAvailable

    try:
        program, environment = find_mosquitto()
    except NotAvailable as error:
        pytest.skip(str(error))
    return str(Path(program).parent.parent / "bin" / "mosquitto_passwd"), environment


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves a failed handshake open
async def test_the_connection_is_encrypted_when_the_address_says_so(tmp_path: Path) -> None:
    certificate = self_signed()
    for name, text in certificate.items():
        (tmp_path / name).write_text(text)
    listener = f"certfile {tmp_path}/cert\nkeyfile {tmp_path}/key\ncafile {tmp_path}/cert\nrequire_certificate true"
    with or_skip(Mosquitto(listener=listener)) as broker:
        spec = {"url": f"mqtts://{broker.address}", "topic": "orders", "client_id": "tape"}
        source = open_source("mqtt", spec, certificate | {"ca": certificate["cert"]})
        await source.open()
        await source.close()
        with pytest.raises(SourceUnavailable, match="certificate verify failed"):
            await open_source("mqtt", spec, certificate).open()
    gc.collect()
    with pytest.raises(SourceMisconfigured, match="does not encrypt; use mqtts://"):
        open_source("mqtt", spec | {"url": "mqtt://127.0.0.1"}, certificate)


async def test_receipts_of_something_else_and_wrong_settings_are_refused(mqtt_broker: Mosquitto) -> None:
    rig = await mqtt_rig(mqtt_broker)
    source = await opened(rig)
    for foreign in ("orders.secret", "topic:1", ""):
        with pytest.raises(SourceMissing, match="is not a receipt"):
            await source.ack([foreign])
    await source.close()
    for more, problem in (
        ({"topic": "a/#/b"}, "'topic' may have # only as its last level"),
        ({"url": "nats://h"}, "'url' must begin with mqtt:// or mqtts://"),
        ({"protocol": "mqtt4"}, "'protocol' is 'mqtt4'; use one of mqtt5, mqtt3.1.1"),
        ({"session_expiry_secs": 0}, "'session_expiry_secs' must be a whole number from 1 to"),
    ):
        with pytest.raises(SourceMisconfigured, match=problem):
            open_source("mqtt", rig.spec | more)

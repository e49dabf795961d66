"""Thousands of packet sequences (`sequences.py`) get the answer that the standard asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mqtt5
import pytest
import uvloop

from tests.fronts.mqtt.rig import opened, scenario, soon
from tests.fronts.mqtt.sequences import CLOSED, GROUPS, PINGREQ, STAYS, Sequence, connect, text

AT_ONCE = 32
PINGRESP = 0xD0
Packet = tuple[int, bytes]


def whole_packets(data: bytes) -> tuple[list[Packet], bytes]:
    """The packets that are there, and what is left."""
    found: list[Packet] = []
    while len(data) >= 2:
        size, shift, start = 0, 0, 1
        while start < len(data):
            size |= (data[start] & 0x7F) << shift
            shift, start = shift + 7, start + 1
            if data[start - 1] < 0x80:
                break
        else:
            break
        if len(data) < start + size:
            break
        found.append((data[0], data[start : start + size]))
        data = data[start + size :]
    return found, data


def bare(version: int, packet: Packet) -> Packet:
    """An answer without its reason string."""
    first, body = packet
    if first in (0x90, 0xB0):
        return first, body[:2] + (body[3 + body[2] :] if version == 5 else body[2:])
    return first, body[:3] if body[2:3] != b"\0" else body[:2]


async def outcome(port: int, sequence: Sequence, number: int) -> tuple[int, list[Packet]]:
    """How the connection ended or went on, and what was answered before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard: list[Packet] = []
    left = b""
    try:
        if sequence.connects:
            writer.write(connect(sequence.version, text(f"client-{number}")))
            while not heard:
                heard, left = whole_packets(left + await soon(reader.read(65_536)))
            assert heard[0][0] == 0x20, heard
            heard.clear()
        writer.write(sequence.sent + bytes([PINGREQ, 0]))
        while data := await soon(reader.read(65_536)):
            more, left = whole_packets(left + data)
            heard += more
            answers = [bare(sequence.version, one) for one in heard if one[0] not in (PINGRESP, 0x20, 0xE0)]
            if any(first == PINGRESP for first, _ in heard) and len(answers) >= len(sequence.answers):
                return STAYS, answers
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    first, body = heard[-1] if heard else (0, b"")
    if first == 0xE0:
        return body[0], []
    return (body[1], []) if first == 0x20 else (CLOSED, [])


@pytest.mark.parametrize("group", GROUPS)
def test_the_answer_is_that_of_the_standard(group: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as front:
            places, wrong = asyncio.Semaphore(AT_ONCE), list[str]()

            async def check(number: int, sequence: Sequence) -> None:
                async with places:
                    ended, answers = await outcome(front.server.port, sequence, number)
                expected = [bare(sequence.version, whole_packets(one)[0][0]) for one in sequence.answers]
                if ended != sequence.expected or (expected and answers != expected):
                    wrong.append(
                        f"{sequence.name}: {ended:#x} and {answers}, not {sequence.expected:#x} and {expected}"
                    )

            await asyncio.gather(*(check(number, sequence) for number, sequence in enumerate(GROUPS[group]())))
            assert not wrong, "\n".join([f"{len(wrong)} are answered wrongly:", *wrong[:20]])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    names = [f"{group} {sequence.name}" for group, make in GROUPS.items() for sequence in make()]
    assert len(names) > 3_500
    assert len(set(names)) == len(names)


@scenario
async def test_a_delivery_of_qos_2_that_was_released_takes_no_puback(path: Path) -> None:
    async with opened(path) as front:
        client, publisher = await front.connect("a"), await front.connect("b")
        await client.subscribe("t", qos=2)
        await publisher.publish("t", qos=2)
        delivered = await client.message(answer=False)
        client.send(mqtt5.PubRecPacket(delivered.packet_id))
        await client.expect(mqtt5.PubRelPacket)
        client.send(mqtt5.PubRecPacket(delivered.packet_id))
        await client.expect(mqtt5.PubRelPacket)
        client.send(mqtt5.PubAckPacket(delivered.packet_id))
        gone = await client.expect(mqtt5.DisconnectPacket)
        assert gone.reason_code == mqtt5.DisconnectReasonCode.PROTOCOL_ERROR

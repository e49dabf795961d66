"""Sequences of packets, most of them wrong, each with the answer that the standard asks for.

They are made from the numbered statements of MQTT 3.1.1 and 5 ([MQTT-x.y.z-n] where there is one, the section where
there is none): every packet cut at every byte and with a byte too many, every flag, every property in every packet
(alone, twice, cut, with values out of bounds), texts that are none, packet ids, topics, filters, answers out of turn.
Packets are written here by hand, apart from the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH = 0x82, 0xA2, 0xC0, 0xE0, 0xF0
MALFORMED, PROTOCOL, ALIAS, TOO_LARGE, RECEIVE_MAXIMUM = 0x81, 0x82, 0x94, 0x95, 0x93
STAYS: Final = -1
"""The connection goes on."""
CLOSED: Final = -2
"""It is closed, and nothing is said."""
VERSIONS: Final = (4, 5)


class Sequence(NamedTuple):
    """What a client sends, and how the connection must end."""

    name: str
    version: int
    sent: bytes
    expected: int
    """`STAYS`, `CLOSED`, or the reason of the last DISCONNECT or CONNACK: of 3.1.1 only CONNACKs have one."""
    answers: tuple[bytes, ...] = ()
    """Packets that come before that, in this order; a reason string is not compared."""
    connects: bool = True
    """A CONNECT that is in order is sent before, and its answer waited for."""


def length(value: int) -> bytes:
    encoded = b""
    while True:
        value, low = divmod(value, 128)
        if not value:
            return encoded + bytes([low])
        encoded += bytes([low | 0x80])


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([first]) + length(len(body)) + body


def properties(version: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return length(len(body)) + body if version == 5 else b""


def short(value: int) -> bytes:
    return value.to_bytes(2, "big")


def connect(
    version: int,
    client_id: bytes,
    *,
    flags: int = 0x02,
    given: bytes = b"",
    payload: bytes = b"",
    name: str = "MQTT",
    level: int = 0,
    first: int = CONNECT,
) -> bytes:
    """A CONNECT; `given` are its properties, `payload` what follows the client id."""
    head = text(name) + bytes([level or version, flags, 0, 0])
    return packet(first, head, properties(version, given), client_id, payload)


def publish(version: int, *, topic: str | bytes = "t", qos: int = 0, id: int = 7, given: bytes = b"") -> bytes:
    return packet(PUBLISH | qos << 1, text(topic), short(id) if qos else b"", properties(version, given), b"payload")


def subscribe(version: int, topic_filter: str | bytes = "t", *, options: int = 0, given: bytes = b"") -> bytes:
    return packet(SUBSCRIBE, short(7), properties(version, given), text(topic_filter), bytes([options]))


def unsubscribe(version: int, topic_filter: str | bytes = "t", *, given: bytes = b"") -> bytes:
    return packet(UNSUBSCRIBE, short(7), properties(version, given), text(topic_filter))


def told(version: int, reason: int) -> int:
    """How a fault of a client that is let in ends: 3.1.1 can only be closed."""
    return reason if version == 5 else CLOSED


def at(version: int, name: str, sent: bytes, reason: int, answers: tuple[bytes, ...] = ()) -> Sequence:
    return Sequence(f"{name} ({version})", version, sent, reason if reason < 0 else told(version, reason), answers)


# Packets that are cut, or too long -----------------------------------------------------------------------


def _whole(version: int) -> dict[str, tuple[bytes, set[int]]]:
    """Packets that are in order, without their lengths, and the sizes at which a part of the body is in order too."""
    none = properties(version)
    answers: set[int] = {2, 3} if version == 5 else {2}
    tail = b"\0\0" if version == 5 else b""
    return {
        "PUBLISH of QoS 0": (bytes([PUBLISH]) + text("top") + none + b"pay", set(range(5 + len(none), 100))),
        "PUBLISH of QoS 1": (
            bytes([PUBLISH | 2]) + text("top") + short(7) + none + b"pay",
            set(range(7 + len(none), 100)),
        ),
        "SUBSCRIBE": (bytes([SUBSCRIBE]) + short(7) + none + text("top") + b"\0", set()),
        "UNSUBSCRIBE": (bytes([UNSUBSCRIBE]) + short(7) + none + text("top"), set()),
        "PUBACK": (bytes([PUBACK]) + short(7) + tail, answers),
        "PUBCOMP": (bytes([PUBCOMP]) + short(7) + tail, answers),
    }


def cut() -> Iterator[Sequence]:
    """[MQTT-1.5.4-1], 2.1.4: a packet has as many bytes as its fields need."""
    for version in VERSIONS:
        for name, (whole, fine) in _whole(version).items():
            first, body = whole[0], whole[1:]
            for size in range(len(body)):
                if size in fine:
                    continue
                is_empty = name in ("SUBSCRIBE", "UNSUBSCRIBE") and size == 2 + len(properties(version))
                reason = PROTOCOL if is_empty else MALFORMED  # [MQTT-3.8.3-2], [MQTT-3.10.3-2]
                yield at(version, f"{name} of {size} bytes", packet(first, body[:size]), reason)
            if not name.startswith("PUBLISH"):
                yield at(version, f"{name} with a byte more", packet(first, body, b"\0"), MALFORMED)
        yield at(version, "PINGREQ with a byte more", packet(PINGREQ, b"\0"), MALFORMED)
        for value in (b"\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x00"):
            yield at(version, f"remaining length {value.hex()}", bytes([PUBLISH]) + value, MALFORMED)
    yield at(4, "DISCONNECT with a byte more", packet(DISCONNECT, b"\0"), MALFORMED)
    yield at(5, "DISCONNECT with a byte more", packet(DISCONNECT, b"\0\0\0"), MALFORMED)
    yield at(5, "PUBLISH larger than is allowed", b"\x30\xff\xff\xff\x7f", TOO_LARGE)


# Kinds and flags ----------------------------------------------------------------------------------------


def kinds() -> Iterator[Sequence]:
    """[MQTT-2.1.3-1], [MQTT-2.2.2-1]: reserved flags; and packets that are not a client's."""
    for version in VERSIONS:
        bodies = {
            PUBACK: short(7),
            PUBREC: short(7),
            PUBREL: short(7),
            PUBCOMP: short(7),
            SUBSCRIBE: subscribe(version)[2:],
            UNSUBSCRIBE: unsubscribe(version)[2:],
            PINGREQ: b"",
            DISCONNECT: b"",
        }
        for first, body in bodies.items():
            for flags in range(16):
                if flags != first & 0x0F:
                    wrong = first & 0xF0 | flags
                    yield at(version, f"first byte {wrong:02x}", packet(wrong, body), MALFORMED)
        yield at(version, "kind 0", packet(0x00, b"\0\0"), MALFORMED)
        for first, body in ((0x20, b"\0\0\0"), (0x90, b"\0\7\0\0"), (0xB0, b"\0\7\0\0"), (0xD0, b"")):
            yield at(version, f"a server's packet {first:02x}", packet(first, body), PROTOCOL)
        yield at(version, "AUTH without a method", packet(AUTH, b"\x18\0" if version == 5 else b""), PROTOCOL)
        yield at(version, "a second CONNECT", connect(version, text("x")), PROTOCOL)  # [MQTT-3.1.0-2]
        yield at(version, "PUBLISH of QoS 3", publish(version, qos=3), MALFORMED)  # [MQTT-3.3.1-4]
        dup = bytes([PUBLISH | 8]) + publish(version)[1:]
        yield at(version, "QoS 0 with the dup flag", dup, MALFORMED)  # [MQTT-3.3.1-2]
        for first in (PUBLISH, SUBSCRIBE, PUBACK, PINGREQ, DISCONNECT, 0x20, AUTH):
            name = f"first packet {first:02x} ({version})"  # [MQTT-3.1.0-1]
            yield Sequence(name, version, packet(first, subscribe(version)[2:]), CLOSED, connects=False)


def packet_ids() -> Iterator[Sequence]:
    """[MQTT-2.2.1-3], [MQTT-2.3.1-1]: a packet id is not 0."""
    for version in VERSIONS:
        for qos in (1, 2):
            yield at(version, f"PUBLISH of QoS {qos} with packet id 0", publish(version, qos=qos, id=0), PROTOCOL)
        for first in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            yield at(version, f"{first:02x} with packet id 0", packet(first, b"\0\0"), PROTOCOL)
        for whole in (subscribe(version), unsubscribe(version)):
            zero = whole[:2] + b"\0\0" + whole[4:]
            yield at(version, f"{whole[0]:02x} with packet id 0", zero, PROTOCOL)


# Texts, topics and filters ------------------------------------------------------------------------------

NO_TEXTS: Final = {
    "a cut sequence": b"t\xc3",
    "an overlong slash": b"\xc0\xaf",
    "a surrogate": b"t\xed\xa0\x80",
    "the last surrogate": b"t\xed\xbf\xbf",
    "U+0000": b"t\0t",
    "a byte that UTF-8 has not": b"\xff",
    "more than U+10FFFF": b"\xf4\x90\x80\x80",
}
"""[MQTT-1.5.4-1], [MQTT-1.5.4-2], [MQTT-1.5.3-1], [MQTT-1.5.3-2]"""
CONTROLS: Final = ("\x01", "\x1f", "\x7f", "\x80", "\x9f")
"""1.5.4: a receiver may take these in a topic for malformed, and so does Mosquitto."""


def texts() -> Iterator[Sequence]:
    for version in VERSIONS:
        for name, raw in NO_TEXTS.items():
            yield at(version, f"topic with {name}", publish(version, topic=raw), MALFORMED)
            yield at(version, f"filter with {name}", subscribe(version, raw), MALFORMED)
            yield at(version, f"filter to unsubscribe with {name}", unsubscribe(version, raw), MALFORMED)
            reason = told(version, MALFORMED)
            will = properties(version) + text(raw) + text("w")
            for what, sent in (
                ("client id", connect(version, text(raw))),
                ("user name", connect(version, text("c"), flags=0x82, payload=text(raw))),
                ("will's topic", connect(version, text("c"), flags=0x06, payload=will)),
            ):
                yield Sequence(f"{what} with {name} ({version})", version, sent, reason, connects=False)
            if version == 5:
                for identifier in (0x03, 0x08):
                    given = bytes([identifier]) + text(raw)
                    yield at(5, f"property {identifier:02x} with {name}", publish(5, given=given), MALFORMED)
                for what, given in (("name", text(raw) + text("v")), ("value", text("k") + text(raw))):
                    sent = publish(5, given=b"\x26" + given)
                    yield at(5, f"user property's {what} with {name}", sent, MALFORMED)
        for control in CONTROLS:
            yield at(version, f"topic with {control!r}", publish(version, topic=f"t{control}"), MALFORMED)
            yield at(version, f"filter with {control!r}", subscribe(version, f"t{control}"), MALFORMED)
        yield at(version, "topic with U+FEFF", publish(version, topic="\ufefft"), STAYS)  # [MQTT-1.5.4-3]
        yield at(version, "topic with U+2A6D4", publish(version, topic="A\U0002a6d4"), STAYS)
        for topic in ("#", "+", "a/#", "a/+/b", "a#", "+a"):  # [MQTT-3.3.2-2]
            yield at(version, f"topic {topic}", publish(version, topic=topic), MALFORMED)
        yield at(version, "empty filter", subscribe(version, ""), MALFORMED)  # [MQTT-4.7.3-1]
        yield at(version, "empty filter to unsubscribe", unsubscribe(version, ""), MALFORMED)
        for wrong in ("a#", "#/a", "a/#/b", "a+", "+a/b", "$share//t", "$share/g", "$share/g+/t"):
            # [MQTT-4.7.1-1] to [MQTT-4.7.1-3], [MQTT-4.8.2-1], [MQTT-4.8.2-2]
            refused = packet(0x90, short(7), properties(version), b"\x8f" if version == 5 else b"\x80")
            yield at(version, f"filter {wrong}", subscribe(version, wrong), STAYS, (refused,))
    yield at(4, "empty topic", publish(4, topic=""), MALFORMED)
    yield at(5, "empty topic and no alias", publish(5, topic=""), PROTOCOL)  # 3.3.2.1


# Properties ---------------------------------------------------------------------------------------------

BYTE, TWO, FOUR, NUMBER, TEXT, PAIR = b"\1", b"\0\1", b"\0\0\0\1", b"\1", text("v"), text("k") + text("v")
PROPERTIES: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), BYTE),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), TWO),
    **dict.fromkeys((0x02, 0x11, 0x18), FOUR),
    0x27: b"\0\1\0\0",
    **dict.fromkeys((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F), TEXT),
    0x0B: NUMBER,
    0x26: PAIR,
}
"""2.2.2.2: a value of each, which is in order."""
ALLOWED: Final = {
    "CONNECT": {0x11, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27},
    "will": {0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26},
    "PUBLISH": {0x01, 0x02, 0x03, 0x08, 0x09, 0x23, 0x26},
    "PUBACK": {0x1F, 0x26},
    "PUBREC": {0x1F, 0x26},
    "PUBREL": {0x1F, 0x26},
    "PUBCOMP": {0x1F, 0x26},
    "SUBSCRIBE": {0x0B, 0x26},
    "UNSUBSCRIBE": {0x26},
    "DISCONNECT": {0x1F, 0x26},
}
ANSWERS: Final = {"PUBACK": PUBACK, "PUBREC": PUBREC, "PUBREL": PUBREL, "PUBCOMP": PUBCOMP}
OUT_OF_BOUNDS: Final = {
    ("CONNECT", 0x17, b"\2"): PROTOCOL,  # 3.1.2.11.7
    ("CONNECT", 0x19, b"\2"): PROTOCOL,  # 3.1.2.11.6
    ("CONNECT", 0x21, b"\0\0"): PROTOCOL,  # 3.1.2.11.3
    ("CONNECT", 0x27, b"\0\0\0\0"): PROTOCOL,  # 3.1.2.11.4
    ("will", 0x01, b"\2"): PROTOCOL,  # 3.1.3.2.3
    ("PUBLISH", 0x01, b"\2"): PROTOCOL,  # 3.3.2.3.2
    ("PUBLISH", 0x23, b"\0\0"): ALIAS,  # [MQTT-3.3.2-8]
    ("PUBLISH", 0x23, b"\xff\xff"): ALIAS,  # [MQTT-3.3.2-9]
    ("PUBLISH", 0x08, text("a/#")): PROTOCOL,  # [MQTT-3.3.2-14]
    ("PUBLISH", 0x08, text("+")): PROTOCOL,
    ("PUBLISH", 0x0B, b"\0"): PROTOCOL,  # [MQTT-3.3.4-6]
    ("PUBLISH", 0x0B, b"\x80\0"): MALFORMED,  # [MQTT-1.5.5-1]
    ("PUBLISH", 0x0B, b"\xff\xff\xff\xff\1"): MALFORMED,
    ("SUBSCRIBE", 0x0B, b"\0"): PROTOCOL,  # 3.8.2.1.2
    ("SUBSCRIBE", 0x0B, b"\x80\0"): MALFORMED,
    ("DISCONNECT", 0x11, b"\0\0\0\1"): PROTOCOL,  # 3.14.2.2.2: the session ends with its connection
}


def carrying(where: str, given: bytes, expected: int, name: str) -> Sequence:
    """The packet with these properties."""
    if where in ("CONNECT", "will"):
        will = properties(5, given) + text("w") + text("w")
        client_id = text(f"{where}-{given.hex()}")
        flags, payload = (0x06, will) if where == "will" else (0x02, b"")
        sent = connect(5, client_id, flags=flags, given=b"" if where == "will" else given, payload=payload)
        return Sequence(name, 5, sent, expected, connects=False)
    sent = {
        "PUBLISH": publish(5, given=given),
        "SUBSCRIBE": subscribe(5, given=given),
        "UNSUBSCRIBE": unsubscribe(5, given=given),
        "DISCONNECT": packet(DISCONNECT, b"\0", properties(5, given)),
    }.get(where) or packet(ANSWERS.get(where, 0), short(7), b"\0", properties(5, given))
    return Sequence(name, 5, sent, expected)


def each_property() -> Iterator[Sequence]:
    """[MQTT-2.2.2], 3.x.2: what each packet may carry, once, whole, and within its bounds.

    Of a property that is another packet's 2.2.2.2 says malformed; Mosquitto answers protocol error, and so do we.
    """
    for where, allowed in ALLOWED.items():
        goes_on = CLOSED if where == "DISCONNECT" else STAYS
        for identifier, value in PROPERTIES.items():
            one = bytes([identifier]) + value
            name = f"{where} with property {identifier:02x}"
            special = where == "CONNECT" and identifier in (0x15, 0x16)  # authentication: below
            if not special:
                yield carrying(where, one, goes_on if identifier in allowed else PROTOCOL, name)
                twice = goes_on if identifier == 0x26 else PROTOCOL
                yield carrying(where, one + one, twice if identifier in allowed else PROTOCOL, f"{name} twice")
            yield carrying(where, one[:-1], MALFORMED, f"{name} cut")
            yield carrying(where, one[:1], MALFORMED, f"{name} without a value")
        for identifier in (0x00, 0x04, 0x07, 0x0A, 0x10, 0x14, 0x1B, 0x1D, 0x20, 0x2B, 0x7F):
            yield carrying(where, bytes([identifier, 1]), MALFORMED, f"{where} with unknown property {identifier:02x}")
        for wide in (b"\x80\x00", b"\x80\x01", b"\xff\x7f", b"\x80\x80\x01", b"\x80\x80\x80\x80\x01"):
            yield carrying(where, wide + b"\1", MALFORMED, f"{where} with property {wide.hex()}")
    for (where, identifier, value), reason in OUT_OF_BOUNDS.items():
        yield carrying(where, bytes([identifier]) + value, reason, f"{where} with {identifier:02x} {value.hex()}")
    yield carrying("CONNECT", b"\x16" + TEXT, PROTOCOL, "authentication data without a method")  # 3.1.2.11.10
    yield carrying("CONNECT", b"\x15" + TEXT, 0x8C, "a method of authentication that is not known")  # 4.12
    yield at(5, "properties longer than the packet", packet(PUBLISH, text("t"), b"\x7fx"), MALFORMED)
    yield at(5, "properties into the payload", packet(PUBLISH, text("t"), b"\x02\x23\0\x01x"), MALFORMED)
    yield at(5, "length of properties with a needless byte", packet(PUBLISH, text("t"), b"\x80\0x"), MALFORMED)
    yield at(5, "an alias that was not set", publish(5, topic="", given=b"\x23\0\5"), PROTOCOL)  # 3.3.4


# CONNECT, SUBSCRIBE and DISCONNECT ----------------------------------------------------------------------


def options() -> Iterator[Sequence]:
    for value in range(256):
        qos, retain_handling = value & 3, value >> 4 & 3
        if value & 0xC0:
            expected = MALFORMED  # [MQTT-3.8.3-5]
        elif qos == 3 or retain_handling == 3:
            expected = PROTOCOL  # 3.8.3.1
        else:
            expected = STAYS
        yield at(5, f"subscription with options {value:02x}", subscribe(5, options=value), expected)
        expected = STAYS if value < 3 else MALFORMED  # [MQTT-3-8.3-4]
        yield at(4, f"subscription with options {value:02x}", subscribe(4, options=value), expected)
    yield at(5, "no local and shared", subscribe(5, "$share/g/t", options=0x04), PROTOCOL)  # [MQTT-3.8.3-4]


CLIENT_REASONS: Final = {0x00, 0x04, *range(0x80, 0x84), *range(0x90, 0x9A)} - {0x91, 0x92}
"""3.14.2.1: of DISCONNECT, what a client may say."""
PUBLISH_REASONS: Final = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
"""3.4.2.1, 3.5.2.1"""


def reasons() -> Iterator[Sequence]:
    for reason in range(256):
        expected = CLOSED if reason in CLIENT_REASONS else PROTOCOL
        yield at(5, f"DISCONNECT with reason {reason:02x}", packet(DISCONNECT, bytes([reason])), expected)
        expected = STAYS if reason in PUBLISH_REASONS else PROTOCOL
        yield at(5, f"PUBACK with reason {reason:02x}", packet(PUBACK, short(7), bytes([reason])), expected)
        expected = STAYS if reason in (0x00, 0x92) else PROTOCOL
        yield at(5, f"PUBCOMP with reason {reason:02x}", packet(PUBCOMP, short(7), bytes([reason])), expected)


def connects() -> Iterator[Sequence]:
    """3.1: flags, names and levels of CONNECT, and what must follow."""
    for version in VERSIONS:
        for flags in range(256):
            has_will, will_qos, has_password, has_user = flags & 4, flags >> 3 & 3, flags & 0x40, flags & 0x80
            payload = properties(version) + text("w") + text("w") if has_will else b""
            payload += text("u") if has_user else b""
            payload += text("p") if has_password else b""
            wrong = (
                flags & 1  # [MQTT-3.1.2-3]
                or will_qos == 3  # [MQTT-3.1.2-12]
                or (not has_will and flags & 0x38)  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]
                or (version == 4 and has_password and not has_user)  # [MQTT-3.1.2-22]
            )
            expected = told(version, MALFORMED) if wrong else STAYS
            sent = connect(version, text(f"flags-{version}-{flags}"), flags=flags, payload=payload)
            yield Sequence(f"CONNECT with flags {flags:02x} ({version})", version, sent, expected, connects=False)
        whole = connect(version, text("client"))[2:]
        for size in range(10, len(whole)):
            name = f"CONNECT of {size} bytes ({version})"
            yield Sequence(name, version, packet(CONNECT, whole[:size]), told(version, MALFORMED), connects=False)
        more = packet(CONNECT, whole, b"\0")
        yield Sequence(f"CONNECT with a byte more ({version})", version, more, told(version, MALFORMED), connects=False)
        for flags in range(1, 16):
            sent = connect(version, text("c"), first=CONNECT | flags)
            yield Sequence(f"CONNECT with first byte {flags} ({version})", version, sent, CLOSED, connects=False)
        sent = connect(version, text("c"), name="MQXX")
        yield Sequence(f"CONNECT of another protocol ({version})", version, sent, CLOSED, connects=False)
    for level in (0, 1, 2, 3):
        sent = connect(4, text("c"))
        sent = sent[:8] + bytes([level]) + sent[9:]
        yield Sequence(f"CONNECT of level {level}", 4, sent, 0x01, connects=False)  # [MQTT-3.1.2-2]
    for level in (6, 7, 0x7F):
        yield Sequence(f"CONNECT of level {level}", 5, connect(5, text("c"), level=level), 0x84, connects=False)
    nameless = connect(4, text(""), flags=0)
    yield Sequence("no client id and no clean session", 4, nameless, 0x02, connects=False)  # [MQTT-3.1.3-8]


# Answers out of turn ------------------------------------------------------------------------------------


def turns() -> Iterator[Sequence]:
    """4.3: each answer has its place in the exchange of a message. A client publishes to itself here."""
    for version in VERSIONS:
        nothing = b"\x92" if version == 5 else b""
        yield at(version, "PUBACK of nothing", packet(PUBACK, short(7)), STAYS)
        yield at(version, "PUBCOMP of nothing", packet(PUBCOMP, short(7)), STAYS)
        yield at(version, "PUBREC of nothing", packet(PUBREC, short(7)), STAYS, (packet(0x62, short(7), nothing),))
        yield at(version, "PUBREL of nothing", packet(PUBREL, short(7)), STAYS, (packet(0x70, short(7), nothing),))
        unmatched = b"\x10" if version == 5 else b""
        received = packet(0x50, short(7), unmatched)
        twice = publish(version, qos=2, topic="nobody") * 2 + packet(PUBREL, short(7))
        again = packet(0x50, short(7))
        yield at(version, "QoS 2 sent twice", twice, STAYS, (received, again, packet(0x70, short(7))))
        released = publish(version, qos=2, topic="nobody") + packet(PUBREL, short(7)) * 2
        answers = (received, packet(0x70, short(7)), packet(0x70, short(7), nothing))
        yield at(version, "PUBREL sent twice", released, STAYS, answers)


GROUPS: Final = {
    maker.__name__: maker for maker in (cut, kinds, packet_ids, texts, each_property, options, reasons, connects, turns)
}

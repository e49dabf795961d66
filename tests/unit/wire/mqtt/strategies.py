"""Random packets of clients: as objects of the mqtt5 library, and as plain values for 3.1.1."""

from __future__ import annotations

import mqtt5
from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
CLIENT_IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
TOPICS = st.text(st.characters(exclude_characters="#+", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
PAYLOADS = st.binary(max_size=300)
PACKET_IDS = st.integers(1, 65535)
INTEGERS = st.integers(0, 0xFFFFFFFF)
USER_PROPERTIES = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)
QOS = st.sampled_from([0, 1, 2])

FILTERS = TOPICS | st.sampled_from(["#", "+/a", "$share/g/a/#"])


def _message_properties() -> dict[str, st.SearchStrategy[object]]:
    return {
        "payload_format_indicator": st.sampled_from([0, 1]),
        "message_expiry_interval": st.none() | INTEGERS,
        "content_type": st.none() | TEXTS,
        "response_topic": st.none() | TOPICS,
        "correlation_data": st.none() | PAYLOADS,
        "user_properties": USER_PROPERTIES,
    }


WILLS = st.builds(
    mqtt5.Will,
    TOPICS,
    payload=PAYLOADS,
    qos=QOS.map(mqtt5.QoS),
    retain=st.booleans(),
    will_delay_interval=INTEGERS,
    **_message_properties(),
)
CONNECTS = st.builds(
    mqtt5.ConnectPacket,
    CLIENT_IDS,
    username=st.none() | TEXTS,
    password=st.none() | PAYLOADS,
    clean_start=st.booleans(),
    will=st.none() | WILLS,
    keep_alive=st.integers(0, 65535),
    session_expiry_interval=INTEGERS,
    request_problem_info=st.booleans(),
    request_response_info=st.booleans(),
    receive_max=st.integers(1, 65535),
    topic_alias_max=st.integers(0, 65535),
    max_packet_size=st.none() | st.integers(1, 0xFFFFFFFF),
    user_properties=USER_PROPERTIES,
)


@st.composite
def publishes(draw: st.DrawFn) -> mqtt5.PublishPacket:
    qos = draw(QOS)
    return draw(
        st.builds(
            mqtt5.PublishPacket,
            TOPICS,
            PAYLOADS,
            qos=st.just(mqtt5.QoS(qos)),
            retain=st.booleans(),
            packet_id=PACKET_IDS if qos else st.none(),
            duplicate=st.booleans() if qos else st.just(False),
            **_message_properties(),
        )
    )


def _acknowledgements(packet: type[object], codes: type[object], values: list[int]) -> st.SearchStrategy[object]:
    return st.builds(
        packet,
        PACKET_IDS,
        reason_code=st.sampled_from(values).map(codes),
        reason_str=st.none() | TEXTS,
        user_properties=USER_PROPERTIES,
    )


PUBLISH_REASONS = [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]
PUBACKS = _acknowledgements(mqtt5.PubAckPacket, mqtt5.PubAckReasonCode, PUBLISH_REASONS)
PUBRECS = _acknowledgements(mqtt5.PubRecPacket, mqtt5.PubRecReasonCode, PUBLISH_REASONS)
PUBRELS = _acknowledgements(mqtt5.PubRelPacket, mqtt5.PubRelReasonCode, [0x00, 0x92])
PUBCOMPS = _acknowledgements(mqtt5.PubCompPacket, mqtt5.PubCompReasonCode, [0x00, 0x92])

SUBSCRIBES = st.builds(
    mqtt5.SubscribePacket,
    PACKET_IDS,
    st.lists(
        st.builds(
            mqtt5.TopicFilter,
            FILTERS,
            max_qos=QOS.map(mqtt5.QoS),
            no_local=st.just(False),
            retain_as_published=st.booleans(),
            retain_handling=QOS.map(mqtt5.RetainHandling),
        ),
        min_size=1,
        max_size=4,
    ),
    subscription_id=st.none() | st.integers(1, 0x0FFFFFFF),
    user_properties=USER_PROPERTIES,
)
UNSUBSCRIBES = st.builds(
    mqtt5.UnsubscribePacket,
    PACKET_IDS,
    st.lists(FILTERS, min_size=1, max_size=4),
    user_properties=USER_PROPERTIES,
)
DISCONNECTS = st.builds(
    mqtt5.DisconnectPacket,
    reason_code=st.sampled_from([0x00, 0x04, 0x80, 0x82, 0x93, 0x99]).map(mqtt5.DisconnectReasonCode),
    session_expiry_interval=st.none() | INTEGERS,
    reason_str=st.none() | TEXTS,
    user_properties=USER_PROPERTIES,
)
OPEN_PACKETS = st.one_of(publishes(), PUBACKS, PUBRECS, PUBRELS, PUBCOMPS, SUBSCRIBES, UNSUBSCRIBES, DISCONNECTS)
"""What a client of version 5 may send once it is let in."""

"""The batch codec on honest input: round trips, what columns cost, cutting and joining, limits.

Equality of bytes is the yardstick where it can be: a cut batch must be the very batch that encoding the cut messages
gives, so that nothing downstream can tell how a batch came to be.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import batch as codec
from penstock.batch import (
    EncodedBatch,
    Reader,
    check,
    decode,
    decode_meta,
    decode_single,
    encode,
    encode_alike,
    from_bytes,
    from_parts,
    is_intact,
    join,
    layout,
    meta_columns,
    payloads,
    select,
    to_bytes,
    to_parts,
)
from penstock.batch.body import COMPRESS_BYTES_MIN, _sample, write_body
from penstock.batch.columns import columns_of, write_meta
from penstock.model import BATCH_BYTES_DEFAULT as BATCH_BYTES_MAX
from penstock.model import (
    BATCH_MESSAGES_MAX,
    ID_CHARACTERS_MAX,
    INTEGER_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
    Message,
    check_message,
)
from penstock.model.errors import InvalidArgument, InvalidBatch, MessageTooLarge
from penstock.model.limits import HEADERS_BYTES_MAX, HEADERS_DEPTH_MAX, HEADERS_MAX, PRIORITY_MAX

UTC = dt.timezone.utc  # noqa: UP017 - the name that reads well in a repr
META_HEAD_BYTES = 13
BODY_HEAD_BYTES = 10

COLUMNS: dict[str, tuple[int, Any, Any]] = {
    "partition": (layout.COLUMN_PARTITION, "a", "b"),
    "key": (layout.COLUMN_KEY, "a", "b"),
    "headers": (layout.COLUMN_HEADERS, {"a": 1}, {"a": 2}),
    "priority": (layout.COLUMN_PRIORITY, 1, 2),
    "delay_ms": (layout.COLUMN_DELAY_MS, 1, 2),
    "not_before_ms": (layout.COLUMN_NOT_BEFORE_MS, 1, 2),
    "ttl_ms": (layout.COLUMN_TTL_MS, 1, 2),
    "dedup_id": (layout.COLUMN_DEDUP_ID, "a", "b"),
    "content_type": (layout.COLUMN_CONTENT_TYPE, "a", "b"),
    "correlation_id": (layout.COLUMN_CORRELATION_ID, "a", "b"),
    "trace_id": (layout.COLUMN_TRACE_ID, "a", "b"),
}

# Few distinct values, so that constants, defaults and repetitions come up, beside arbitrary ones.
characters = st.characters(codec="utf-8")


def texts(most: int) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(["", "a", "x" * most, "\U0001f600" * most]) | st.text(characters, max_size=40)


def numbers(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 0, 1, most]) | st.integers(0, most)


times = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0))  # UTC has no fold
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX - 1, INTEGER_MAX)
    | st.floats(allow_nan=False)
    | st.text(characters, max_size=20)
    | st.binary(max_size=20)
    | times
)
names = st.text(characters, max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
headers = (
    st.none() | st.sampled_from([{}, {"a": 1}, {"a": True}, {"a": 1.0}]) | st.dictionaries(names, values, max_size=4)
)
messages = st.builds(
    Message,
    payload=st.sampled_from([b"", b"abc", b"abd"]) | st.binary(max_size=100),
    partition=texts(PARTITION_CHARACTERS_MAX),
    key=texts(NAME_CHARACTERS_MAX),
    headers=headers,
    priority=numbers(PRIORITY_MAX),
    delay_ms=numbers(SPAN_MS_MAX),
    not_before_ms=numbers(TIME_MS_MAX),
    ttl_ms=st.none() | numbers(SPAN_MS_MAX),
    dedup_id=texts(ID_CHARACTERS_MAX),
    content_type=texts(ID_CHARACTERS_MAX),
    correlation_id=texts(ID_CHARACTERS_MAX),
    trace_id=texts(ID_CHARACTERS_MAX),
)
# Plain messages, messages that share all metadata, and wild ones.
batches = (
    st.lists(messages, max_size=20)
    | st.lists(st.builds(Message, payload=st.binary(max_size=50)), max_size=20)
    | st.builds(lambda message, count: [message] * count, messages, st.integers(1, 20))
)
relaxed = settings(max_examples=150, deadline=None)


def exact(found: object) -> str:
    """As text, in which 1, 1.0 and True differ as they do not under ==."""
    return repr(found)


# Round trips ---------------------------------------------------------------------------------------------


@relaxed
@given(batches)
def test_every_message_comes_back_exactly(given_messages: list[Message]) -> None:
    for message in given_messages:
        check_message(message)
    encoded = encode(given_messages)
    assert encoded.count == len(given_messages)
    assert exact(decode(encoded)) == exact(given_messages)
    assert payloads(encoded.body, encoded.count) == [message.payload for message in given_messages]
    assert codec.from_bytes(codec.to_bytes(encoded)) == encoded


@relaxed
@given(batches)
def test_meta_has_each_column_or_none(given_messages: list[Message]) -> None:
    encoded = encode(given_messages)
    meta = decode_meta(encoded.meta, encoded.count)
    assert meta.count == len(given_messages)
    mask = meta_columns(encoded.meta)
    for name, (bit, _, _) in COLUMNS.items():
        wanted = [getattr(message, name) for message in given_messages]
        default = getattr(Message(), name)
        absent = all(value == default for value in wanted)
        assert exact(getattr(meta, name)) == exact(None if absent else wanted)
        assert bool(mask & bit) is not absent
    if given_messages:
        assert exact(check(encoded)) == exact(meta)


@relaxed
@given(batches, st.data())
def test_messages_and_payloads_of_a_range(given_messages: list[Message], data: st.DataObject) -> None:
    start, stop = draw_range(data, len(given_messages))
    encoded = encode(given_messages)
    assert exact(Reader(encoded).messages(start, stop)) == exact(given_messages[start:stop])
    assert Reader(encoded).payloads(start, stop) == [m.payload for m in given_messages[start:stop]]


def draw_range(data: st.DataObject, count: int) -> tuple[int, int]:
    start = data.draw(st.integers(0, count))
    return start, data.draw(st.integers(start, count))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", "\U0001f600" * PARTITION_CHARACTERS_MAX),
        ("partition", ""),
        ("key", "ä" * NAME_CHARACTERS_MAX),
        ("headers", {}),
        ("headers", {f"{index}": None for index in range(HEADERS_MAX)}),
        ("headers", {"a": "x" * (HEADERS_BYTES_MAX - 1)}),
        ("headers", {"low": -INTEGER_MAX - 1, "high": INTEGER_MAX, "zero": -0.0, "infinite": float("inf")}),
        ("headers", {"first": dt.datetime.min.replace(tzinfo=UTC), "last": dt.datetime.max.replace(tzinfo=UTC)}),
        ("priority", PRIORITY_MAX),
        ("delay_ms", SPAN_MS_MAX),
        ("not_before_ms", TIME_MS_MAX),
        ("ttl_ms", 0),
        ("ttl_ms", SPAN_MS_MAX),
        ("dedup_id", "x" * ID_CHARACTERS_MAX),
        ("content_type", "x" * ID_CHARACTERS_MAX),
        ("correlation_id", "x" * ID_CHARACTERS_MAX),
        ("trace_id", "x" * ID_CHARACTERS_MAX),
    ],
)
def test_extremes_pass_alone_and_among_plain_messages(name: str, value: Any) -> None:
    message = Message(b"x", **{name: value})
    check_message(message)
    for given_messages in ([message], [Message(), message], [message] * 3):
        encoded = encode(given_messages)
        assert exact(decode(encoded)) == exact(given_messages)
        check(encoded)


def test_not_a_number_in_a_header_survives() -> None:
    (message,) = decode(encode([Message(headers={"a": float("nan")})]))
    assert message.headers is not None
    assert message.headers["a"] != message.headers["a"]


def test_a_time_in_another_zone_comes_back_as_the_same_moment() -> None:
    moment = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5)))
    (message,) = decode(encode([Message(headers={"at": moment})]))
    assert message.headers == {"at": moment}


def test_a_time_that_no_utc_calendar_holds_is_refused_when_encoded() -> None:
    late = dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-3)))
    with pytest.raises(InvalidArgument, match="headers cannot be encoded"):
        encode([Message(headers={"at": late})])


# What columns cost ---------------------------------------------------------------------------------------


def test_no_metadata_no_meta() -> None:
    encoded = encode([Message(b"x")] * 1000)
    assert encoded.meta == b""
    assert meta_columns(b"") == 0
    assert decode_meta(b"", 1000) == codec.Meta(1000)


@pytest.mark.parametrize("count", [1, 2, 40, 41])
def test_messages_that_are_alike_are_encoded_as_any_others(count: int) -> None:
    bodies = [b"x" * (index % 40) for index in range(count)]
    for content_type in ("application/json", "text/plain"):
        messages = [Message(payload, content_type=content_type) for payload in bodies]
        assert encode_alike(bodies, content_type) == encode(messages)


@pytest.mark.parametrize("name", COLUMNS)
def test_one_column_is_all_that_is_stored_of_it(name: str) -> None:
    bit, first, second = COLUMNS[name]
    several = encode([Message(**{name: first}), Message(), Message(**{name: second})])
    assert meta_columns(several.meta) == bit
    constant = encode([Message(**{name: first})] * 1000)
    assert meta_columns(constant.meta) == bit
    # a head, one length, one value of at most 4 bytes ({"a": 1})
    assert len(constant.meta) <= META_HEAD_BYTES + 4 + 4
    assert getattr(decode_meta(constant.meta, 1000), name) == [first] * 1000


def test_the_columns_are_in_the_order_of_the_fields_of_a_message() -> None:
    assert ("payload", *COLUMNS) == Message.__struct_fields__
    assert ("count", *COLUMNS) == codec.Meta.__struct_fields__
    assert [bit for bit, _, _ in COLUMNS.values()] == [1 << position for position in range(len(COLUMNS))]
    full = encode([Message(**{name: first for name, (_, first, _) in COLUMNS.items()})])
    assert meta_columns(full.meta) == (1 << len(COLUMNS)) - 1


def test_headers_that_are_equal_but_not_the_same_are_no_constant() -> None:
    given_messages = [Message(headers={"a": value}) for value in (1, True, 1.0)]
    assert exact(decode(encode(given_messages))) == exact(given_messages)


def test_headers_that_are_equal_in_separate_dicts_are_one_constant() -> None:
    separate = encode([Message(headers={"a": "b"}) for _ in range(1000)])
    shared = encode([Message(headers={"a": "b"})] * 1000)
    assert separate == shared
    assert separate.size < 100


def test_one_length_for_payloads_of_one_length() -> None:
    assert len(encode([Message(b"ab")] * 100).body) == BODY_HEAD_BYTES + 4 + 200
    assert len(encode([Message(b"ab")] * 49 + [Message(b"abc")]).body) == BODY_HEAD_BYTES + 200 + 101
    assert len(encode([Message()] * 100).body) == BODY_HEAD_BYTES + 4


def test_size_is_both_parts() -> None:
    encoded = encode([Message(b"abc", key="k")])
    assert encoded.size == len(encoded.meta) + len(encoded.body)


# Compression ---------------------------------------------------------------------------------------------


def is_compressed(encoded: EncodedBatch) -> bool:
    return bool(encoded.body[1] & layout.BODY_COMPRESSED)


def test_what_compresses_is_compressed() -> None:
    given_messages = [Message(b'{"order": %d, "region": "eu"}' % index) for index in range(1000)]
    encoded = encode(given_messages)
    assert is_compressed(encoded)
    assert encoded.size < sum(map(Message.size, given_messages)) // 3
    assert decode(encoded) == given_messages


@pytest.mark.parametrize(("count", "size"), [(1, 600), (1000, 200), (20_000, 2), (3, 100_000)])
def test_what_does_not_compress_is_left_alone(count: int, size: int) -> None:
    given_messages = [Message(os.urandom(size)) for _ in range(count)]
    encoded = encode(given_messages)
    assert not is_compressed(encoded)
    assert decode(encoded) == given_messages


@pytest.mark.parametrize("sizes", [[0] * 5_000 + [1], [0] * 5_000 + [3], [1, 0] * 2, [0] * 5_000 + [600], [0] * 5_000])
def test_many_lengths_and_few_payloads(sizes: list[int]) -> None:
    given_messages = [Message(os.urandom(size)) for size in sizes]
    encoded = encode(given_messages)
    assert decode(encoded) == given_messages


def test_what_is_small_is_left_alone() -> None:
    at = COMPRESS_BYTES_MIN - 4
    assert not is_compressed(encode([Message(b"x" * (at - 1))]))
    assert is_compressed(encode([Message(b"x" * at)]))


def test_a_sample_that_compresses_before_a_whole_that_does_not() -> None:
    # The sample sees the head of each quarter only.
    quarter = bytes(1024) + os.urandom(99 * 1024)
    encoded = encode([Message(quarter)] + [Message(bytes(1024) + os.urandom(99 * 1024)) for _ in range(3)])
    assert not is_compressed(encoded)


@pytest.mark.parametrize("size", [0, 1, 100, 10_000])
def test_a_body_is_intact_as_it_was_written_and_in_no_other_way(size: int) -> None:
    body = encode([Message(b"p" * size), Message(b"q" * (size // 2))]).body
    assert is_intact(body)
    for position in range(len(body)):
        damaged = bytearray(body)
        damaged[position] ^= 1
        assert not is_intact(bytes(damaged)), position
    for length in range(len(body)):
        assert not is_intact(body[:length]), length
    assert not is_intact(body + b"\0")


def test_nothing_is_no_intact_body() -> None:
    assert not is_intact(b"")
    assert not is_intact(bytes(BODY_HEAD_BYTES - 1))


def test_a_reader_can_say_the_size_of_a_damaged_batch() -> None:
    """It is kept beside its neighbours until somebody wants its messages, and must not push them out."""
    whole = encode([Message(b"p" * 10_000)])
    size = Reader(whole).size
    assert size > 10_000
    for position in range(len(whole.body)):
        for flipped in (0x01, 0x80, 0xFF):
            body = bytearray(whole.body)
            body[position] ^= flipped
            reader = Reader(EncodedBatch(whole.count, whole.meta, bytes(body)))
            assert 0 < reader.size <= size + BATCH_BYTES_MAX + 4
            with pytest.raises(InvalidBatch):
                reader.payloads(0, 1)


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=12), st.booleans(), st.data())
def test_a_body_is_of_its_payloads_however_they_are_cut_into_pieces(
    sizes: list[int], is_text: bool, data: st.DataObject
) -> None:
    chance = random.Random(len(sizes))
    given_payloads = [b"text " * (size // 5) if is_text else chance.randbytes(size) for size in sizes]
    block = b"".join(given_payloads)
    places = sorted(data.draw(st.lists(st.integers(0, len(block)), max_size=5)))
    pieces = [memoryview(block)[low:high] for low, high in pairwise([0, *places, len(block)])]
    lengths = array("I", map(len, given_payloads))
    body = write_body(lengths, given_payloads)
    assert write_body(lengths, pieces) == write_body(lengths, [block]) == body
    if len(block) > 10_000:
        samples = {b"".join(_sample(cut, len(block))) for cut in (given_payloads, pieces, [block])}
        assert [len(sample) for sample in samples] == [4 * 1024]
    assert is_intact(body)
    assert payloads(body, len(sizes)) == given_payloads
    if len(block) > 10_000:
        assert bool(body[1] & layout.BODY_COMPRESSED) == is_text


def test_a_sample_of_large_payloads_is_taken_over_all_of_them() -> None:
    """The first one and the last are not like what lies between."""
    assert not is_compressed(encode([Message(bytes(1_500)), Message(os.urandom(90_000)), Message(bytes(1_500))]))
    assert is_compressed(encode([Message(os.urandom(3_000)), Message(bytes(90_000)), Message(os.urandom(3_000))]))


def test_large_payloads_are_cut_for_each_who_asks_and_small_ones_once() -> None:
    for size, is_kept in ((100, True), (10_000, False)):
        for count in (1, 20):
            batch = encode([Message(os.urandom(size)) for _ in range(count)])
            reader = Reader(batch)
            once, again = reader.payloads(0, count), reader.payloads(0, count)
            assert once == again == [message.payload for message in decode(batch)]
            assert (once[0] is again[0]) == is_kept
            assert reader.payloads(0, 0) == []
            assert reader.size >= batch.size + (batch.size if is_kept else 0)
            assert is_kept or reader.size < batch.size + 50 * count
    unfolded = encode([Message(b"text " * 4_000) for _ in range(20)])
    assert Reader(unfolded).size > 20 * 20_000


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.booleans(), st.data())
def test_a_frame_may_lie_in_several_places(contents: list[bytes], has_meta: bool, data: st.DataObject) -> None:
    batch = encode([Message(content, key="k" * has_meta or None) for content in contents])
    whole = to_bytes(batch)
    assert b"".join(to_parts(batch)) == whole
    assert to_parts(batch)[1] is batch.body
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    whole = whole[: data.draw(st.sampled_from([len(whole), len(whole) - 1, 30, 3, 0]))]
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    parts = [memoryview(whole)[low:high] for low, high in pairwise([0, *places, len(whole)])]
    try:
        expected: object = from_bytes(whole)
    except InvalidBatch:
        with pytest.raises(InvalidBatch):
            from_parts(parts)
    else:
        assert from_parts(parts) == expected
        assert type(from_parts(parts).body) is bytes


def test_threads_do_not_share_a_compressor() -> None:
    given_messages = [Message(b"%d" % index * 20) for index in range(2000)]
    wanted = encode(given_messages)
    right: list[bool] = []

    def work() -> None:
        right.append(all(encode(given_messages) == wanted and decode(wanted) == given_messages for _ in range(30)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4


# Cut, select, join ---------------------------------------------------------------------------------------


@relaxed
@given(batches, st.data())
def test_cut_is_what_encoding_the_slice_gives(given_messages: list[Message], data: st.DataObject) -> None:
    start, stop = draw_range(data, len(given_messages))
    assert Reader(encode(given_messages)).cut(start, stop) == encode(given_messages[start:stop])


@relaxed
@given(batches, st.lists(st.booleans(), min_size=4, max_size=4), st.data())
def test_a_reader_cuts_whatever_it_was_used_for_before(
    given_messages: list[Message], steps: list[bool], data: st.DataObject
) -> None:
    reader = Reader(encode(given_messages))
    for takes_all in steps:
        start, stop = (0, len(given_messages)) if takes_all else draw_range(data, len(given_messages))
        wanted = given_messages[start:stop]
        assert reader.cut(start, stop) == encode(wanted)
        assert reader.payloads(start, stop) == [message.payload for message in wanted]


# One message ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 200, 507, 508, 509, 5_000])
@pytest.mark.parametrize("compresses", [False, True])
def test_one_plain_message_is_written_as_any_body_is(length: int, compresses: bool) -> None:
    payload = b"a" * length if compresses else os.urandom(length)
    encoded = encode([Message(payload)])
    assert encoded.body == write_body(array("I", [length]), [payload])
    single = decode_single(encoded)
    assert single == (None if is_compressed(encoded) else Message(payload))


@relaxed
@given(batches)
def test_a_single_is_what_decoding_gives_or_nothing(given_messages: list[Message]) -> None:
    encoded = encode(given_messages)
    single = decode_single(encoded)
    if single is not None:
        assert exact([single]) == exact(decode(encoded))
    else:
        assert len(given_messages) != 1 or encoded.meta or is_compressed(encoded)


@pytest.mark.parametrize("place", range(16))
def test_a_damaged_single_is_none(place: int) -> None:
    body = bytearray(encode([Message(b"ab")]).body)
    body[place] ^= 1
    assert decode_single(EncodedBatch(1, b"", bytes(body))) is None
    assert decode_single(EncodedBatch(1, b"", bytes(body[:place]))) is None


@relaxed
@given(batches, st.data())
def test_select_is_what_encoding_the_selected_gives(given_messages: list[Message], data: st.DataObject) -> None:
    indexes = data.draw(st.lists(st.integers(0, len(given_messages) - 1), max_size=30)) if given_messages else []
    assert select(encode(given_messages), indexes) == encode([given_messages[index] for index in indexes])


@relaxed
@given(st.lists(batches, max_size=5))
def test_join_is_what_encoding_all_gives(lists: list[list[Message]]) -> None:
    joined = join([encode(given_messages) for given_messages in lists])
    assert joined == encode([message for given_messages in lists for message in given_messages])


def test_cut_select_and_join_of_a_large_compressed_batch() -> None:
    given_messages = [Message(b"%d" % index * 30, key=str(index % 7)) for index in range(5000)]
    encoded = encode(given_messages)
    assert is_compressed(encoded)
    assert Reader(encoded).cut(1234, 4321) == encode(given_messages[1234:4321])
    assert select(encoded, range(0, 5000, 3)) == encode(given_messages[::3])
    assert join([Reader(encoded).cut(0, 17), Reader(encoded).cut(17, 5000)]) == encoded


def test_cut_of_everything_is_the_batch_itself() -> None:
    encoded = encode([Message(b"a")] * 3)
    assert Reader(encoded).cut(0, 3) is encoded
    assert join([encoded]) is encoded


@pytest.mark.parametrize("indexes", [[-1], [3], [0, 5, 1]])
def test_indexes_outside_the_batch_are_the_callers_mistake(indexes: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="the batch has 3 messages"):
        select(encode([Message(b"a")] * 3), indexes)


# Limits: at the value and one past it --------------------------------------------------------------------


def test_messages_of_a_batch() -> None:
    most = encode([Message()] * BATCH_MESSAGES_MAX)
    check(most)
    with pytest.raises(MessageTooLarge, match="100001 messages; the limit is 100000"):
        encode([Message()] * (BATCH_MESSAGES_MAX + 1))
    with pytest.raises(MessageTooLarge, match="100001 messages; the limit is 100000"):
        join([most, encode([Message()])])
    with pytest.raises(MessageTooLarge, match="100001 messages; the limit is 100000"):
        select(most, [0] * (BATCH_MESSAGES_MAX + 1))


def test_bytes_of_a_batch() -> None:
    part = Message(bytes(PAYLOAD_BYTES_DEFAULT))
    parts = [part] * (BATCH_BYTES_MAX // PAYLOAD_BYTES_DEFAULT)
    most = encode(parts)
    check(most)
    assert decode(most) == parts
    with pytest.raises(MessageTooLarge, match=f"limit is {BATCH_BYTES_MAX}"):
        encode([*parts, Message(b"x")])
    with pytest.raises(MessageTooLarge, match=f"limit is {BATCH_BYTES_MAX}"):
        join([most, encode([Message(b"x")])])


def test_bytes_of_metadata() -> None:
    wanted = [Message(headers={"a": f"{index:06}" + "x" * 65_013}) for index in range(129)]
    spare = layout.META_BYTES_MAX - len(encode(wanted).meta)
    last = {"a": "000128" + "x" * (65_013 + spare)}
    most = encode([*wanted[:-1], Message(headers=last)])
    assert len(most.meta) == layout.META_BYTES_MAX
    check(most)
    with pytest.raises(MessageTooLarge, match=f"metadata.*limit is {layout.META_BYTES_MAX}"):
        encode([*wanted[:-1], Message(headers={"a": last["a"] + "x"})])


def test_payload_size_is_checked_against_the_limit_of_the_queue() -> None:
    encoded = encode([Message(b"a"), Message(b"abcd"), Message(b"")])
    check(encoded, payload_bytes_max=4)
    with pytest.raises(MessageTooLarge, match="payload of message 1 has 4 bytes; the limit is 3"):
        check(encoded, payload_bytes_max=3)
    check_message(Message(bytes(PAYLOAD_BYTES_MAX)))
    with pytest.raises(MessageTooLarge, match=f"limit is {PAYLOAD_BYTES_MAX}"):
        check_message(Message(bytes(PAYLOAD_BYTES_MAX + 1)))


def test_bytes_of_a_batch_are_checked_against_the_limit_of_the_server() -> None:
    for payload in (bytes(2_000), bytes(range(250)) * 8):
        encoded = encode([Message(payload)])
        check(encoded, batch_bytes_max=2_000)
        with pytest.raises(MessageTooLarge, match="the limit is"):
            check(encoded, batch_bytes_max=1_995)


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("partition", "x" * (PARTITION_CHARACTERS_MAX + 1), "partition of message 1 has 1025 characters; the limit"),
        ("key", "x" * (NAME_CHARACTERS_MAX + 1), "key of message 1 has 256 characters; the limit is 255"),
        ("dedup_id", "x" * (ID_CHARACTERS_MAX + 1), "dedup_id of message 1 has 256 characters"),
        ("content_type", "x" * (ID_CHARACTERS_MAX + 1), "content_type of message 1 has 256 characters"),
        ("correlation_id", "x" * (ID_CHARACTERS_MAX + 1), "correlation_id of message 1 has 256"),
        ("trace_id", "x" * (ID_CHARACTERS_MAX + 1), "trace_id of message 1 has 256"),
        ("priority", PRIORITY_MAX + 1, "priority of message 1 is 256; it must be 0 to 255"),
        ("priority", -1, "priority of message 1 is -1; it must be 0 to 255"),
        ("delay_ms", SPAN_MS_MAX + 1, "delay_ms of message 1"),
        ("delay_ms", -1, "delay_ms of message 1"),
        ("not_before_ms", TIME_MS_MAX + 1, "not_before_ms of message 1"),
        ("ttl_ms", SPAN_MS_MAX + 1, "ttl_ms of message 1"),
        ("ttl_ms", -1, "ttl_ms of message 1 is -1"),
        (
            "headers",
            {f"{index}": None for index in range(HEADERS_MAX + 1)},
            "message 1: .*257 headers; the limit is 256",
        ),
        ("headers", {"a": nested(HEADERS_DEPTH_MAX)}, "message 1: .*nested deeper than 8"),
        ("headers", {"x" * 256: 1}, "message 1: a header's name has 256"),
        ("headers", {"a": {1: 1}}, "message 1: a header's name must be a string"),
        ("headers", {"a": 2**63}, "message 1: header 'a' is"),
    ],
)
def test_check_refuses_what_is_past_a_limit_of_the_model(name: str, value: Any, text: str) -> None:
    # encode looks at no field, so it serves to make what a lying producer would send.
    with pytest.raises(InvalidBatch, match=text):
        check(encode([Message(), Message(**{name: value})]))
    with pytest.raises(InvalidBatch, match=text.replace("message 1", "message 0")):
        check(encode([Message(**{name: value})] * 2))


def test_check_refuses_headers_of_too_many_bytes() -> None:
    check(encode([Message(headers={"a": "x" * (HEADERS_BYTES_MAX - 1)})]))
    with pytest.raises(MessageTooLarge, match=f"message 1: headers.*limit is {HEADERS_BYTES_MAX}"):
        check(encode([Message(), Message(headers={"a": "x" * HEADERS_BYTES_MAX})]))


def test_check_refuses_a_batch_of_nothing() -> None:
    empty = encode([])
    assert decode(empty) == []
    assert join([]) == empty
    with pytest.raises(InvalidBatch, match="no messages"):
        check(empty)


@pytest.mark.parametrize("content_type", [None, "", "application/json", "x" * ID_CHARACTERS_MAX])
@pytest.mark.parametrize("size", [0, 1, 200, 507, 508, 600])
def test_one_message_with_a_content_type_alone_is_encoded_as_any_other(content_type: str | None, size: int) -> None:
    message = Message(os.urandom(size), content_type=content_type)
    meta = b"" if content_type is None else write_meta(columns_of([message]), 1)
    for _ in range(2):  # the second time from memory
        assert encode([message]) == EncodedBatch(1, meta, write_body(array("I", [size]), [message.payload]))
    assert decode(encode([message])) == [message]


@pytest.mark.parametrize("size", [0, 1, 200, 507, 508, 600, 5_000])
def test_a_reader_of_one_gives_what_decoding_gives(size: int) -> None:
    for payload in (os.urandom(size), b"x" * size):
        batch = encode([Message(payload, key="k")])
        reader = Reader(batch)
        assert reader.payloads(0, 0) == []
        assert reader.payloads(0, 1) == reader.payloads(0, 1) == [payload]
        assert reader.messages(0, 1) == decode(batch)
        assert reader.cut(0, 1) == batch
        for place in range(len(batch.body)):
            damaged = bytearray(batch.body)
            damaged[place] ^= 1
            with pytest.raises(InvalidBatch):
                Reader(EncodedBatch(1, batch.meta, bytes(damaged))).payloads(0, 1)

"""A publish with a name of its own: repeated, it changes nothing and tells where the messages are."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, Message, QueueFull, encode
from tests.scenarios.rig import Home, numbered, play


def test_the_same_publish_again_is_not_stored(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        first = await broker.publish_many("work", numbered(5), publish_id="p")
        again = await broker.publish_many("work", numbered(5), publish_id="p")
        assert [place.offset for place in again] == [place.offset for place in first] == [0, 1, 2, 3, 4]
        assert (again.stored, again.duplicates, all(place.duplicate for place in again)) == (0, 5, True)
        assert (await broker.stats("work")).published == 5
        other = await broker.publish_many("work", numbered(5), publish_id="q")
        assert other.stored == 5

    play(home, scenario)


@pytest.mark.parametrize("count", [1, 5, 31, 32, 200])
def test_batches_and_singles_too(home: Home, count: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        batch = encode(numbered(count))
        places = [place.offset for place in await broker.publish_batch("work", batch, publish_id="p")]
        again = await broker.publish_batch("work", batch, publish_id="p")
        assert ([place.offset for place in again], again.stored) == (places, 0)
        one = await broker.publish("work", Message(b"one"), publish_id="single")
        two = await broker.publish("work", Message(b"one"), publish_id="single")
        assert (one.offset, one.duplicate, two.offset, two.duplicate) == (count, False, count, True)

    play(home, scenario)


def test_over_several_lanes_and_through_an_exchange(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("wide", lanes=4)
        await broker.declare_queue("other", lanes=2)
        await broker.declare_exchange("all", kind="fanout")
        for name in ("wide", "other"):
            await broker.bind("all", name)
        messages = [Message(b"%d" % index, partition=f"p{index % 7}" if index % 2 else None) for index in range(60)]
        first = await broker.publish_to("all", messages, publish_id="p")
        again = await broker.publish_to("all", messages, publish_id="p")
        assert (first.stored, again.stored, again.duplicates) == (120, 0, 120)
        assert [(place.queue, place.lane, place.offset) for place in again] == [
            (place.queue, place.lane, place.offset) for place in first
        ]

    play(home, scenario)


def test_it_outlives_acks_and_a_restart(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", numbered(3), publish_id="p")
        await broker.ack(await broker.claim("work", max=10))
        broker = await home.reopen(broker)
        again = await broker.publish_many("work", numbered(3), publish_id="p")
        assert (again.stored, [place.offset for place in again]) == (0, [0, 1, 2])
        assert not await broker.claim("work", max=10)

    play(file_home, scenario)


def test_messages_with_ids_of_their_own_keep_their_places(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"early", dedup_id="b"))
        messages = [Message(b"a", dedup_id="a"), Message(b"b", dedup_id="b"), Message(b"c")]
        first = await broker.publish_many("work", messages, publish_id="p")
        again = await broker.publish_many("work", messages, publish_id="p")
        assert [place.offset for place in first] == [1, 0, 2]
        assert [place.offset for place in again] == [1, 0, 2]

    play(home, scenario)


def test_a_full_queue_still_recognises_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("small", max_length=3)
        await broker.publish_many("small", numbered(3), publish_id="p")
        assert (await broker.publish_many("small", numbered(3), publish_id="p")).stored == 0
        with pytest.raises(QueueFull):
            await broker.publish_many("small", numbered(3), publish_id="q")

    play(home, scenario)


def test_an_id_that_is_none_is_refused(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        for wrong in ("", "x" * 256, "\ud800", 7):
            with pytest.raises(InvalidArgument, match="publish_id"):
                await broker.publish("work", Message(b"x"), publish_id=wrong)  # type: ignore[arg-type]
        assert (await broker.stats("work")).published == 0

    play(memory_home, scenario)

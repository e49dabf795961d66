"""Where dead letters are, and redriving exactly some of them: a lane, a range, and nothing that died later."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, Message
from tests.clients.http.rig import connected, run


def test_ranges_name_what_died_together_page_by_page() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", lanes=2, max_attempts=1)
            await client.publish_many("q", [Message(b"%d" % n, f"p{n}") for n in range(20)])
            while claim := await client.claim("q", max=3, consumer="ann"):
                await client.nack(claim, error=f"lane {claim.messages[0].lane}")
            whole = await client.dead_ranges("q")
            assert whole.next is None
            assert {one.error for one in whole.ranges} == {"lane 0", "lane 1"}
            assert {(one.reason, one.attempts, one.consumer) for one in whole.ranges} == {("attempts", 1, "ann")}
            places = [(one.lane, at) for one in whole.ranges for at in range(one.start, one.end)]
            listed = await client.dead("q", max=100)
            assert places == [(one.received.lane, one.received.offset) for one in listed]
            assert {one.dead_ms for one in whole.ranges} == {one.dead_ms for one in listed}
            # A page goes on where the one before ended, in the middle of a lane or at the next.
            paged, after = [], None
            while True:
                page = await client.dead_ranges("q", after=after, max=1)
                paged += page.ranges
                assert len(page.ranges) <= 1
                if (after := page.next) is None:
                    break
            assert paged == whole.ranges
            with pytest.raises(InvalidArgument, match="after is"):
                await client.dead_ranges("q", after=(7, 0))
            with pytest.raises(InvalidArgument, match="max"):
                await client.dead_ranges("q", max=0)

    run(main())


def test_redrive_and_purge_by_lane_and_by_when_they_died() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", lanes=2, max_attempts=1)
            await client.publish_many("q", [Message(b"%d" % n, f"p{n}") for n in range(40)])
            while claim := await client.claim("q", max=50):
                await client.nack(claim, error="boom")
            before = {(one.received.lane, one.received.offset) for one in await client.dead("q", max=100)}
            assert {(0, 3), (1, 3)} <= before
            assert [one.received.lane for one in await client.dead("q", lane=1, offsets=(3, 4))] == [1]
            assert await client.redrive("q", lane=1, offsets=(3, 4)) == 1
            assert await client.redrive("q", lane=1, offsets=(3, 4)) == 0
            assert await client.redrive("q", until_ms=0) == 0
            after = {(one.received.lane, one.received.offset) for one in await client.dead("q", max=100)}
            assert after == before - {(1, 3)}
            # It dies anew, later than all others: a redrive of what was dead before leaves it alone.
            claim = await client.claim("q", wait=5)
            await client.nack(claim, error="boom again")
            [again] = await client.dead("q", lane=1, offsets=(3, 4))
            again_ms = again.dead_ms
            assert await client.redrive("q", lane=1, until_ms=again_ms - 1) == len(
                [one for one in after if one[0] == 1]
            )
            assert [one.received.offset for one in await client.dead("q", lane=1)] == [3]
            assert await client.purge_dead("q", lane=0, until_ms=0) == 0
            assert await client.purge_dead("q", lane=1, until_ms=again_ms) == 1
            with pytest.raises(InvalidArgument, match="lane is 2"):
                await client.redrive("q", lane=2)
            with pytest.raises(InvalidArgument, match="until_ms"):
                await client.redrive("q", until_ms=-1)

    run(main())

"""Where a run of messages went in a lane: what an append answers."""

from __future__ import annotations

import msgspec


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where messages went: `count` of them from `base` on; `duplicates` maps an index to the first offset."""

    base: int
    count: int
    duplicates: dict[int, int] = {}

    def offsets(self) -> list[int]:
        """The offset of each message published, in order; of a duplicate the offset it was first given."""
        if not self.duplicates:
            return list(range(self.base, self.base + self.count))
        result: list[int] = []
        following = self.base
        for index in range(self.count + len(self.duplicates)):
            if index in self.duplicates:
                result.append(self.duplicates[index])
            else:
                result.append(following)
                following += 1
        return result

    def slice(self, start: int, end: int) -> Appended:
        """The same of the messages from one index to another."""
        if not self.duplicates:
            return Appended(self.base + start, end - start)
        inside = {index - start: offset for index, offset in self.duplicates.items() if start <= index < end}
        before = sum(index < start for index in self.duplicates)
        return Appended(self.base + start - before, end - start - len(inside), inside)

"""Topics by level, to be found by a filter: the way round that retained messages need. No clock, no broker."""

from __future__ import annotations

from penstock.model.work import MESSAGE_WORK, Budget, Steps


class _Level:
    __slots__ = ("below", "is_topic")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.is_topic = False


class TopicTree:
    """A set of topic names."""

    def __init__(self) -> None:
        self._root = _Level()

    def add(self, topic: str) -> None:
        place = self._root
        for level in topic.split("/"):
            place = place.below.setdefault(level, _Level())
        place.is_topic = True

    def remove(self, topic: str) -> None:
        """Also prunes what leads to no topic any more."""
        path = [self._root]
        levels = topic.split("/")
        for level in levels:
            following = path[-1].below.get(level)
            if following is None:
                return
            path.append(following)
        path[-1].is_topic = False
        for parent, level, place in zip(reversed(path[:-1]), reversed(levels), reversed(path), strict=False):
            if place.below or place.is_topic:
                break
            del parent.below[level]

    def matching(self, topic_filter: str, budget: Budget) -> Steps[list[str]]:
        """The topics that a valid filter matches, in steps; wildcards at its beginning leave out those that begin with
        `$`. Topics that come or go at a stop may be among them or not.
        """
        places: list[tuple[str, _Level]] = [("", self._root)]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                return (yield from _all_below(places, depth, budget))
            places = yield from _next_level(places, level, depth, budget)
        return [topic for topic, place in places if place.is_topic]


def _next_level(
    places: list[tuple[str, _Level]], level: str, depth: int, budget: Budget
) -> Steps[list[tuple[str, _Level]]]:
    found: list[tuple[str, _Level]] = []
    for prefix, place in places:
        for name, below in _chosen(place, level, depth):
            found.append((name if depth == 0 else f"{prefix}/{name}", below))
            if budget.spend(MESSAGE_WORK):
                yield None
                budget.renew()
        budget.left -= MESSAGE_WORK
    return found


def _chosen(place: _Level, level: str, depth: int) -> list[tuple[str, _Level]]:
    if level != "+":
        found = place.below.get(level)
        return [] if found is None else [(level, found)]
    return [(name, below) for name, below in place.below.items() if depth > 0 or not name.startswith("$")]


def _all_below(places: list[tuple[str, _Level]], depth: int, budget: Budget) -> Steps[list[str]]:
    """`a/#` is also `a` itself: where the walk stands now."""
    found = [prefix for prefix, place in places if place.is_topic and depth > 0]
    while places:
        places = yield from _next_level(places, "+", depth, budget)
        found += [topic for topic, place in places if place.is_topic]
        depth += 1
    return found

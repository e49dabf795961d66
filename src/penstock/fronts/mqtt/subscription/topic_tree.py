"""Topics by level, to be found by a filter: the way round that retained messages need. No clock, no broker."""

from __future__ import annotations


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

    def matching(self, topic_filter: str) -> list[str]:
        """The topics that a valid filter matches; wildcards at its beginning leave out those that begin with `$`."""
        places: list[tuple[str, _Level]] = [("", self._root)]
        for depth, level in enumerate(topic_filter.split("/")):
            if level == "#":
                # `a/#` is also `a` itself: where the walk stands now.
                return [topic for prefix, place in places for topic in _all_below(prefix, place, depth)]
            places = [
                (name if depth == 0 else f"{prefix}/{name}", below)
                for prefix, place in places
                for name, below in _chosen(place, level, depth)
            ]
        return [topic for topic, place in places if place.is_topic]


def _chosen(place: _Level, level: str, depth: int) -> list[tuple[str, _Level]]:
    if level != "+":
        found = place.below.get(level)
        return [] if found is None else [(level, found)]
    return [(name, below) for name, below in place.below.items() if depth > 0 or not name.startswith("$")]


def _all_below(prefix: str, place: _Level, depth: int) -> list[str]:
    found = [prefix] if place.is_topic and depth > 0 else []
    left = [(prefix, place, depth)]
    while left:
        prefix, place, depth = left.pop()
        for name, below in _chosen(place, "+", depth):
            topic = name if depth == 0 else f"{prefix}/{name}"
            if below.is_topic:
                found.append(topic)
            left.append((topic, below, depth + 1))
    return found

"""A class without asyncio for one with it: each method calls the one of its name, on an event loop in a thread.

`api/sync.py` and `client/sync.py` say which methods there are, with types and docstrings; here is what they do. No
asyncio is imported: the thread is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from penstock.loop_thread import LoopThread

Method = TypeVar("Method", bound=Callable[..., Any])


def written(method: Method) -> Method:
    """A public method of a twin that does what it says by itself."""
    vars(method)["is_written"] = True
    return method


class Twin:
    """Stands for an asynchronous object. Public methods and properties of subclasses need no bodies."""

    _twins: ClassVar[dict[str, type[Twin]]] = {}
    """By name: a result whose type is one of these is wrapped in it."""
    _undo: ClassVar[Mapping[str, str]] = {}
    """What to call with the answer of a method whose caller was interrupted before it saw it."""

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __init_subclass__(cls) -> None:
        cls._twins[cls.__name__] = cls
        for name, member in list(vars(cls).items()):
            if isinstance(member, property):
                setattr(cls, name, property(_reading(name), doc=member.__doc__))
            elif isinstance(member, FunctionType) and not name.startswith("_") and "is_written" not in vars(member):
                setattr(cls, name, _calling(member, cls._undo.get(name)))


def _reading(name: str) -> Callable[[Twin], Any]:
    def read(self: Twin) -> Any:
        return getattr(self._inner, name)

    return read


def _calling(method: FunctionType, undo: str | None) -> Callable[..., Any]:
    name, returns = method.__name__, method.__annotations__["return"]
    item = returns.removeprefix("list[").removesuffix("]")

    @wraps(method)
    def call(self: Twin, *args: Any, **kwargs: Any) -> Any:
        function, thread = getattr(self._inner, name), self._thread
        if undo is not None:
            return thread.run_or_undo(getattr(self, undo), function, *args, **kwargs)
        result = thread.run(function, *args, **kwargs)
        if returns == "Self":
            return self
        twin = self._twins.get(item)
        if twin is None:
            return result
        return twin(result, thread) if item == returns else [twin(one, thread) for one in result]

    return call

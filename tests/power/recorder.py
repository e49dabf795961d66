"""Records what a program does to the files in a folder, by tracing its system calls: SQLite's as well as our own.

The program is a function that runs in a child process; the parent stops it at each call (`ptrace`, as `strace` does)
and notes those that change files, with their data, in the order in which the kernel did them. No compiler, no mount and
no rights are needed. What the program writes to the descriptor that it is given comes among the events as it is: so it
says what it was answered. A call that would change a file unseen ends the recording. It may not know what the calls
mean: `disk.py` does.

A process with threads must not be forked: the parent should be one that does nothing else (`rig.py` starts it).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.power.disk import Event, Kind

_TRACE_ME, _CONTINUE, _SET_OPTIONS, _TELL_CALL = 0, 24, 0x4200, 0x420E
_OPTIONS: Final = 0x1 | 0x2 | 0x4 | 0x8 | 0x100000
"""Tell calls from other stops; follow children and threads; end them with us."""
_CALL_STOP: Final = signal.SIGTRAP | 0x80
_EVERY_THREAD: Final = 0x40000000
_BEGINS, _ENDS = 1, 2
_CALL: Final = struct.Struct("<B23x7Q")
_RESULT: Final = struct.Struct("<24xq")
_BUFFER: Final = struct.Struct("<QQ")
_ORDER: Final = struct.Struct("<16xHhI")
"""Of the kernel's asynchronous I/O: opcode, priority, descriptor."""
_OUTCOME: Final = struct.Struct("<8xQqq")
_SYNC_OPCODES: Final = (2, 3)
_AT_CWD: Final = (-100) & 0xFFFFFFFF
_IS_WRITABLE, _IS_SHARED, _IS_ANONYMOUS = 0x2, 0x1, 0x20

CALLS: Final = {
    # By name: the number on x86_64, and on aarch64.
    "write": (1, 64), "pwrite64": (18, 68), "writev": (20, 66), "pwritev": (296, 70), "pwritev2": (328, 287),
    "open": (2, None), "creat": (85, None), "openat": (257, 56), "openat2": (437, 437), "mmap": (9, 222),
    "ftruncate": (77, 46), "truncate": (76, 45), "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "splice": (275, 76), "io_submit": (209, 2), "io_getevents": (208, 4), "io_uring_enter": (426, 426),
}  # fmt: skip
MACHINES: Final = ("x86_64", "aarch64")


class NotAllowed(Exception):
    """This machine does not let a process trace its child; says why."""


def record(folder: Path, program: Callable[[int], None]) -> list[Event]:
    """Run the program in a child, with the descriptor that notes go to; all that it did in the folder."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise NotAllowed(f"system calls are recorded on Linux on {' and '.join(MACHINES)} only")
    notes, note = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(program, note)
    os.close(note)
    try:
        return _Recorder(child, str(folder.resolve()), notes, note).run()
    finally:
        os.close(notes)


def _run_child(program: Callable[[int], None], note: int) -> None:
    code = 1
    try:
        if _libc().ptrace(_TRACE_ME, 0, None, None) == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            program(note)
            code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    library.ptrace.restype = ctypes.c_long
    return library


class _UnderWay(NamedTuple):
    """A call that has begun."""

    name: str
    arguments: list[int]
    began: int
    """The number of events before it."""


class _Recorder:
    """One child and its threads."""

    def __init__(self, child: int, folder: str, notes: int, note: int) -> None:
        self._child = child
        self._folder = folder
        self._notes, self._note = notes, note
        self._libc = _libc()
        self._told = ctypes.create_string_buffer(88)
        self._events: list[Event] = []
        self._calls: dict[int, _UnderWay] = {}
        """By thread."""
        self._ordered: dict[int, tuple[str, int]] = {}
        """Syncs that the kernel does in the background, by the address of their order: the file, and when it began."""
        machine = MACHINES.index(platform.machine())
        self._names = {numbers[machine]: name for name, numbers in CALLS.items()}

    def run(self) -> list[Event]:
        _, status = os.waitpid(self._child, 0)
        if not os.WIFSTOPPED(status):
            raise NotAllowed("this machine does not let a process trace its child (ptrace)")
        self._ptrace(_SET_OPTIONS, self._child, 0, _OPTIONS)
        self._memory = os.open(f"/proc/{self._child}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._follow()
        finally:
            os.close(self._memory)
        return self._events

    def _follow(self) -> None:
        self._resume(self._child, 0)
        while True:
            thread, status = os.waitpid(-1, _EVERY_THREAD)
            if os.WIFSTOPPED(status):
                stop = os.WSTOPSIG(status)
                if stop == _CALL_STOP:
                    self._call(thread)
                is_ours = stop in (_CALL_STOP, signal.SIGSTOP) or status >> 16
                self._resume(thread, 0 if is_ours else stop)
            elif thread == self._child:
                break
        if status:
            raise RuntimeError(f"the program that is recorded ended with {os.waitstatus_to_exitcode(status)}")

    def _resume(self, thread: int, delivered: int) -> None:
        with suppress(ProcessLookupError):  # it ended meanwhile
            self._ptrace(_CONTINUE, thread, 0, delivered)

    def _ptrace(self, request: int, thread: int, address: int, data: int) -> None:
        if self._libc.ptrace(request, thread, address, data) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    # One call ---------------------------------------------------------------------------------------------

    def _call(self, thread: int) -> None:
        try:
            self._ptrace(_TELL_CALL, thread, len(self._told), ctypes.addressof(self._told))
        except OSError as error:
            if error.errno == errno.EIO:
                raise NotAllowed("the kernel does not tell which call it is: that needs Linux 5.3") from None
            raise
        side, number, *arguments = _CALL.unpack_from(self._told)
        if side == _BEGINS and number in self._names:
            self._calls[thread] = _UnderWay(self._names[number], arguments, len(self._events))
        elif side == _ENDS and thread in self._calls:
            call = self._calls.pop(thread)
            [result] = _RESULT.unpack_from(self._told)
            if result >= 0:
                self._done(call, result)

    def _done(self, call: _UnderWay, result: int) -> None:
        first, second, third, fourth = call.arguments[:4]
        match call.name:
            case "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2":
                self._wrote(call, result)
            case "open":
                self._opened(result, second)
            case "openat":
                self._opened(result, third)
            case "ftruncate":
                self._add("resize", self._file(first), number=second)
            case "truncate":
                self._add("resize", self._path(_AT_CWD, first), number=second)
            case "fallocate" if second == 0:
                self._add("grow", self._file(first), number=third + fourth)
            case "fsync" | "fdatasync":
                self._add("sync", self._file(first), number=call.began)
            case "mkdir":
                self._add("folder", self._path(_AT_CWD, first))
            case "mkdirat":
                self._add("folder", self._path(first, second))
            case "unlink" | "rmdir":
                self._add("remove", self._path(_AT_CWD, first))
            case "unlinkat":
                self._add("remove", self._path(first, second))
            case "rename" | "link" as kind:
                self._add(kind, self._path(_AT_CWD, first), self._path(_AT_CWD, second))
            case "renameat" | "renameat2":
                self._add("rename", self._path(first, second), self._path(third, fourth))
            case "linkat":
                self._add("link", self._path(first, second), self._path(third, fourth))
            case "io_submit":
                self._took_orders(third, result, call.began)
            case "io_getevents":
                self._told_outcomes(fourth, result)
            case "mmap":
                self._mapped(call)
            case _:
                raise NotImplementedError(f"the program calls {call.name}, which is not recorded")

    def _wrote(self, call: _UnderWay, count: int) -> None:
        file, address, length, position = call.arguments[:4]
        if file == self._note:
            self._events.append(Event("note", "", data=os.read(self._notes, count)))
            return
        path = self._file(file)
        if path is None:
            return
        if call.name in ("write", "pwrite64"):
            data = self._read(address, count)
        else:
            data = b"".join(self._buffers(address, length))[:count]
        if call.name in ("write", "writev"):
            state = Path(f"/proc/{self._child}/fdinfo/{file}").read_text()
            position = int(state.split()[1]) - count
        self._add("write", path, number=position, data=data)

    def _buffers(self, address: int, count: int) -> Iterator[bytes]:
        for start, length in _BUFFER.iter_unpack(self._read(address, count * _BUFFER.size)):
            yield self._read(start, length)

    def _opened(self, file: int, flags: int) -> None:
        path = self._file(file)
        if flags & os.O_CREAT:
            self._add("create", path)
        if flags & os.O_TRUNC:
            self._add("resize", path)

    def _took_orders(self, orders: int, count: int, began: int) -> None:
        for (order,) in struct.iter_unpack("<Q", self._read(orders, count * 8)):
            opcode, _, file = _ORDER.unpack(self._read(order, _ORDER.size))
            if opcode not in _SYNC_OPCODES:
                raise NotImplementedError(f"the program gives the kernel order {opcode}, which is not recorded")
            path = self._file(file)
            if path is not None:
                self._ordered[order] = (path, began)

    def _told_outcomes(self, outcomes: int, count: int) -> None:
        for order, result, _ in _OUTCOME.iter_unpack(self._read(outcomes, count * _OUTCOME.size)):
            path, began = self._ordered.pop(order, (None, 0))
            if result == 0:
                self._add("sync", path, number=began)

    def _mapped(self, call: _UnderWay) -> None:
        _, _, protection, flags, file = call.arguments[:5]
        if protection & _IS_WRITABLE and flags & _IS_SHARED and not flags & _IS_ANONYMOUS:
            path = self._file(file & 0xFFFFFFFF)
            if path is not None and not path.endswith("-shm"):  # SQLite makes that one again, whatever is in it
                raise NotImplementedError(f"the program writes to {path} through memory, which is not recorded")

    def _add(self, kind: Kind, path: str | None, target: str | None = "", number: int = 0, data: bytes = b"") -> None:
        if path is not None and target is not None:
            self._events.append(Event(kind, path, target, number, data))

    # Where ------------------------------------------------------------------------------------------------

    def _file(self, file: int) -> str | None:
        """The path of an open file in the folder; None for one elsewhere, or one that was deleted."""
        try:
            return self._within(str(Path(f"/proc/{self._child}/fd/{file}").readlink()))
        except FileNotFoundError:
            return None

    def _path(self, base: int, address: int) -> str | None:
        text = os.fsdecode(os.pread(self._memory, 4096, address).partition(b"\0")[0])
        at = "cwd" if base & 0xFFFFFFFF == _AT_CWD else f"fd/{base}"
        return self._within(os.path.normpath(Path(f"/proc/{self._child}/{at}").readlink() / text))

    def _within(self, path: str) -> str | None:
        if path == self._folder:
            return ""
        is_there = path.startswith(f"{self._folder}/") and not path.endswith(" (deleted)")
        return path[len(self._folder) + 1 :] if is_there else None

    def _read(self, address: int, count: int) -> bytes:
        data = os.pread(self._memory, count, address)
        if len(data) != count:
            raise OSError(f"{count} bytes at {address:#x} of the program cannot be read")
        return data

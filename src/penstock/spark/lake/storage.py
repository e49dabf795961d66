"""Where a table's files are: a local folder, or an object store by URL. Opens, measures, and makes durable.

A local file counts as written when it and the folders above it are fsynced: neither pyarrow nor deltalake does that. An
object store keeps what it acknowledged, so there is nothing to sync there. Credentials come from the environment or
from `options`, as `deltalake` takes them. Knows nothing of tables.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from penstock.spark.lake.errors import LakeFull


class Output(Protocol):
    """A file that is being written: pyarrow needs no more."""

    closed: bool

    def write(self, data: Any) -> int: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def tell(self) -> int: ...


class Storage(msgspec.Struct, frozen=True):
    """The folder of one table, by path or URL. Small, and picklable: it travels to the executors."""

    url: str
    options: dict[str, str] = {}
    """For the object store; what is not here comes from the environment."""

    def __repr__(self) -> str:
        """Without the options, which may hold credentials."""
        return f"<Storage at {self.url!r}>"

    @property
    def root(self) -> Path | None:
        """The folder, where it is a local one."""
        return local_path(self.url)

    @property
    def uri(self) -> str:
        """As `deltalake` takes it."""
        root = self.root
        return self.url if root is None else str(root)

    def under(self, name: str) -> Storage:
        """A folder in it; of a local one the whole path, for other processes work in other folders."""
        root = self.root
        base = self.url if root is None else str(root.absolute())
        return Storage(f"{base.rstrip('/')}/{name}", self.options)

    def create(self, path: str) -> Output:
        """A new file to write to, with the folders above it. `settle_folders` must follow when it is closed."""
        root = self.root
        if root is None:
            # The handler's own stream hands pyarrow's buffers on to one that takes bytes alone: we take the latter.
            return _RemoteOutput(self._handler()._handler.open_output_stream(path, None), path)
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return _LocalOutput(place)

    def open(self, path: str) -> pa.NativeFile:
        root = self.root
        if root is None:
            return pa_fs.PyFileSystem(self._handler()).open_input_file(path)
        return pa.OSFile(str(root / path), "rb")

    def size(self, path: str) -> int | None:
        """How long a file is; None if there is none."""
        root = self.root
        if root is None:
            [info] = pa_fs.PyFileSystem(self._handler()).get_file_info([path])
            return info.size if info.type == pa_fs.FileType.File else None
        try:
            return (root / path).stat().st_size
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[tuple[str, float]]:
        """The files in a folder, each with the time of its last change in seconds since 1970."""
        root = self.root
        if root is None:
            chosen = pa_fs.FileSelector(folder)
            infos = pa_fs.PyFileSystem(self._handler()).get_file_info(chosen)
            return [(info.base_name, info.mtime.timestamp()) for info in infos if info.type == pa_fs.FileType.File]
        return [(path.name, path.stat().st_mtime) for path in (root / folder).iterdir() if path.is_file()]

    def remove(self, path: str) -> None:
        """Forget a file that nothing names; one that is gone already is fine."""
        root = self.root
        if root is None:
            self._handler().delete_file(path)
        else:
            (root / path).unlink(missing_ok=True)

    def settle_folders(self, paths: Iterable[str]) -> None:
        """The names of these files outlive a power cut: fsync every folder between them and the table's own."""
        root = self.root
        if root is None:
            return
        folders = {parent for path in paths for parent in (root / path).parents if parent.is_relative_to(root)}
        for folder in sorted(folders, reverse=True):
            sync(folder)

    def _handler(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.url, self.options or None)


class _LocalOutput:
    """A local file whose close means that its bytes are on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=1 << 20)
        self.closed = False

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise full_disk(error, str(self._path)) from error

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise full_disk(error, str(self._path)) from error
        finally:
            with suppress(OSError):  # what cannot be flushed was told
                self._file.close()


class _RemoteOutput:
    """An upload. deltalake's stream takes bytes alone, pyarrow gives buffers."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path
        self._written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        content = bytes(data)
        try:
            self._stream.write(content)
        except OSError as error:
            raise full_disk(error, self._path) from error
        self._written += len(content)
        return len(content)

    def flush(self) -> None:
        """What is not uploaded yet goes with the next part, or at the end."""

    def tell(self) -> int:
        return self._written

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def local_path(url: str) -> Path | None:
    """The folder that a path or a `file:` URL names, absolute; None for an object store."""
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return Path(unquote(urlsplit(url).path)).absolute()
    if len(scheme) > 1 and "://" in url:
        return None
    return Path(url).expanduser().absolute()


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full_disk(error: OSError, path: str) -> OSError | LakeFull:
    """The same error, or one that says what to do where the disk is full."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return LakeFull(
        f"no space is left for {path}. Nothing of this batch is visible in the lake, and nothing is lost: free some "
        "space (penstock pipeline compact removes files that nothing needs) and run the job again"
    )

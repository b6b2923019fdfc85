"""Files on the server: those that people bring along, and those that steps made for them.

Both have ids; no path of the server's disk is ever asked for or told.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import stat
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from capgraph.base.errors import ConfigurationError, ValidationError
from capgraph.base.ports import Caller
from capgraph.graph.turn_runner import file_contexts, load_contexts, load_thread_values
from capgraph.helpers.files import to_csv
from capgraph.serve.problems import BadRequestError, NotFoundError, TooLargeError
from capgraph.serve.threads import to_json_safe

if TYPE_CHECKING:
    from capgraph.base.context import CapabilityContext
    from capgraph.configs.settings import UploadSettings
    from capgraph.registry import Registry
    from capgraph.serve.threads import Threads

_FILE_ID = re.compile(r"[0-9a-f]{32}")
_MAX_NAME_BYTES = 120
_CHUNK_TIMEOUT_SECONDS = 30.0
_PARTIAL_PREFIX = "unfinished-"
_ABANDONED_SECONDS = 3600.0
_MAGIC_BYTES = {
    ".parquet": b"PAR1", ".pq": b"PAR1", ".sqlite": b"SQLite format 3\0",
    ".sqlite3": b"SQLite format 3\0", ".db": b"SQLite format 3\0",
}  # fmt: skip
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_MEDIA_TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
    ".webp": "image/webp", ".svg": "image/svg+xml", ".csv": "text/csv; charset=utf-8",
    ".tsv": "text/tab-separated-values; charset=utf-8", ".txt": "text/plain; charset=utf-8",
    ".json": "application/json",
}  # fmt: skip
"""What is said of a file is decided by these, whoever made it."""


def media_type(name: str) -> str:
    """Return what is said of a file with this name.

    >>> media_type("page.HTML"), media_type("plot.png")
    ('application/octet-stream', 'image/png')
    """
    return _MEDIA_TYPES.get(Path(name).suffix.lower(), "application/octet-stream")


def _not_found() -> NotFoundError:
    return NotFoundError("There is no such file.", fix="List the files.")


def _open_regular_file(path: Path) -> tuple[BinaryIO, int]:
    """Open a file that is no link, and return its size with it.

    Raises:
        NotFoundError: It is not there, or something else is.
    """
    try:
        # Neither a link's target is opened, nor a pipe waited for.
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        number = os.open(path, os.O_RDONLY | flags)
    except OSError:
        raise _not_found() from None
    file, found = os.fdopen(number, "rb"), os.fstat(number)
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise _not_found()
    return file, found.st_size


class Uploads:
    """The files that people brought along: ``folder/person/id/name``.

    Args:
        settings: Where, and how much.
        registry: What the agent is made of.

    Raises:
        ConfigurationError: Nothing in the agent takes files.
    """

    def __init__(self, settings: UploadSettings, registry: Registry) -> None:
        file_contexts(registry, [""])
        self.settings = settings
        self._registry = registry
        self._root = Path(settings.folder).expanduser().resolve()
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._locks: dict[str, asyncio.Lock] = {}

    def check_isolation(self, data_folders: Sequence[str]) -> None:
        """Make sure that nobody reads the files of another one.

        Raises:
            ConfigurationError: They lie in a folder that everybody may read.
        """
        for folder in data_folders:
            whole = Path(folder).expanduser().resolve()
            if "{user}" not in folder and whole in (self._root, *self._root.parents):
                raise ConfigurationError(
                    f"Everybody may read {folder!r}, and serve.uploads.folder lies there.",
                    fix="Name another folder for uploads, or others in data_folders.",
                )

    def _folder(self, caller: Caller) -> Path:
        if caller.storage_key is None:
            raise _not_found()
        return self._root / caller.storage_key

    def _path(self, caller: Caller, file_id: str) -> Path:
        folder = self._folder(caller) / file_id
        if _FILE_ID.fullmatch(file_id) and folder.is_dir() and not folder.is_symlink():
            for path in folder.iterdir():
                return path
        raise _not_found()

    async def list_files(self, caller: Caller) -> list[dict[str, Any]]:
        """Describe the files of a person, the latest first."""
        return await asyncio.to_thread(self._list_files, caller)

    def _list_files(self, caller: Caller) -> list[dict[str, Any]]:
        folder, found = self._folder(caller), []
        for one in folder.iterdir() if folder.is_dir() else ():
            with suppress(OSError, NotFoundError):
                path = self._path(caller, one.name)
                found.append((path.stat().st_mtime, path))
        return [_describe(path, changed) for changed, path in sorted(found, reverse=True)]

    async def remaining_bytes(self, caller: Caller) -> int:
        """Return how many bytes a person may still bring."""
        used = sum(one["bytes"] for one in await self.list_files(caller))
        return max(self.settings.max_user_bytes - int(used), 0)

    async def add(
        self,
        caller: Caller,
        name: str,
        chunks: AsyncIterator[bytes],
        content_length: int | None = None,
    ) -> dict[str, Any]:
        """Keep a file.

        Args:
            caller: Whose.
            name: What it is called.
            chunks: Its content.
            content_length: How long it is, where that is known.

        Raises:
            ValidationError: It is of no kind that is taken, or has a name that cannot be used.
            TooLargeError: It is too long, or the person has too many files.
            BadRequestError: It did not come.
        """
        suffix = self._check_name(name)
        place = self._folder(caller)
        # One after the other, so that what a person may bring along holds for all together.
        async with self._locks.setdefault(place.name, asyncio.Lock()):
            known, left = await self.list_files(caller), await self.remaining_bytes(caller)
            limit = min(left, self.settings.max_file_bytes)
            if len(known) >= self.settings.max_files or (content_length or 0) > limit:
                raise _too_large_error(limit, self.settings)
            part = place / f"{_PARTIAL_PREFIX}{uuid.uuid4().hex}"
            await asyncio.to_thread(_prepare_folder, place)
            try:
                head = await _write_chunks(part, chunks, limit, self.settings)
                _check_magic_bytes(name, suffix, head)
                return await asyncio.to_thread(_store, part, place / uuid.uuid4().hex / name)
            finally:
                await asyncio.to_thread(part.unlink, missing_ok=True)

    def _check_name(self, name: str) -> str:
        suffix = Path(name).suffix.lower()
        if not name.isprintable() or name.startswith(".") or set(name) & set('/\\:"<>|?*'):
            raise ValidationError(
                f"The name {name[:80]!r} cannot be used.", fix="Give a name without a folder."
            )
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise ValidationError(f"The name {name[:40]!r}… is long.", fix="Give a shorter one.")
        if suffix not in self.settings.kinds:
            raise ValidationError(
                f"Files like {name!r} are not taken.",
                fix=f"Send one of: {' '.join(self.settings.kinds)}.",
            )
        return suffix

    async def open(self, caller: Caller, file_id: str) -> tuple[str, BinaryIO, int]:
        """Return name, content and size of a file.

        Raises:
            NotFoundError: There is none, or it is somebody else's.
        """
        path = await asyncio.to_thread(self._path, caller, file_id)
        return path.name, *await asyncio.to_thread(_open_regular_file, path)

    async def remove(self, caller: Caller, file_id: str) -> None:
        """Drop a file.

        Raises:
            NotFoundError: There is none, or it is somebody else's.
        """
        path = await asyncio.to_thread(self._path, caller, file_id)
        await asyncio.to_thread(shutil.rmtree, path.parent)

    async def to_context(self, caller: Caller, file_ids: Sequence[str]) -> dict[str, Any]:
        """Return the context data by which a turn is about these files.

        Raises:
            NotFoundError: One of them is not there, or is somebody else's.
        """
        paths = [await asyncio.to_thread(self._path, caller, one) for one in file_ids]
        # As the data capabilities find them in the folder of who asks.
        return file_contexts(self._registry, [f"{path.parent.name}/{path.name}" for path in paths])


def _describe(path: Path, modified_at: float) -> dict[str, Any]:
    return {
        "file_id": path.parent.name,
        "name": path.name,
        "bytes": path.stat().st_size,
        "media_type": media_type(path.name),
        "created_at": datetime.fromtimestamp(modified_at, UTC).isoformat(),
    }


def _too_large_error(max_bytes: int, settings: UploadSettings) -> TooLargeError:
    return TooLargeError(
        f"The file is longer than the {max_bytes:,} bytes that are left, or there are"
        f" {settings.max_files} files already.",
        fix="Delete files of yours, or raise serve.uploads.",
    )


def _prepare_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    now = datetime.now(UTC).timestamp()
    for one in folder.glob(f"{_PARTIAL_PREFIX}*"):  # left by a process that was killed
        if now - one.stat().st_mtime > _ABANDONED_SECONDS:
            one.unlink(missing_ok=True)


async def _write_chunks(
    path: Path, chunks: AsyncIterator[bytes], max_bytes: int, settings: UploadSettings
) -> bytes:
    """Write what comes, and return how it begins."""
    size, head = 0, b""
    number = await asyncio.to_thread(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file:
        try:
            while True:
                async with asyncio.timeout(_CHUNK_TIMEOUT_SECONDS):
                    part = await anext(chunks, None)
                if part is None:
                    break
                size += len(part)
                if size > max_bytes:
                    raise _too_large_error(max_bytes, settings)
                head = head if len(head) >= 4096 else (head + part)[:4096]
                await asyncio.to_thread(file.write, part)
        except TimeoutError:
            raise BadRequestError("The file did not come.", fix="Send it again.") from None
        await asyncio.to_thread(_flush, file)
    return head


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _check_magic_bytes(name: str, suffix: str, head: bytes) -> None:
    magic = _MAGIC_BYTES.get(suffix)
    if magic is None:
        fits = bool(head.strip()) and (b"\0" not in head or head.startswith(_UTF16_MARKS))
        fits = fits and not head.startswith(tuple(_MAGIC_BYTES.values()))
    else:
        fits = head.startswith(magic)
    if not fits:
        raise ValidationError(
            f"{name!r} is not what its name says.", fix="Send the file under its own kind."
        )


def _store(partial_path: Path, path: Path) -> dict[str, Any]:
    path.parent.mkdir(mode=0o700)
    partial_path.rename(path)
    return _describe(path, path.stat().st_mtime)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something that a step made: a file, or a table.

    Attributes:
        file_id: Names it in its thread.
        name: What it is saved as.
        kind: ``image``, ``table`` or ``file``.
        type: Its context type.
        key: Key of its context data.
        step: The step of the last plan that made it, if one of it did.
        size: Bytes of a file, rows of a table.
        path: Where a file is.
        rows: What a table holds.
    """

    file_id: str
    name: str
    kind: str
    type: str
    key: str
    step: str | None
    size: int
    path: Path | None = None
    rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def media_type(self) -> str:
        """What is said of it."""
        return media_type(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Describe it; where a file is stays with the server."""
        told = {name: getattr(self, name) for name in ("file_id", "name", "kind", "type", "step")}
        size = {"rows" if self.path is None else "bytes": self.size}
        return {**told, "media_type": self.media_type, **size}

    def open(self) -> tuple[BinaryIO, int]:
        """Return its content, a table as CSV, and how long that is.

        Raises:
            NotFoundError: The file is gone.
        """
        if self.path is not None:
            return _open_regular_file(self.path)
        text = to_csv(self.rows).encode("utf-8", "replace")
        return io.BytesIO(text), len(text)


class Artifacts:
    """What steps made, thread by thread.

    Args:
        graph: A graph of ``build_graph`` with a saver.
        threads: The threads, user by user.
        folders: Where files have to be to be given out.
    """

    def __init__(self, graph: Any, threads: Threads, folders: Sequence[str]) -> None:
        self._graph, self._threads = graph, threads
        self._folders = [Path(one).expanduser().resolve() for one in folders]

    async def list_artifacts(self, caller: Caller, thread_id: str) -> list[Artifact]:
        """Return what a thread holds that steps made.

        Raises:
            NotFoundError: There is no such thread.
        """
        kept = await self._threads.resolve(caller, thread_id)
        values = await load_thread_values(self._graph, kept)
        return await asyncio.to_thread(lambda: list(self._iter_artifacts(values)))

    async def get(self, caller: Caller, thread_id: str, file_id: str) -> Artifact:
        """Return one of them.

        Raises:
            NotFoundError: There is none.
        """
        for one in await self.list_artifacts(caller, thread_id):
            if one.file_id == file_id:
                return one
        raise _not_found()

    def _iter_artifacts(self, values: Mapping[str, Any]) -> Iterator[Artifact]:
        registry: Registry = self._graph.services.registry
        made = {
            (kind, key): step
            for step, record in (values.get("execution_step_results") or {}).items()
            for kind, key in (record.get("outputs") or {}).items()
        }
        for kind, entries in (values.get("capability_context_data") or {}).items():
            if kind in registry.provided_types:
                continue  # what a caller names is nothing that a step made
            for key, entry in entries.items():
                contexts = load_contexts(registry.context_types, kind, key, entry)
                for place, context in enumerate(contexts):
                    yield from self._iter_context_artifacts(
                        context, kind, key, str(place), made.get((kind, key))
                    )

    def _iter_context_artifacts(
        self, context: CapabilityContext, kind: str, key: str, index: str, step: str | None
    ) -> Iterator[Artifact]:
        for named in context.get_files():
            path = Path(named)
            with suppress(OSError, ValueError):
                path = path.parent.resolve() / path.name
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and set(self._folders) & set(path.parents):
                    name = path.name.encode("utf-8", "replace").decode()
                    what = "image" if media_type(name).startswith("image/") else "file"
                    named_by = _artifact_id(kind, key, index, str(path))
                    yield Artifact(named_by, name, what, kind, key, step, found.st_size, path)
        for title, rows in context.get_tables().items():
            name = re.sub(r"[^\w-]+", " ", f"{key} {title}").strip()[:_MAX_NAME_BYTES] + ".csv"
            plain = to_json_safe(rows)
            named_by = _artifact_id(kind, key, index, title)
            yield Artifact(named_by, name, "table", kind, key, step, len(plain), rows=plain)


def _artifact_id(*parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:32]

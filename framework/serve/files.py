"""Files on the server: uploads of users, and artifacts that steps produced.

Both have IDs. Paths on the server are neither accepted from clients nor returned to them.
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
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
}  # fmt: skip
"""Media types by file extension. All other files are served as ``application/octet-stream``."""


def media_type(name: str) -> str:
    """Return the media type for a file name. Unlisted file types are treated as binary data.

    >>> media_type("page.HTML"), media_type("plot.png")
    ('application/octet-stream', 'image/png')
    """
    return _MEDIA_TYPES.get(Path(name).suffix.lower(), "application/octet-stream")


def _not_found() -> NotFoundError:
    return NotFoundError("The file does not exist.", fix="List the files.")


def _open_regular_file(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file for reading and return it with its size in bytes.

    Symbolic links are not followed.

    Raises:
        NotFoundError: The file does not exist or is not a regular file.
    """
    try:
        # O_NOFOLLOW rejects symbolic links; O_NONBLOCK prevents waiting for a named pipe.
        flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, os.O_RDONLY | flags)
    except OSError:
        raise _not_found() from None
    file, status = os.fdopen(descriptor, "rb"), os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise _not_found()
    return file, status.st_size


class Uploads:
    """Files uploaded by users, stored as ``folder/user/id/name``.

    Args:
        settings: Storage folder and limits.
        registry: Registry of the agent.

    Raises:
        ConfigurationError: No capability of the agent accepts files.
    """

    def __init__(self, settings: UploadSettings, registry: Registry) -> None:
        file_contexts(registry, [""])
        self.settings = settings
        self._registry = registry
        self._root = Path(settings.folder).expanduser().resolve()
        self._locks: dict[str, asyncio.Lock] = {}

    def create_folder(self) -> None:
        """Create the upload folder with permissions that let only its owner read it."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def check_isolation(self, data_folders: Sequence[str]) -> None:
        """Check that users cannot read each other's uploads.

        Raises:
            ConfigurationError: The uploads are in a data folder that all users may read.
        """
        for folder in data_folders:
            data_folder = Path(folder).expanduser().resolve()
            if "{user}" not in folder and data_folder in (self._root, *self._root.parents):
                raise ConfigurationError(
                    f"serve.uploads.folder is inside {folder!r}, which every user may read.",
                    fix="Choose another folder for uploads, or other data_folders.",
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
        """Return the files that a user uploaded, most recent first."""
        return await asyncio.to_thread(self._list_files, caller)

    def _list_files(self, caller: Caller) -> list[dict[str, Any]]:
        folder, files = self._folder(caller), []
        for entry in folder.iterdir() if folder.is_dir() else ():
            with suppress(OSError, NotFoundError):
                path = self._path(caller, entry.name)
                files.append((path.stat().st_mtime, path))
        return [_describe(path, modified_at) for modified_at, path in sorted(files, reverse=True)]

    async def remaining_bytes(self, caller: Caller) -> int:
        """Return the number of bytes that a user may still upload within the quota."""
        used = sum(one["bytes"] for one in await self.list_files(caller))
        return max(self.settings.max_user_bytes - int(used), 0)

    async def add(
        self,
        caller: Caller,
        name: str,
        chunks: AsyncIterator[bytes],
        content_length: int | None = None,
    ) -> dict[str, Any]:
        """Store an uploaded file and return its description for clients.

        Args:
            caller: Owner of the file.
            name: File name.
            chunks: Content of the file.
            content_length: Size of the file, if known.

        Raises:
            ValidationError: The name is invalid or the file type is not accepted.
            TooLargeError: The file is too large, or the user has too many files.
            BadRequestError: The upload timed out.
        """
        suffix = self._check_name(name)
        folder = self._folder(caller)
        # Uploads of one user run one at a time, so that the quota applies to their sum.
        async with self._locks.setdefault(folder.name, asyncio.Lock()):
            files, left = await self.list_files(caller), await self.remaining_bytes(caller)
            limit = min(left, self.settings.max_file_bytes)
            if len(files) >= self.settings.max_files or (content_length or 0) > limit:
                raise _too_large_error(limit, self.settings)
            partial_path = folder / f"{_PARTIAL_PREFIX}{uuid.uuid4().hex}"
            await asyncio.to_thread(_prepare_folder, folder)
            try:
                head = await _write_chunks(partial_path, chunks, limit, self.settings)
                _check_magic_bytes(name, suffix, head)
                return await asyncio.to_thread(
                    _store, partial_path, folder / uuid.uuid4().hex / name
                )
            finally:
                await asyncio.to_thread(partial_path.unlink, missing_ok=True)

    def _check_name(self, name: str) -> str:
        suffix = Path(name).suffix.lower()
        if not name.isprintable() or name.startswith(".") or set(name) & set('/\\:"<>|?*'):
            raise ValidationError(
                f"The file name {name[:80]!r} contains forbidden characters.",
                fix="Use a plain file name without a folder.",
            )
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise ValidationError(
                f"The file name {name[:40]!r}… is longer than {_MAX_NAME_BYTES} bytes.",
                fix="Use a shorter name.",
            )
        if suffix not in self.settings.kinds:
            raise ValidationError(
                f"The file type of {name!r} is not accepted.",
                fix=f"Send one of these types: {' '.join(self.settings.kinds)}.",
            )
        return suffix

    async def open(self, caller: Caller, file_id: str) -> tuple[str, BinaryIO, int]:
        """Open an uploaded file and return its name, content, and size.

        Raises:
            NotFoundError: The file does not exist or belongs to another user.
        """
        path = await asyncio.to_thread(self._path, caller, file_id)
        return path.name, *await asyncio.to_thread(_open_regular_file, path)

    async def remove(self, caller: Caller, file_id: str) -> None:
        """Delete a file that the caller uploaded.

        Raises:
            NotFoundError: The file does not exist or belongs to another user.
        """
        path = await asyncio.to_thread(self._path, caller, file_id)
        await asyncio.to_thread(shutil.rmtree, path.parent)

    async def to_context(self, caller: Caller, file_ids: Sequence[str]) -> dict[str, Any]:
        """Return context data that gives a turn access to uploaded files.

        Raises:
            NotFoundError: A file does not exist or belongs to another user.
        """
        paths = [await asyncio.to_thread(self._path, caller, one) for one in file_ids]
        # Relative to the user's own folder, where the data capabilities look for files.
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
        f"The upload exceeds your quota: {max_bytes:,} bytes remain, and at most"
        f" {settings.max_files} files are allowed.",
        fix="Delete some of your files, or increase the limits in serve.uploads.",
    )


def _prepare_folder(folder: Path) -> None:
    folder.mkdir(exist_ok=True, mode=0o700)
    now = datetime.now(UTC).timestamp()
    for one in folder.glob(f"{_PARTIAL_PREFIX}*"):  # partial uploads of a killed process
        if now - one.stat().st_mtime > _ABANDONED_SECONDS:
            one.unlink(missing_ok=True)


async def _write_chunks(
    path: Path, chunks: AsyncIterator[bytes], max_bytes: int, settings: UploadSettings
) -> bytes:
    """Write an upload to a new file and return the first 4096 bytes."""
    size, head = 0, b""
    descriptor = await asyncio.to_thread(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        try:
            while True:
                async with asyncio.timeout(_CHUNK_TIMEOUT_SECONDS):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large_error(max_bytes, settings)
                head = head if len(head) >= 4096 else (head + chunk)[:4096]
                await asyncio.to_thread(file.write, chunk)
        except TimeoutError:
            raise BadRequestError("The upload timed out.", fix="Send the file again.") from None
        await asyncio.to_thread(_flush, file)
    return head


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _check_magic_bytes(name: str, suffix: str, head: bytes) -> None:
    magic = _MAGIC_BYTES.get(suffix)
    if magic is None:
        is_valid = bool(head.strip()) and (b"\0" not in head or head.startswith(_UTF16_MARKS))
        is_valid = is_valid and not head.startswith(tuple(_MAGIC_BYTES.values()))
    else:
        is_valid = head.startswith(magic)
    if not is_valid:
        raise ValidationError(
            f"The content of {name!r} does not match its file extension.",
            fix="Send the file with the extension of its actual type.",
        )


def _store(partial_path: Path, path: Path) -> dict[str, Any]:
    path.parent.mkdir(mode=0o700)
    partial_path.rename(path)
    return _describe(path, path.stat().st_mtime)


@dataclass(frozen=True, slots=True)
class Artifact:
    """File or table that a step produced.

    Attributes:
        file_id: ID of the artifact, unique in its thread.
        name: File name for downloads.
        kind: ``image``, ``table``, or ``file``.
        type: Context type of the data that contains the artifact.
        key: Key of the context data that contains the artifact.
        step: Step of the last plan that produced it, if any.
        size: Number of bytes of a file or rows of a table.
        path: Path of a file.
        rows: Rows of a table.
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
        """Media type of the download."""
        return media_type(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return the artifact's description for clients, without the server path."""
        fields = {name: getattr(self, name) for name in ("file_id", "name", "kind", "type", "step")}
        size = {"rows" if self.path is None else "bytes": self.size}
        return {**fields, "media_type": self.media_type, **size}

    def open(self) -> tuple[BinaryIO, int]:
        """Open the artifact for reading and return its content with the size in bytes.

        A table is converted to CSV.

        Raises:
            NotFoundError: The file no longer exists.
        """
        if self.path is not None:
            return _open_regular_file(self.path)
        text = to_csv(self.rows).encode("utf-8", "replace")
        return io.BytesIO(text), len(text)


class Artifacts:
    """Files and tables that the steps of the users' threads produced.

    Args:
        graph: Graph made by ``build_graph``, with a checkpointer.
        threads: The users' threads.
        folders: Folders whose files may be downloaded.
    """

    def __init__(self, graph: Any, threads: Threads, folders: Sequence[str]) -> None:
        self._graph, self._threads = graph, threads
        self._folders = [Path(one).expanduser().resolve() for one in folders]

    async def list_artifacts(self, caller: Caller, thread_id: str) -> list[Artifact]:
        """Return the files and tables that the steps of a thread produced.

        Raises:
            NotFoundError: The thread does not exist.
        """
        storage_id = await self._threads.resolve(caller, thread_id)
        values = await load_thread_values(self._graph, storage_id)
        return await asyncio.to_thread(lambda: list(self._iter_artifacts(values)))

    async def get(self, caller: Caller, thread_id: str, file_id: str) -> Artifact:
        """Return one artifact of a thread by its file ID.

        Raises:
            NotFoundError: The thread or the artifact does not exist.
        """
        for one in await self.list_artifacts(caller, thread_id):
            if one.file_id == file_id:
                return one
        raise _not_found()

    def _iter_artifacts(self, values: Mapping[str, Any]) -> Iterator[Artifact]:
        registry: Registry = self._graph.services.registry
        producers = {
            (kind, key): step
            for step, record in (values.get("execution_step_results") or {}).items()
            for kind, key in (record.get("outputs") or {}).items()
        }
        for kind, entries in (values.get("capability_context_data") or {}).items():
            if kind in registry.provided_types:
                continue  # provided by the caller, not produced by a step
            for key, entry in entries.items():
                contexts = load_contexts(registry.context_types, kind, key, entry)
                for index, context in enumerate(contexts):
                    yield from self._iter_context_artifacts(
                        context, kind, key, str(index), producers.get((kind, key))
                    )

    def _iter_context_artifacts(
        self, context: CapabilityContext, kind: str, key: str, index: str, step: str | None
    ) -> Iterator[Artifact]:
        for file_name in context.get_files():
            path = Path(file_name)
            with suppress(OSError, ValueError):
                path = path.parent.resolve() / path.name
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and set(self._folders) & set(path.parents):
                    name = path.name.encode("utf-8", "replace").decode()
                    artifact_kind = "image" if media_type(name).startswith("image/") else "file"
                    artifact_id = _artifact_id(kind, key, index, str(path))
                    yield Artifact(
                        artifact_id, name, artifact_kind, kind, key, step, status.st_size, path
                    )
        for title, rows in context.get_tables().items():
            name = re.sub(r"[^\w-]+", " ", f"{key} {title}").strip()[:_MAX_NAME_BYTES] + ".csv"
            plain = to_json_safe(rows)
            artifact_id = _artifact_id(kind, key, index, title)
            yield Artifact(artifact_id, name, "table", kind, key, step, len(plain), rows=plain)


def _artifact_id(*parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:32]

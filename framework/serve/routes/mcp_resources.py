"""Resources of the MCP server: threads, uploads, artifacts of steps, and files of the operator."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplate,
    TextResourceContents,
)

from capgraph.base.errors import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.serve.files import Artifact, Artifacts, Uploads, media_type
from capgraph.serve.problems import NotFoundError
from capgraph.serve.threads import Threads, to_json_safe

_SCHEME = "capgraph:"
_THREAD_URI = "capgraph://threads/{thread}"
_ARTIFACT_URI = "capgraph://threads/{thread}/files/{file}"
_UPLOAD_URI = "capgraph://files/{file}"
_PATTERN = re.compile(
    r"capgraph://(?:threads/(?P<thread>[^/]+)(?:/files/(?P<artifact>[^/]+))?|files/(?P<upload>[^/]+))"
)
_MAX_BYTES = 5_000_000
"""Maximum size of a file in a response. Clients download larger files from the JSON API."""
_MAX_TEXT_BYTES = 100_000
"""Maximum size of a text file in a tool result."""
_TEXT_TYPES = ("text/", "application/json")


class McpResources:
    """MCP resources offered by the server.

    Args:
        threads: The users' threads.
        uploads: The users' uploads; ``None`` if uploads are disabled.
        artifacts: Artifacts that steps produced.
        files: Paths of the operator's files, by URI.

    Raises:
        ConfigurationError: A file does not exist, or a URI is reserved.
    """

    def __init__(
        self,
        threads: Threads,
        uploads: Uploads | None,
        artifacts: Artifacts,
        files: Mapping[str, str],
    ) -> None:
        self._threads, self._uploads, self._artifacts = threads, uploads, artifacts
        self._files = {uri: Path(path) for uri, path in files.items()}
        for uri, path in self._files.items():
            if not path.is_file() or uri.startswith(_SCHEME) or ":" not in uri:
                raise ConfigurationError(
                    f"serve.mcp.resources contains {uri!r}: {str(path)!r}, but a resource must have a"
                    f" URI that does not start with {_SCHEME}, and an existing file.",
                    fix="Correct the URI or the path.",
                )

    async def list_resources(self, caller: Caller, cursor: str | None) -> ListResourcesResult:
        """Return a page of the caller's threads as MCP resources.

        The first page also contains all files.
        """
        threads, next_cursor = await self._threads.list_page(caller, after=cursor)
        resources = [_thread_resource(thread["thread_id"], thread["title"]) for thread in threads]
        if cursor is None:
            resources += [
                Resource(uri=uri, name=path.name, mime_type=media_type(path.name))
                for uri, path in self._files.items()
            ]
        if self._uploads is not None and cursor is None:
            for file in await self._uploads.list_files(caller):
                uri = _UPLOAD_URI.format(file=quote(file["file_id"], safe=""))
                resources.append(
                    Resource(
                        uri=uri,
                        name=file["name"],
                        description="Uploaded file.",
                        mime_type=media_type(file["name"]),
                    )
                )
        return ListResourcesResult(resources=resources, next_cursor=next_cursor)

    def list_templates(self) -> ListResourceTemplatesResult:
        """Return the templates of the resources' URIs."""
        templates = [
            (_THREAD_URI, "thread", "Thread with its messages, plan, and results."),
            (_ARTIFACT_URI, "artifact", "File or table that a step of a thread produced."),
        ]
        if self._uploads is not None:
            templates.append((_UPLOAD_URI, "file", "Uploaded file."))
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(uri_template=uri, name=name, description=description)
                for uri, name, description in templates
            ]
        )

    async def read(self, caller: Caller, uri: str) -> ReadResourceResult:
        """Return the content of an MCP resource.

        Raises:
            MCPError: The resource does not exist or is too large.
        """
        parts = _PATTERN.fullmatch(uri)
        values = {
            name: unquote(value)
            for name, value in (parts.groupdict() if parts else {}).items()
            if value
        }
        try:
            if (path := self._files.get(uri)) is not None:
                size = (await asyncio.to_thread(path.stat)).st_size
                data = await _read_file(await asyncio.to_thread(path.open, "rb"), size)
                return _file_result(uri, media_type(path.name), data)
            if "artifact" in values:
                artifact = await self._artifacts.get(caller, values["thread"], values["artifact"])
                data = await _read_file(*await asyncio.to_thread(artifact.open))
                return _file_result(uri, artifact.media_type, data)
            if "thread" in values:
                return await self._read_thread(caller, uri, values["thread"])
            if "upload" in values and self._uploads is not None:
                name, file, size = await self._uploads.open(caller, values["upload"])
                return _file_result(uri, media_type(name), await _read_file(file, size))
        except (NotFoundError, _TooLargeError) as exc:
            raise MCPError(INVALID_PARAMS, exc.message, {"uri": uri}) from exc
        except OSError as exc:  # the file was removed after the start
            raise MCPError(INVALID_PARAMS, "The file cannot be read.", {"uri": uri}) from exc
        raise MCPError(INVALID_PARAMS, "The resource does not exist.", {"uri": uri})

    async def _read_thread(self, caller: Caller, uri: str, thread_id: str) -> ReadResourceResult:
        thread = await self._threads.get(caller, thread_id)
        files = [
            {**artifact.to_dict(), "uri": _artifact_uri(thread_id, artifact)}
            for artifact in await self._artifacts.list_artifacts(caller, thread_id)
        ]
        text = json.dumps(to_json_safe({**thread, "files": files}), ensure_ascii=False)
        contents = TextResourceContents(uri=uri, mime_type="application/json", text=text)
        return ReadResourceResult(contents=[contents])

    async def complete(self, caller: Caller, argument: str, prefix: str) -> list[str]:
        """Suggest the caller's thread IDs that begin with a prefix."""
        if argument != "thread":
            return []
        threads, _ = await self._threads.list_page(caller, query=prefix)
        return [t["thread_id"] for t in threads if t["thread_id"].startswith(prefix)]

    async def artifact_content(self, caller: Caller, thread_id: str) -> list[ContentBlock]:
        """Return a thread's artifacts as content blocks of an MCP tool result.

        Images, audio, and short text files are embedded. Other artifacts are links to their
        resources.
        """
        artifacts = await self._artifacts.list_artifacts(caller, thread_id)
        return [await _artifact_block(thread_id, artifact) for artifact in artifacts]


class _TooLargeError(NotFoundError):
    """Raised if a file is too large for an MCP response."""


async def _artifact_block(thread_id: str, artifact: Artifact) -> ContentBlock:
    kind = artifact.media_type
    blocks: dict[str, type[ImageContent] | type[AudioContent]] = {
        "image": ImageContent,
        "audio": AudioContent,
    }
    block = blocks.get(kind.partition("/")[0])
    if block is not None and artifact.size <= _MAX_BYTES:
        data = await _read_file(*await asyncio.to_thread(artifact.open))
        return block(data=base64.b64encode(data).decode(), mime_type=kind)
    uri = _artifact_uri(thread_id, artifact)
    is_short_text = kind.startswith(_TEXT_TYPES) and artifact.size <= _MAX_TEXT_BYTES
    if artifact.path is not None and is_short_text:
        data = await _read_file(*await asyncio.to_thread(artifact.open))
        text = data.decode("utf-8", "replace")
        contents = TextResourceContents(uri=uri, mime_type=kind, text=text)
        return EmbeddedResource(resource=contents)
    return ResourceLink(uri=uri, name=artifact.name, mime_type=kind)


async def _read_file(file: BinaryIO, size: int) -> bytes:
    with file:
        if size > _MAX_BYTES:
            raise _TooLargeError(
                f"The file has {size:,} bytes: the limit is {_MAX_BYTES:,}.",
                fix="Download it from the JSON API.",
            )
        return await asyncio.to_thread(file.read, size)


def _file_result(uri: str, kind: str, data: bytes) -> ReadResourceResult:
    if kind.startswith(_TEXT_TYPES):
        text = TextResourceContents(uri=uri, mime_type=kind, text=data.decode("utf-8", "replace"))
        return ReadResourceResult(contents=[text])
    blob = BlobResourceContents(uri=uri, mime_type=kind, blob=base64.b64encode(data).decode())
    return ReadResourceResult(contents=[blob])


def _thread_resource(thread_id: str, title: str) -> Resource:
    return Resource(
        uri=_THREAD_URI.format(thread=quote(thread_id, safe="")),
        name=title or thread_id,
        description="Thread with its messages, plan, and results.",
        mime_type="application/json",
    )


def _artifact_uri(thread_id: str, artifact: Artifact) -> str:
    return _ARTIFACT_URI.format(thread=quote(thread_id, safe=""), file=artifact.file_id)

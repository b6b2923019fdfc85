"""Data that a client sends: every protocol checks it in the same place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import CapabilityContext, capability_node
from tests.contract.test_serve_mcp import client, text
from tests.support.listening import listening


class Picture(CapabilityContext):
    """File that a step drew."""

    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"

    path: str


class Sheet(CapabilityContext):
    """File with a method of its own."""

    name: str

    def get_files(self) -> list[str]:
        return [self.name]


class Album(CapabilityContext):
    """Files inside another type."""

    title: str = "album"
    pictures: list[Picture | Sheet]

    def get_summary(self) -> str:
        return self.title


class Title(CapabilityContext):
    """Text without files."""

    title: str


@capability_node
async def frame(picture: Picture) -> Picture:
    """Frame a picture."""
    return picture


@capability_node
async def sort_sheet(sheet: Sheet) -> Sheet:
    """Sort a sheet."""
    return sheet


@capability_node
async def bind_album(album: Album) -> Picture:
    """Bind an album."""
    return Picture(path=str(album.pictures[0].model_dump().popitem()[1]))


@capability_node
async def start_album() -> Album:
    """Start an album."""
    return Album(pictures=[])


@capability_node
async def write_title(title: Title) -> Title:
    """Write a title."""
    return title


@pytest.mark.parametrize(
    ("tool", "kind", "fields"),
    [
        ("frame", "PICTURE", {"path": "?"}),
        ("sort_sheet", "SHEET", {"name": "?"}),
        ("bind_album", "ALBUM", {"pictures": [{"path": "?"}]}),
        ("bind_album", "ALBUM", {"pictures": [{"name": "?"}]}),
    ],
)
async def test_a_tools_input_hands_out_no_file_of_another_user(
    tmp_path: Path, tool: str, kind: str, fields: Any
) -> None:
    secret = tmp_path / "anns_secret.png"
    secret.write_text("of ann")

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(one) for key, one in value.items()}
        return [named(one) for one in value] if isinstance(value, list) else str(secret)

    tools = [frame, sort_sheet, bind_album, write_title]
    options: dict[str, Any] = {"mcp": {"tools": [one.name for one in tools]}}
    options["downloads"] = [str(tmp_path)]
    async with listening(*tools, start_album, saver=InMemorySaver(), **options) as url:
        async with client(url, "bob") as mcp:
            found = await mcp.call_tool(tool, {kind: named(fields)})
            harmless = await mcp.call_tool("write_title", {"TITLE": {"title": "Fjord"}})
        async with httpx.AsyncClient(base_url=url, headers={"x-user": "bob"}) as http:
            threads = (await http.get("/api/threads")).json()["items"]
            files = [
                (await http.get(f"/api/threads/{one['thread_id']}/files")).json() for one in threads
            ]
    assert found.is_error, text(found)
    assert not harmless.is_error, text(harmless)
    assert "secret" not in str(files)

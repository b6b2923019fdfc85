"""A client of `mcp` 1.x, run by an interpreter of its own: asks, and answers what it is asked.

Prints what it was asked and told, as JSON. Arguments: address, user, and what it answers, as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
from mcp import ClientSession, types  # of 1.x
from mcp.client.streamable_http import streamable_http_client


async def main(url: str, user: str, answers: list[dict[str, Any]]) -> None:
    asked, told = [], []

    async def elicited(context: Any, params: Any) -> types.ElicitResult:
        asked.append({"message": params.message, "schema": params.requestedSchema})
        return types.ElicitResult(action="accept", content=answers.pop(0))

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append([done, total, message])

    async with (
        httpx.AsyncClient(headers={"x-user": user}, timeout=60) as http,
        streamable_http_client(f"{url}/mcp", http_client=http) as (read, write, _),
        ClientSession(read, write, elicitation_callback=elicited if answers else None) as session,
    ):
        hello = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        given = {"message": "Open the valve"}
        found = await session.call_tool("ask", given, progress_callback=progress)
    result = {"text": found.content[0].text, "error": found.isError, **found.structuredContent}
    report = {"protocol": hello.protocolVersion, "tools": tools, "asked": asked, "told": told}
    print(json.dumps({**report, "result": result}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))

"""Files that people bring along, and files that steps made for them."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.base import ConfigurationError
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.registry import Registry
from capgraph.serve.app import create_app
from capgraph.serve.files import Uploads
from tests.support.served import ByHeader, asked, ended, events_of, served

CSV = b"time,load\n" + b"".join(b"2024-01-%02d,%d\n" % (day, day * 10) for day in range(1, 31))
HARDENED = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
    "content-disposition": "attachment;",
    "cross-origin-resource-policy": "same-origin",
}


def data_agent(folder: Path, **uploads: Any) -> dict[str, Any]:
    """Return how the shipped agent is served over uploads alone."""
    modules = [f"capabilities.{name}" for name in ("contexts", "query_data", "plotting")]
    settings = Settings(
        modules=modules,
        provided_types=["DATA_SOURCE"],
        capabilities={"plotting": {"output_dir": str(folder / "made")}},
        serve={
            "uploads": {"folder": str(folder / "brought"), **uploads},
            "downloads": [str(folder / "made")],
        },
    )
    return {"settings": settings, "registry": Registry.from_settings(settings)}


async def bring(client: Any, name: str = "load.csv", data: bytes = CSV) -> Any:
    return await client.post("/api/files", params={"name": name}, content=data)


def query(**more: Any) -> dict[str, Any]:
    """A plan that computes a table and draws it."""
    asked_for = {"aggregate": "mean", "value": "load", "group_by": ["week"], **more}
    return {
        "steps": [
            {
                "context_key": "weeks",
                "capability": "query_data",
                "task_objective": "The load week by week",
                "parameters": asked_for,
                "inputs": [{"DATA_SOURCE": "data"}],
            },
            {
                "context_key": "picture",
                "capability": "plotting",
                "task_objective": "Draw it",
                "inputs": [{"QUERY_RESULT": "weeks"}],
            },
        ]
    }


async def test_upload_use_and_delete_a_file(tmp_path: Path) -> None:
    async with served(**data_agent(tmp_path)) as client:
        ann, bob = await client(), await client("bob")
        empty = (await ann.get("/api/files")).json()
        assert empty["items"] == []
        assert empty["uploads"]["left"] == 500_000_000
        brought = await bring(ann)
        assert brought.status_code == 201
        file = brought.json()
        assert (file["name"], file["bytes"]) == ("load.csv", len(CSV))
        assert (await ann.get("/api/files")).json()["items"] == [file]
        body = {"message": "What is the average load?", "files": [file["file_id"]]}
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        run = await ann.post(f"/api/threads/{thread}/runs", json=body)
        assert run.status_code == 202, run.text
        assert await ended(ann, run.json()["run_id"]) == "completed"
        told = (await ann.get(f"/api/threads/{thread}")).json()
        assert "155" in told["messages"][-1]["content"]
        state = (await ann.get(f"/api/threads/{thread}/state")).text
        assert str(tmp_path) not in state
        # What is ann's is nobody else's, by its id or by its name.
        for path in (file["file_id"], "f" * 32, f"../{file['file_id']}", "..", "%2e%2e"):
            for method in ("GET", "DELETE"):
                assert (await bob.request(method, f"/api/files/{path}")).status_code in (404, 405)
        theirs = (await bob.post("/api/threads")).json()["thread_id"]
        refused = await bob.post(f"/api/threads/{theirs}/runs", json=body)
        missing = {**body, "files": ["f" * 32]}
        other = await bob.post(f"/api/threads/{theirs}/runs", json=missing)
        assert (refused.status_code, refused.json()) == (404, other.json())
        name = f"{file['file_id']}/load.csv"
        for named in (name, f"../ann/{name}", str(tmp_path / "brought" / "ann" / name)):
            context = {"DATA_SOURCE": {"data": {"files": [named]}}}
            theirs, run_id = await asked(bob, query(), context=context)
            assert await ended(bob, run_id) == "failed", named
            assert (await bob.get(f"/api/threads/{theirs}/files")).json()["items"] == []
        got = await ann.get(f"/api/files/{file['file_id']}")
        assert got.content == CSV
        assert [value in got.headers[header] for header, value in HARDENED.items()] == [True] * 4
        assert (await ann.delete(f"/api/files/{file['file_id']}")).status_code == 204
        assert (await ann.get(f"/api/files/{file['file_id']}")).status_code == 404
        assert (await ann.get("/api/files")).json() == empty


async def test_artifacts_are_downloaded_by_id(tmp_path: Path) -> None:
    async with served(**data_agent(tmp_path)) as client:
        ann, bob = await client(), await client("bob")
        file = (await bring(ann)).json()
        thread, run = await asked(ann, query(), files=[file["file_id"]])
        assert await ended(ann, run) == "completed"
        table, image = (await ann.get(f"/api/threads/{thread}/files")).json()["items"]
        assert (table["kind"], table["step"], table["type"]) == ("table", "weeks", "QUERY_RESULT")
        assert (image["kind"], image["step"], image["media_type"]) == (
            "image",
            "picture",
            "image/png",
        )
        told = await events_of(ann, run)
        assert told[-1]["result"]["files"] == [image["name"]]
        whole = (await ann.get(f"/api/threads/{thread}")).json()
        assert image["name"] in whole["messages"][-1]["content"]
        state = (await ann.get(f"/api/threads/{thread}/state")).json()
        assert image["name"] in str(state["capability_context_data"])
        assert str(tmp_path) not in str([table, image, told, whole, state])
        path = f"/api/threads/{thread}/files"
        got = await ann.get(f"{path}/{image['file_id']}")
        assert got.content.startswith(b"\x89PNG")
        assert len(got.content) == image["bytes"] == int(got.headers["content-length"])
        assert [value in got.headers[header] for header, value in HARDENED.items()] == [True] * 4
        got = await ann.get(f"{path}/{table['file_id']}")
        assert got.headers["content-type"] == "text/csv; charset=utf-8"
        lines = list(csv.DictReader(io.StringIO(got.text)))
        assert len(lines) == table["rows"] > 3
        first = (await ann.get(f"{path}/{table['file_id']}/rows?limit=3")).json()
        rest = (await ann.get(f"{path}/{table['file_id']}/rows?after={first['next']}")).json()
        assert rest["next"] is None
        assert [row["value"] for row in first["items"] + rest["items"]] == [
            float(line["value"]) for line in lines
        ]
        for one in (path, f"{path}/{image['file_id']}", f"{path}/{table['file_id']}/rows"):
            theirs = await bob.get(one)
            none = await bob.get(one.replace(thread, "none"))
            assert (theirs.status_code, theirs.json()) == (404, none.json())
        for odd in ("%2e%2e%2fx", image["name"], "f" * 32):
            assert (await ann.get(f"{path}/{odd}")).status_code == 404


class Drawn(CapabilityContext):
    """Files that a step says it made."""

    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"
    paths: list[str]


class Rows(CapabilityContext):
    """A table with everything that a table should not hold."""

    rows: list[dict[str, Any]]


async def test_downloads_are_limited_to_configured_folders(tmp_path: Path) -> None:
    made, secret = tmp_path / "made", tmp_path / "secret.png"
    (made / "inner").mkdir(parents=True)
    (tmp_path / "made-up").mkdir()
    for path in (secret, made / "good.svg", made / "page.html", tmp_path / "made-up" / "x.png"):
        path.write_text("<svg onload='alert(1)'/>")
    (made / "link.png").symlink_to(secret)
    (made / "folder.png").mkdir()
    (made / "out").symlink_to(tmp_path)
    os.mkfifo(made / "pipe.png")
    names = ["good.svg", "page.html", "link.png", "folder.png", "out/secret.png", "pipe.png"]
    names += ["../secret.png", "none.png", "\0.png", "../made-up/x.png", "inner/../../secret.png"]

    @capability_node
    async def draw() -> Drawn:
        """Draw."""
        return Drawn(paths=[f"{made}/{name}" for name in names] + ["/etc/passwd", "~/.profile"])

    settings = Settings(serve={"downloads": [str(made)]})
    async with served(draw, settings=settings) as client:
        ann = await client()
        plan = {"steps": [{"context_key": "picture", "capability": "draw"}]}
        thread, run = await asked(ann, plan)
        assert await ended(ann, run) == "completed"
        found = (await ann.get(f"/api/threads/{thread}/files")).json()["items"]
        assert [one["name"] for one in found] == ["good.svg", "page.html"]
        kinds = ["image/svg+xml", "application/octet-stream"]
        for one, kind in zip(found, kinds, strict=True):
            got = await ann.get(f"/api/threads/{thread}/files/{one['file_id']}")
            assert got.headers["content-type"] == kind
            assert [value in got.headers[name] for name, value in HARDENED.items()] == [True] * 4
        (made / "good.svg").unlink()
        (made / "good.svg").symlink_to(secret)
        path = f"/api/threads/{thread}/files/{found[0]['file_id']}"
        assert (await ann.get(path)).status_code == 404


async def test_csv_export_escapes_formulas(tmp_path: Path) -> None:
    @capability_node
    async def look() -> Rows:
        """Look."""
        return Rows(rows=[{"a": "=1+2", "n": float("nan")}, {"a": "-x", "b": ["y"], "n": -1.5}])

    async with served(look) as client:
        ann = await client()
        thread, run = await asked(ann, {"steps": [{"context_key": "l", "capability": "look"}]})
        assert await ended(ann, run) == "completed"
        (table,) = (await ann.get(f"/api/threads/{thread}/files")).json()["items"]
        path = f"/api/threads/{thread}/files/{table['file_id']}"
        assert (await ann.get(path)).text == 'a,n,b\r\n\'=1+2,NaN,\r\n\'-x,-1.5,"[""y""]"\r\n'
        assert (await ann.get(f"{path}/rows")).json()["items"][0] == {"a": "=1+2", "n": "NaN"}
        # What is no number was an error of the server once.
        assert (await ann.get(f"/api/threads/{thread}/state")).status_code == 200


async def test_rejected_upload_leaves_no_file(tmp_path: Path) -> None:
    bounds = {"max_file_bytes": 1000, "max_user_bytes": 1500, "max_files": 3}
    async with served(**data_agent(tmp_path, **bounds)) as client:
        ann = await client()
        names = ["", "x", "x.exe", ".csv", "../x.csv", "a/b.csv", "a\\b.csv", "x.csv\0.csv"]
        names += [
            "x\u202ecsv.csv",
            "\n.csv",
            f"{'é' * 100}.csv",
            "C:x.csv",
            "x.csv/",
            "..",
            "x.svg",
        ]
        for name in names:
            assert (await bring(ann, name)).status_code == 422, name
        heads = {"x.csv": b"PAR1 ", "y.csv": b"a\0b", "z.csv": b"  ", "x.parquet": b"a,b"}
        for name, data in heads.items():
            assert (await bring(ann, name, data)).status_code == 422, name
        long = await bring(ann, data=b"x" * 1001)
        assert (long.status_code, long.json()["code"]) == (413, "CG-TOO-LARGE")

        async def chunks() -> Any:
            for _ in range(11):
                yield b"x" * 100

        assert (await bring(ann, data=chunks())).status_code == 413  # type: ignore[arg-type]
        assert (await bring(ann, data=b"x" * 1000)).status_code == 201
        assert (await bring(ann, data=b"x" * 501)).status_code == 413
        for _ in range(2):
            assert (await bring(ann, data=b"x" * 100)).status_code == 201
        assert (await bring(ann, data=b"x")).status_code == 413
        bob = await client("bob")
        assert (await bring(bob, data=b"x" * 1000)).status_code == 201
        kept = [path for path in (tmp_path / "brought").rglob("*") if path.is_file()]
        assert len(kept) == 4
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


async def test_uploads_are_disabled_by_default() -> None:
    async with served() as client:
        ann = await client()
        assert (await ann.get("/api/files")).json() == {"items": [], "next": None, "uploads": None}
        assert (await bring(ann)).status_code == 405
        thread = (await ann.post("/api/threads")).json()["thread_id"]
        body = {"message": "Look", "files": ["f" * 32]}
        assert (await ann.post(f"/api/threads/{thread}/runs", json=body)).status_code == 404
        for odd in ("x", [1], {"a": 1}):
            answer = await ann.post(f"/api/threads/{thread}/runs", json={**body, "files": odd})
            assert answer.status_code == 400


def test_uploads_without_a_reader_fail_at_startup(tmp_path: Path) -> None:
    settings = Settings(serve={"uploads": {"folder": str(tmp_path)}})
    with pytest.raises(ConfigurationError, match="'files'"):
        Uploads(settings.serve.uploads, Registry())  # type: ignore[arg-type]


def test_shared_upload_folder_fails_at_startup(tmp_path: Path) -> None:
    known = data_agent(tmp_path)
    for folder in (tmp_path, tmp_path / "brought"):
        settings = known["settings"].model_copy(update={"data_folders": [str(folder)]})
        graph = build_graph(known["registry"], checkpointer=InMemorySaver(), settings=settings)
        with pytest.raises(ConfigurationError, match="every user may read"):
            create_app(graph, auth=ByHeader())
        create_app(graph)  # there is one user


def test_each_caller_has_a_separate_folder() -> None:
    callers = [
        Caller(user, tenant=tenant)
        for user in ("ann", "Ann", "..", ".", "a@b", "a/b", "x" * 300, "x" * 301, "\udc80", "%41nn")
        for tenant in (None, "", "b", "..")
    ]
    places = [caller.storage_key or "" for caller in callers]
    assert len({place.casefold() for place in places}) == len(callers)
    assert not [place for place in places if set(place) & set("./\\\0") or len(place) > 250]
    assert Caller("").storage_key is Caller().storage_key is None
    nobodys = Settings(data_folders=["/all", "/of/{user}"]).capability_settings(
        "x", Caller().storage_key
    )
    assert nobodys == {"data_folders": ["/all"]}

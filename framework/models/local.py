"""Local models: discovery of llama.cpp and Ollama servers, and startup of ``llama-server``.

``model="local:qwen2.5-coder-1.5b"`` needs no API key and no base URL. A server that capgraph starts
stops with the process, even if the process is killed, because a supervisor stops the server when
the pipe to the process closes.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from pydantic import SecretStr

from capgraph.base import ConfigurationError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import ModelSettings

PREFIX = "local:"
CACHED_MODEL_NAME = "qwen2.5-coder-1.5b-instruct"
"""Name of the cached file ``model.gguf``. Other cached files are named after their file stem."""

_OLLAMA_PORT, _LLAMA_PORT = 11434, 8080
_PROBE_SECONDS, _START_SECONDS, _STOP_SECONDS = 1.0, 180.0, 15.0
_MAX_TOKENS = 1024  # a small model may repeat itself without end
_CONTEXT_OPTIONS = ("-c", "16384", "-np", "2")
_SUPERVISOR = """
import os, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: os._exit(child.wait() or 0), daemon=True).start()
sys.stdin.buffer.read()
child.terminate()
try:
    child.wait(10)
except subprocess.TimeoutExpired:
    child.kill()
    child.wait()
"""


class Endpoint(NamedTuple):
    """Model served by an OpenAI-compatible server on this machine.

    Attributes:
        url: Base URL of the server's OpenAI-compatible API.
        model: Name of the model on the server.
    """

    url: str
    model: str


@dataclass(slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    endpoint: Endpoint


_running_servers: dict[str, _Server] = {}  # by the file of the model; one server serves all graphs
_lock = Lock()


def is_local_model(model: str) -> bool:
    """Return True if a model name refers to a model on this machine.

    >>> is_local_model("local:qwen2.5-coder-1.5b"), is_local_model("openai:gpt-5")
    (True, False)
    """
    return model.startswith(PREFIX)


def resolve_local_model(settings: ModelSettings) -> ModelSettings:
    """Return model settings with ``local:`` resolved to the base URL of a local server.

    Raises:
        ConfigurationError: No local server offers the model, and none can be started.
    """
    if settings.base_url is not None:
        raise ConfigurationError(
            f"The model {settings.model!r} does not support base_url, which is"
            f" {settings.base_url!r}, because a 'local:' model finds its server automatically.",
            fix="Remove base_url, or write 'openai:NAME' as the model.",
        )
    endpoint = find_or_start_server(settings.model.removeprefix(PREFIX))
    options = dict(settings.options)
    if not options.keys() & {"max_tokens", "max_completion_tokens"}:
        options["max_tokens"] = _MAX_TOKENS
    changes: dict[str, Any] = {
        "model": f"openai:{endpoint.model}",
        "base_url": endpoint.url,
        "api_key": settings.api_key or SecretStr("none"),
        "temperature": 0.0 if settings.temperature is None else settings.temperature,
        "options": options,
    }
    return settings.model_copy(update=changes)


def find_or_start_server(name: str) -> Endpoint:
    """Find a local server for a model, or start ``llama-server`` if none is running.

    Args:
        name: Model name, such as ``qwen2.5-coder-1.5b``, or path to a GGUF file.

    Raises:
        ConfigurationError: No local server offers the model, and none can be started.
    """
    if not name:
        raise ConfigurationError(
            "The model 'local:' has no name.", fix="Write a name, as in 'local:qwen2.5-coder-1.5b'."
        )
    served = [] if name.endswith(".gguf") else list(_list_served_models())
    for endpoint in sorted(served, key=lambda found: len(found.model)):
        if matches_model_name(name, endpoint.model):
            return endpoint
    file = find_model_file(name)
    program = _find_llama_server()
    if file is None or program is None:
        raise _create_unavailable_error(name, file, served)
    with _lock:
        running = _running_servers.get(str(file))
        if running is None or running.process.poll() is not None:
            running = _running_servers[str(file)] = _start_server(program, file, name)
        return running.endpoint


def matches_model_name(name: str, served_name: str) -> bool:
    """Return True if a requested model name matches the name of a served model.

    The requested name may omit the path and the quantization.

    >>> matches_model_name("qwen2.5-coder-1.5b", "qwen2.5-coder:1.5b-instruct-q4_K_M")
    True
    >>> matches_model_name("qwen2.5-coder-1.5b", "qwen2.5-coder:14b")
    False
    """
    requested, served = _split_name(name), _split_name(Path(served_name).name.removesuffix(".gguf"))
    return bool(requested) and served[: len(requested)] == requested


def cache_folder() -> Path:
    """Return the cache folder for local models and ``llama-server``, which may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "capgraph" / "local_model"


def find_model_file(name: str) -> Path | None:
    """Find a model's GGUF file by its path or in the cache, or return None."""
    if name.endswith(".gguf"):
        file = Path(name).expanduser().resolve()
        return file if file.is_file() else None
    files = {CACHED_MODEL_NAME: cache_folder() / "model.gguf"}
    files |= {file.stem: file for file in sorted(cache_folder().glob("*.gguf"))}
    matches = (
        file for model, file in files.items() if matches_model_name(name, model) and file.is_file()
    )
    return next(matches, None)


def _split_name(name: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", name.lower().removesuffix(":latest"))


def _find_llama_server() -> str | None:
    cached = cache_folder() / "llama-server"
    return str(cached) if os.access(cached, os.X_OK) else shutil.which("llama-server")


def _create_unavailable_error(
    name: str, file: Path | None, served: Sequence[Endpoint]
) -> ConfigurationError:
    if file is not None:
        return ConfigurationError(
            f"The local model {name!r} cannot be started: llama-server was not found.",
            fix="Install llama.cpp and put 'llama-server' on the PATH.",
        )
    if name.endswith(".gguf"):
        return ConfigurationError(
            f"The local model file {name!r} does not exist.", fix="Check the path."
        )
    served_names = ", ".join(sorted({endpoint.model for endpoint in served}))
    return ConfigurationError(
        f"The local model {name!r} is unavailable: no llama.cpp or Ollama server on this machine"
        f" offers it{(f' (available: {served_names})' if served_names else '')}.",
        fix=f"Install Ollama and run 'ollama pull {_to_ollama_name(name)}', or install llama.cpp and"
        " write 'local:FILE.gguf' as the model.",
    )


def _to_ollama_name(name: str) -> str:
    """Convert a model name to Ollama's notation, with a colon before the size.

    >>> _to_ollama_name("qwen2.5-coder-1.5b")
    'qwen2.5-coder:1.5b'
    """
    return re.sub(r"-(\d[\d.]*b\b)", r":\1", name, count=1)


def _list_served_models() -> Iterator[Endpoint]:
    """Yield the models served by llama.cpp and Ollama on this machine."""
    for port in _list_ports():
        url = f"http://127.0.0.1:{port}/v1"
        models = (_get_json(port, "/v1/models") or {}).get("data")
        for entry in models if isinstance(models, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                yield Endpoint(url, entry["id"])


def _list_ports() -> list[int]:
    """Return the ports of Ollama and llama.cpp, from environment variables or defaults."""
    _, _, ollama = os.environ.get("OLLAMA_HOST", "").rstrip("/").rpartition(":")
    llama = os.environ.get("LLAMA_ARG_PORT", "")
    configured = ((ollama, _OLLAMA_PORT), (llama, _LLAMA_PORT))
    return [int(text) if text.isdecimal() else default for text, default in configured]


def _get_json(port: int, path: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PROBE_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = json.loads(response.read()) if response.status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None  # no server, or not a model server
    return body if isinstance(body, dict) else None


def _start_server(executable: str, file: Path, name: str) -> _Server:
    get_logger("framework", "models").info("Starting llama-server with %s", file)
    port = _find_free_port()
    # llama.cpp threads busy-wait, so more threads than idle cores slow it down many times.
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    alias = CACHED_MODEL_NAME if file.name == "model.gguf" else file.stem
    command = [executable, "-m", str(file), "--alias", alias, *_CONTEXT_OPTIONS, "--jinja"]
    command += ["-t", threads, "-tb", threads, "--poll", "0"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603  # the program of the cache or the path
            [sys.executable, "-c", _SUPERVISOR, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl+C in the terminal must not stop the server first
        )
        atexit.register(_stop_server, process)
        end = time.monotonic() + _START_SECONDS
        while _get_json(port, "/health") is None:
            if process.poll() is not None or time.monotonic() > end:
                _stop_server(process)
                log.seek(0)
                log_tail = log.read().decode(errors="replace").strip()[-500:]
                raise ConfigurationError(
                    f"The local model {name!r} cannot be started: llama-server exited or was not"
                    f" ready within {_START_SECONDS:g} s: {log_tail}",
                    fix=f"Run '{executable} -m {file}' and read its output.",
                )
            time.sleep(0.1)
    return _Server(process, Endpoint(f"http://127.0.0.1:{port}/v1", alias))


def _stop_server(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and its supervisor."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

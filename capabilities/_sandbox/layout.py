"""Files of the host that sandboxed code can read, and the command that starts the sandbox."""

from __future__ import annotations

import os
import random
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .limits import IsolationLevel, SandboxLimits

WORK_FOLDER = "/sandbox"
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_DATA = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/nix/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_BOOTSTRAP = "import sys; sys.path.insert(0, {root!r}); from inside.main import main; main({fd})"
# Needed inside bubblewrap until the process has confined itself.
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(frozen=True)
class HostLayout:
    """Paths of the host that are visible in the sandbox, all of them read-only."""

    executable: str
    readable: tuple[str, ...]
    symlinks: tuple[tuple[str, str], ...]
    devices: tuple[str, ...]
    packages: tuple[str, ...]


def find_layout(extra_readable: Sequence[str] = ()) -> HostLayout:
    """Find the interpreter, its libraries, and the installed packages of this host."""
    executable = os.path.realpath(sys.executable)
    inside = str(Path(__file__).resolve().parent / "inside")
    standard = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")]
    packages = [
        path
        for path in sys.path
        if os.path.basename(path) in ("site-packages", "dist-packages") and os.path.isdir(path)
    ]
    own_libraries = [os.path.join(sys.base_prefix, "lib")]
    paths = [executable, inside, *standard, *own_libraries, *packages, *_DATA, *extra_readable]
    symlinks = [(path, os.readlink(path)) for path in _LIBRARIES if os.path.islink(path)]
    paths += [os.path.realpath(path) for path in _LIBRARIES]
    readable: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths if path and os.path.exists(path)}):
        # A folder includes everything below it.
        if not any(path == parent or path.startswith(parent + "/") for parent in readable):
            readable.append(path)
    return HostLayout(
        executable=executable,
        readable=tuple(readable),
        symlinks=tuple(symlinks),
        devices=tuple(path for path in _DEVICES if os.path.exists(path)),
        packages=tuple(dict.fromkeys(os.path.realpath(path) for path in packages)),
    )


def build_command(
    level: IsolationLevel, layout: HostLayout, limits: SandboxLimits, descriptor: int
) -> list[str]:
    """Return the command line that starts the sandbox process at an isolation level."""
    root = str(Path(__file__).resolve().parent)
    start = _BOOTSTRAP.format(root=root, fd=descriptor)
    python = [layout.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start]
    if level != "bubblewrap":
        return python
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError(
            "the program bwrap is not installed: it is in the package bubblewrap"
        )
    options = ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    for namespace in ("ipc", "pid", "net", "uts", "cgroup-try"):
        options += [f"--unshare-{namespace}"]
    if os.geteuid() != 0:
        options += ["--unshare-user"]
    options += ["--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        options += ["--cap-add", capability]
    visible = (*layout.readable, *layout.devices)
    for folder in sorted({str(above) for path in visible for above in Path(path).parents}):
        # By default only the user who starts bubblewrap could read the folder.
        options += ["--perms", "0755", "--dir", folder]
    for link, target in layout.symlinks:
        options += ["--symlink", target, link]
    for path in layout.readable:
        options += ["--ro-bind", path, path]
    for path in layout.devices:
        options += ["--dev-bind", path, path]
    options += ["--size", str(limits.folder_bytes), "--tmpfs", WORK_FOLDER, "--remount-ro", "/"]
    return [program, *options, "--", *python]


def build_environment(work: str) -> dict[str, str]:
    """Return the environment variables of sandboxed code, which include none of the agent's."""
    pools = ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "NUMEXPR_NUM", "POLARS_MAX")
    return {
        "HOME": work,
        "TMPDIR": work,
        "PATH": "",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": f"{work}/.matplotlib",
        "JOBLIB_MULTIPROCESSING": "0",
        # Each pool thread reserves memory, which counts against the limits.
        **{f"{pool}_THREADS": "1" for pool in pools},
    }


def build_request(
    level: IsolationLevel,
    layout: HostLayout,
    limits: SandboxLimits,
    *,
    scaffold: str,
    required_layers: Sequence[str],
    code: str,
    inputs: Any,
) -> dict[str, Any]:
    """Return the request that configures the sandbox process: its isolation, limits, and code."""
    contained = level in ("bubblewrap", "namespaces")
    work = WORK_FOLDER if contained else scaffold
    return {
        "level": level,
        "contained": contained,
        "parent": os.getpid(),
        "uid": unprivileged_uid() if os.geteuid() == 0 else None,
        "scaffold": scaffold,
        "work": work,
        "readable": layout.readable,
        "symlinks": layout.symlinks,
        "devices": layout.devices,
        "packages": layout.packages,
        "environment": build_environment(work),
        "limits": {
            **limits.model_dump(exclude={"wall_seconds", "input_bytes", "output_bytes"}),
            # Output and messages are files too.
            "file_bytes": max(
                limits.folder_bytes, limits.max_outcome_bytes, 2 * limits.max_output_file_bytes
            ),
        },
        "demanded": list(required_layers),
        "code": code,
        "inputs": inputs,
    }


def unprivileged_uid() -> int | None:
    """Return a random unused user ID, so that runs do not share limits or signals."""
    top = 0
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = (int(part) for part in line.split())
        top = max(top, min(first + count, 2**31))
    if top < 65536:
        return None  # the container maps too few user IDs
    return random.SystemRandom().randrange(top - 8192, top - 4096)

"""Attacks on the code capability's sandbox: every one is contained and the agent lives on.

Each attack runs at every isolation level that works on this host. The test process adopts
orphans while an attack runs, so a process that was left behind shows up as its child.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from capgraph.capabilities._sandbox.isolation import SandboxSettings, sandbox_for
from capgraph.capabilities._sandbox.limits import MIB, SandboxLimits, SandboxOutcome

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
    pytest.mark.timeout(600),
]

PROJECT = Path(__file__).resolve().parents[2]
LIMITS = SandboxLimits(
    wall_seconds=100, cpu_seconds=30, memory_bytes=512 * MIB, folder_bytes=4 * MIB, threads=16
)
WALLED = ("bubblewrap", "namespaces", "landlock")

# Given to every attack: `attempt` says what came of one try.
PRELUDE = """
import os, sys
def attempt(action, *arguments, **options):
    try:
        action(*arguments, **options)
    except BaseException as error:
        return type(error).__name__
    return "DONE"
def read(path):
    with open(path, "rb") as handle:
        raise SystemError(handle.read(100))  # reading anything is a failure of its own kind
def touch(path):
    with open(path, "wb") as handle:
        handle.write(b"x")
"""


def own_children() -> set[int]:
    """Live children; a dead one that this process adopted only waits to be reaped."""
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            fields = stat.rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] not in "ZX":
                found.add(int(entry))
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Adopt orphans, and fail when a process or a folder of the sandbox outlives the test."""
    libc = ctypes.CDLL(None)
    before = own_children()
    libc.prctl(36, 1, 0, 0, 0)
    yield
    left = still_there(before)
    libc.prctl(36, 0, 0, 0, 0)
    assert not left, f"processes left behind: {left}"


def still_there(before: set[int]) -> set[int]:
    """Which children are still alive after the moment the kernel needs to end them."""
    deadline = time.monotonic() + 60
    while (left := own_children() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


async def run_at(
    level: str, code: str, inputs: object = None, limits: SandboxLimits = LIMITS
) -> SandboxOutcome:
    sandbox = sandbox_for(SandboxSettings(isolation=level, allow_weak_isolation=True))
    report = await sandbox.report()
    if report.level is None:
        pytest.skip(f"{level} does not work on this host: {report.rejected_levels[level]}")
    return await sandbox.run(PRELUDE + textwrap.dedent(code), inputs, limits)


async def alive(level: str) -> None:
    """The next run at this level works: the attack broke nothing that stays."""
    outcome = await run_at(level, "result = sum(inputs)", [1, 2, 3])
    assert outcome.result == 6, outcome


async def test_this_host_offers_strong_isolation_or_says_what_is_missing():
    report = await sandbox_for(SandboxSettings()).report()
    if not report.is_strong:
        assert report.missing_protections or report.rejected_levels
        pytest.skip(f"no strong isolation here: {report.summary()}")
    assert report.level in WALLED
    assert not report.missing_protections


@pytest.mark.parametrize("level", WALLED)
async def test_secrets_of_the_environment_stay_outside(level, monkeypatch):
    monkeypatch.setenv("CAPGRAPH_TEST_SECRET", "tr0ub4dor")
    outcome = await run_at(
        level,
        """
        result = {"environment": dict(os.environ)}
        for who in ("self", "1", str(os.getppid()), str(inputs["agent"])):
            result[who] = attempt(read, f"/proc/{who}/environ")
        import ctypes
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        result["c"] = str(libc.getenv(b"CAPGRAPH_TEST_SECRET"))
        """,
        {"agent": os.getpid()},
    )
    assert outcome.succeeded, outcome
    assert "tr0ub4dor" not in outcome.model_dump_json()
    assert outcome.result["c"] == "None"
    assert set(outcome.result["environment"]) <= {
        *("HOME", "TMPDIR", "PATH", "LANG", "TZ", "MPLBACKEND", "MPLCONFIGDIR"),
        *("JOBLIB_MULTIPROCESSING", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        *("MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "POLARS_MAX_THREADS"),
    }
    for who in ("1", str(os.getpid())):
        assert outcome.result[who] in ("FileNotFoundError", "PermissionError")


@pytest.mark.parametrize("level", WALLED)
async def test_files_of_the_host_cannot_be_read(level, tmp_path):
    (tmp_path / "open-to-all").write_text("secret")
    home = Path.home()
    paths = [
        "/etc/shadow",
        "/etc/passwd",
        "/etc/hostname",
        "/proc/1/environ",
        "/proc/self/mem",
        "/proc/cpuinfo",
        "/sys/kernel/vmcoreinfo",
        str(tmp_path / "open-to-all"),
        str(PROJECT / "pyproject.toml"),
        str(PROJECT / "capabilities/_sandbox/process.py"),
        __file__,
    ]
    folders = [
        "/etc/ssh",
        "/home",
        "/var",
        "/proc",
        "/run",
        str(home / ".ssh"),
        str(PROJECT / "tests"),
    ]
    outcome = await run_at(
        level,
        """
        result = {path: attempt(read, path) for path in inputs["paths"]}
        result |= {path: attempt(os.listdir, path) for path in inputs["folders"]}
        result["home"] = os.path.expanduser("~")
        """,
        {"paths": paths, "folders": folders},
    )
    assert outcome.succeeded, outcome
    assert outcome.result.pop("home") != str(home)
    assert set(outcome.result.values()) <= {"FileNotFoundError", "PermissionError"}, outcome.result


@pytest.mark.parametrize("level", WALLED)
async def test_nothing_can_be_written_outside_the_own_folder(level, tmp_path):
    tmp_path.chmod(0o777)
    site = os.path.dirname(os.path.dirname(pytest.__file__))
    targets = [
        str(tmp_path / "new"),
        "/new",
        "/tmp/capgraph-escape",
        "/dev/shm/capgraph-escape",
        "/dev/new",
        "/usr/lib/capgraph-escape",
        f"{site}/capgraph_escape.py",
        f"{os.path.dirname(os.__file__)}/capgraph_escape.py",
        str(PROJECT / "capabilities/_sandbox/inside/capgraph_escape.py"),
        "../capgraph-escape",
    ]
    outcome = await run_at(
        level,
        """
        result = {path: attempt(touch, path) for path in inputs}
        result["own"] = attempt(touch, "own")
        result["chmod"] = attempt(os.chmod, os.__file__, 0o644)
        result["touch"] = attempt(os.utime, os.__file__)
        result["empty"] = attempt(os.truncate, os.__file__, 10**6)
        result["unlink"] = attempt(os.unlink, os.__file__)
        os.symlink("/usr/lib", "link")
        result["through link"] = attempt(touch, "link/capgraph-escape")
        """,
        targets,
    )
    assert outcome.succeeded, outcome
    assert outcome.result.pop("own") == "DONE"
    assert "DONE" not in outcome.result.values(), outcome.result
    assert os.listdir(tmp_path) == []
    assert os.path.exists(os.__file__)


@pytest.mark.parametrize("level", WALLED)
async def test_no_network_not_even_to_this_machine(level, tmp_path):
    calls = []

    def answer(_reader, writer):
        calls.append(1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    local = await asyncio.start_unix_server(answer, tmp_path / "socket")
    try:
        outcome = await run_at(
            level,
            """
            import asyncio, socket
            def tcp(): socket.create_connection(("127.0.0.1", inputs["port"]), timeout=1)
            def udp(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53))
            def raw(): socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            def netlink(): socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
            def unix(): socket.socket(socket.AF_UNIX).connect(inputs["path"])
            def abstract(): socket.socket(socket.AF_UNIX).connect("\\0/tmp/.X11-unix/X0")
            def datagram(): socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            def listen(): socket.create_server(("127.0.0.1", 0))
            def lookup(): socket.getaddrinfo("example.com", 80)
            tries = (tcp, udp, raw, netlink, unix, abstract, datagram, listen, lookup)
            result = {action.__name__: attempt(action) for action in tries}
            async def works(): return await asyncio.sleep(0, "own loop")
            result["asyncio"] = asyncio.run(works())
            """,
            {"port": server.sockets[0].getsockname()[1], "path": str(tmp_path / "socket")},
        )
    finally:
        server.close()
        local.close()
        await server.wait_closed()
    assert outcome.succeeded, outcome
    assert outcome.result.pop("asyncio") == "own loop"
    assert "DONE" not in outcome.result.values(), outcome.result
    assert calls == []


@pytest.mark.parametrize("level", WALLED)
async def test_fork_bomb(level):
    outcome = await run_at(
        level,
        """
        import multiprocessing, subprocess, ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def vfork():
            if libc.syscall(58) == -1: raise OSError(ctypes.get_errno(), "vfork")
            os._exit(0)
        result = {
            "fork": attempt(os.fork),
            "vfork": attempt(vfork),
            "subprocess": attempt(subprocess.run, [sys.executable, "-c", "1"]),
            "spawn": attempt(os.posix_spawn, sys.executable, [sys.executable], {}),
            "exec": attempt(os.execv, sys.executable, [sys.executable, "-c", "1"]),
            "system": os.system("true") != 0,
            "multiprocessing": attempt(multiprocessing.Process(target=print).start),
        }
        while True:
            os.fork()
        """,
    )
    assert outcome.error is not None, outcome
    assert outcome.error.type == "PermissionError"
    await alive(level)


@pytest.mark.parametrize("level", WALLED)
async def test_thread_bomb(level):
    sandbox = sandbox_for(SandboxSettings(isolation=level, allow_weak_isolation=True))
    report = await sandbox.report()
    if report.level and not report.protections["threads"]:
        pytest.skip(f"{level} cannot limit threads for this user, and says so")
    outcome = await run_at(
        level,
        """
        import threading, time
        threading.stack_size(1 << 16)
        started = 0
        try:
            while started < 5000:
                threading.Thread(target=time.sleep, args=(60,)).start()
                started += 1
        except RuntimeError:
            pass
        result = started
        """,
    )
    assert outcome.result is not None, outcome
    assert outcome.result <= LIMITS.threads


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize(
    "code",
    [
        "hoard = [bytearray(1 << 20) for _ in range(100_000)]",
        "hoard = bytearray(1 << 40)",
        "import mmap\nhoard = [mmap.mmap(-1, 1 << 26) for _ in range(1000)]",
        "text = 'x'\nwhile True: text += text",
    ],
)
async def test_memory_bomb(level, code):
    outcome = await run_at(level, code)
    assert outcome.limit == "memory" or (outcome.error and outcome.error.type == "OSError"), outcome
    await alive(level)


@pytest.mark.parametrize("level", WALLED)
async def test_memory_outside_the_limit_cannot_be_had(level):
    outcome = await run_at(
        level,
        """
        import ctypes
        from multiprocessing import shared_memory
        libc = ctypes.CDLL(None, use_errno=True)
        result = {
            "memfd": attempt(os.memfd_create, "hoard"),
            "shared": attempt(shared_memory.SharedMemory, create=True, size=1 << 20),
            "shmget": libc.shmget(0, 1 << 20, 0o1600),
        }
        import resource
        for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NPROC", "RLIMIT_FSIZE"):
            limit = getattr(resource, name)
            result[name] = attempt(resource.setrlimit, limit, (1 << 50, 1 << 50))
        """,
    )
    assert outcome.succeeded, outcome
    assert outcome.result.pop("shmget") == -1
    assert "DONE" not in outcome.result.values(), outcome.result


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize(
    "code",
    [
        "with open('big', 'wb') as handle:\n    while True: handle.write(bytes(1 << 16))",
        "for n in range(1000):\n    with open(f'f{n}', 'wb') as handle: handle.write(bytes(1 << 16))\n"
        "import time; time.sleep(90)",
        "for n in range(200_000): open(f'f{n}', 'w').close()\nimport time; time.sleep(90)",
        "with open('sparse', 'wb') as handle: os.ftruncate(handle.fileno(), 1 << 40)",
    ],
    ids=["one file", "many files", "empty files", "sparse file"],
)
async def test_own_folder_cannot_be_flooded(level, code):
    assert (await run_at(level, code)).limit == "folder size"


@pytest.mark.parametrize("level", WALLED)
async def test_endless_output(level):
    outcome = await run_at(level, "while True: print('x' * 1000)")
    assert outcome.limit == "output", outcome
    assert len(outcome.stdout) < LIMITS.output_bytes + 100
    assert "[truncated: 65536 of " in outcome.stdout
    outcome = await run_at(level, "print('y' * 200_000)\nresult = 1")
    assert outcome.result == 1
    assert outcome.stdout.endswith("[truncated: 65536 of 200001 bytes shown]")


@pytest.mark.parametrize("level", [*WALLED, "limits"])
async def test_endless_loops_and_sleeps(level):
    ignore = """
        import signal
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True: pass
        """
    brief = LIMITS.model_copy(update={"cpu_seconds": 1, "wall_seconds": 100})
    wall = LIMITS.model_copy(update={"wall_seconds": 0.5})
    spin, stubborn, sleep = await asyncio.gather(
        run_at(level, "while True: pass", limits=brief),
        run_at(level, ignore, limits=wall),
        run_at(level, "import time\ntime.sleep(100)", limits=wall),
    )
    assert spin.limit == "processor time", spin
    assert stubborn.limit == "wall time", stubborn
    assert sleep.limit == "wall time", sleep
    assert sleep.seconds < 90


@pytest.mark.parametrize("level", WALLED)
async def test_figures_that_point_elsewhere_are_refused(level, tmp_path):
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    outcome = await run_at(
        level,
        """
        os.symlink("/etc/passwd", "figures/passwd.png")
        os.symlink(inputs, "figures/secret.png")
        os.symlink("/dev/zero", "figures/zero.png")
        os.mkfifo("figures/pipe.png")
        os.mkdir("figures/folder.png")
        with open("figures/text.png", "w") as handle: handle.write("not a picture")
        with open("figures/..%2f..%2fup.png", "w") as handle: handle.write("")
        result = {"hard": attempt(os.link, "/etc/ld.so.cache", "figures/hard.png")}
        """,
        str(tmp_path / "secret.png"),
    )
    assert outcome.succeeded, outcome
    assert outcome.figures == []
    assert set(outcome.rejected_figures) >= {
        "passwd.png",
        "secret.png",
        "zero.png",
        "pipe.png",
        "text.png",
    }
    assert all("/" not in name for name in outcome.rejected_figures)
    outcome = await run_at(level, "os.rmdir('figures')\nos.symlink('/etc', 'figures')\nresult = 1")
    assert outcome.figures == []


@pytest.mark.parametrize("level", WALLED)
async def test_other_processes_are_out_of_reach(level):
    bystander = await asyncio.create_subprocess_exec("sleep", "30")
    try:
        outcome = await run_at(
            level,
            """
            import ctypes, signal
            libc = ctypes.CDLL(None, use_errno=True)
            def check(value):
                if value == -1: raise OSError(ctypes.get_errno(), "refused")
            agent, bystander = inputs
            buffer = ctypes.create_string_buffer(16)
            vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 16)
            result = {}
            for name, pid in (("agent", agent), ("bystander", bystander), ("parent", os.getppid())):
                if name == "parent" and pid == 0: continue
                result |= {
                    f"{name} ptrace": attempt(lambda: check(libc.ptrace(16, pid, 0, 0))),
                    f"{name} seize": attempt(lambda: check(libc.ptrace(0x4206, pid, 0, 0))),
                    f"{name} memory": attempt(
                        lambda: check(libc.process_vm_readv(pid, vector, 1, vector, 1, 0))),
                    f"{name} proc": attempt(os.listdir, f"/proc/{pid}/fd"),
                    f"{name} pidfd": attempt(os.pidfd_open, pid),
                    f"{name} priority": attempt(os.setpriority, os.PRIO_PROCESS, pid, 19),
                    f"{name} cpus": attempt(os.sched_setaffinity, pid, {0}),
                    f"{name} limits": attempt(
                        lambda: __import__("resource").prlimit(pid, 7, (1, 1))),
                }
                if name != "parent":
                    result[f"{name} kill"] = attempt(os.kill, pid, signal.SIGKILL)
            """,
            [os.getpid(), bystander.pid],
        )
        assert outcome.succeeded, outcome
        assert "DONE" not in outcome.result.values(), outcome.result
        for shot in ("os.kill(os.getppid() or 1, 9)", "os.kill(-1, 9)", "os.killpg(0, 9)"):
            await run_at(level, f"attempt(lambda: {shot})\nresult = 1")
        assert bystander.returncode is None
        await alive(level)
    finally:
        bystander.kill()
        await bystander.wait()


@pytest.mark.parametrize("level", WALLED)
async def test_rights_cannot_be_regained(level):
    outcome = await run_at(
        level,
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def check(value):
            if value == -1: raise OSError(ctypes.get_errno(), "refused")
        def call(name, *arguments): return attempt(lambda: check(getattr(libc, name)(*arguments)))
        def raw(number, *arguments): return attempt(lambda: check(libc.syscall(number, *arguments)))
        result = {
            "no_new_privs off": call("prctl", 38, 0, 0, 0, 0),
            "filter off": call("prctl", 22, 0, 0, 0, 0),
            "keep capabilities": attempt(os.setresuid, 12345, 12345, 12345),
            "groups": attempt(os.setgroups, [0]),
            "ambient": call("prctl", 47, 2, 21, 0, 0),
            "unshare user": call("unshare", 0x10000000),
            "unshare mounts": call("unshare", 0x20000),
            "mount": call("mount", b"none", b".", b"tmpfs", 0, b""),
            "unmount": call("umount2", b"/sandbox", 2),
            "chroot": attempt(os.chroot, "."),
            "device": attempt(os.mknod, "disk", 0o60600, os.makedev(254, 0)),
            "reboot": call("reboot", 0),
            "hostname": call("sethostname", b"x", 1),
            "modify clock": call("settimeofday", ctypes.create_string_buffer(16), None),
            "bpf": raw(321, 0, 0, 0) if os.uname().machine == "x86_64" else "OSError",
            "io_uring": raw(425, 1, ctypes.create_string_buffer(200)),
            "new mount api": raw(430, b"tmpfs", 0),
            "file handle": raw(304, -100, 0, 0) if os.uname().machine == "x86_64" else "OSError",
        }
        """,
    )
    assert outcome.succeeded, outcome
    assert "DONE" not in outcome.result.values(), outcome.result


async def test_what_runs_on_in_the_background_is_ended():
    """At the weakest level processes can be started; none may outlive the run all the same."""
    code = """
        import time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(0)
        {}
        """
    outcome = await run_at("limits", code.format("result = 1"))
    assert outcome.result == 1, outcome
    brief = LIMITS.model_copy(update={"wall_seconds": 0.5})
    outcome = await run_at("limits", code.format("time.sleep(60)"), limits=brief)
    assert outcome.limit == "wall time", outcome


@pytest.mark.parametrize("level", WALLED)
async def test_threads_that_run_on_do_not_hold_the_run_up(level):
    outcome = await run_at(
        level,
        """
        import atexit, threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        atexit.register(time.sleep, 60)
        result = "done"
        """,
    )
    assert outcome.result == "done"
    assert outcome.seconds < 50


BAD_RESULTS = {
    "huge": ("result = 'x' * 3_000_000", "more than the limit of 1048576"),
    "deep": ("result = []\nfor _ in range(100): result = [result]", "nested too deeply"),
    "endless": ("result = []\nresult.append(result)", "nested too deeply"),
    "nan": ("result = {'rows': [1.0, float('nan')]}", "result['rows'][1] is nan"),
    "object": ("result = {'a': object()}", "result['a'] is a object"),
    "bytes": ("result = b'x'", "result is a bytes"),
    "key": ("result = {1: 2}", "key 1 of type int"),
    "integer": ("result = 10 ** 30", "more than 64 bits"),
    "long integer": ("result = 10 ** 5000", "4300"),
    "text": ("result = '\\ud800'", "not valid Unicode"),
    "hostile": (
        "class Evil(dict):\n    def items(self): raise ZeroDivisionError('gotcha')\nresult = Evil(a=1)",
        "gotcha",
    ),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
async def test_results_that_cannot_be_kept(name):
    code, expected = BAD_RESULTS[name]
    outcome = await run_at("auto", code)
    assert outcome.error is not None, outcome
    assert expected in outcome.error.message
    assert outcome.result is None


# The code shares a process with the reporting half of the sandbox and may lie in its name.
FORGERIES = {
    "garbage": "os.write(fd, os.urandom(1000) + b'\\n'); os._exit(0)",
    "half": 'os.write(fd, b\'{"event": "done", \'); os._exit(0)',
    "nothing": "os._exit(0)",
    "not a message": "os.write(fd, b'[1]\\n'); os._exit(0)",
    "deep": "os.write(fd, b'[' * 100000 + b'\\n'); os._exit(0)",
    "deep result": (
        "os.write(fd, b'{\"event\": \"done\", \"result\": ' + b'[' * 500 + b']' * 500 + b'}\\n'); os._exit(0)"
    ),
    "nan": 'os.write(fd, b\'{"event": "done", "result": NaN}\\n\'); os._exit(0)',
    "infinite": 'os.write(fd, b\'{"event": "done", "result": 1e999}\\n\'); os._exit(0)',
    "types": (
        'os.write(fd, b\'{"event": "failed", "type": [], "line": {}, "limit": 7, '
        '"traceback": null}\\n\'); os._exit(0)'
    ),
    "unhashable event": "os.write(fd, b'{\"event\": []}\\n'); os._exit(0)",
    "layers": 'os.write(fd, b\'{"event": "ready", "layers": 5}\\n\'); os._exit(0)',
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_forged_reports_are_seen_through(name):
    code = f"""
        for fd in range(3, 64):
            try:
                os.fstat(fd)
            except OSError:
                continue
            try:
                {FORGERIES[name]}
            except OSError:
                continue
        """
    outcome = await run_at("auto", code)
    assert outcome.error is not None or outcome.sandbox_error is not None, outcome
    assert outcome.result is None
    json.dumps(outcome.model_dump(mode="json"), allow_nan=False)


async def test_an_endless_report_is_cut_off():
    code = """
        for fd in range(3, 64):
            try:
                while True: os.write(fd, b"x" * 65536)
            except OSError:
                continue
        """
    limits = LIMITS.model_copy(update={"figure_bytes": MIB, "result_bytes": MIB})
    assert (await run_at("auto", code, limits=limits)).limit == "result size"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("os._exit(3)", "status 3"),
        ("sys.exit('enough')", "enough"),
        ("raise KeyboardInterrupt", ""),
        ("def f(): f()\nf()", "recursion"),
        ("class E(Exception):\n    def __str__(self): raise E\nraise E", ""),
        ("import builtins, json\njson.dumps = None\nbuiltins.len = None\n1/0", ""),
    ],
)
async def test_violent_ends_are_errors_of_the_code(code, expected):
    outcome = await run_at("auto", code)
    assert outcome.error is not None, outcome
    assert expected in outcome.error.message


@pytest.mark.parametrize("level", [*WALLED, "limits"])
async def test_cancelling_ends_the_whole_tree(level):
    await alive(level)
    before = own_children()
    task = asyncio.create_task(run_at(level, "import time\ntime.sleep(60)"))
    while not own_children() - before:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not still_there(before)


@pytest.mark.parametrize("level", [*WALLED, "limits"])
async def test_the_sandbox_ends_with_a_killed_agent(level):
    await alive(level)
    agent_code = f"""
import asyncio, sys
sys.path.insert(0, {str(PROJECT)!r})
from capgraph.capabilities._sandbox.layout import find_layout
from capgraph.capabilities._sandbox.limits import SandboxLimits
from capgraph.capabilities._sandbox.process import run_once
async def main():
    code = "import time\\\\nprint(flush=True)\\\\ntime.sleep(60)"
    task = asyncio.create_task(run_once({level!r}, find_layout(), SandboxLimits(), code, None))
    await asyncio.sleep(0.3)
    print("running", flush=True)
    await task
asyncio.run(main())
"""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", agent_code, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    assert await asyncio.wait_for(agent.stdout.readline(), 200) == b"running\n"
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    # The fixture sees to it that nothing of the tree is adopted and alive after this.


async def test_weak_isolation_is_refused_unless_allowed():
    strict = sandbox_for(SandboxSettings(isolation="limits"))
    outcome = await strict.run("result = 1")
    assert outcome.result is None
    assert outcome.sandbox_error is not None
    assert "no network" in outcome.sandbox_error
    allowed = sandbox_for(SandboxSettings(isolation="limits", allow_weak_isolation=True))
    assert (await allowed.run("result = 1")).result == 1
    assert "network" in (await allowed.report()).missing_protections

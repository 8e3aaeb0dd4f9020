"""`python` and `stateroom` without the time that imports take: forked from a process that has imported everything.

A command is a client, which hands its arguments, folder, variables and streams to that process, passes signals on to
the one that is forked for it, and ends as that one ends. When a client is gone, what was forked for it is killed.
"""

import atexit
import gc
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

NOT_IMPORTED = ("stateroom.adapters", "stateroom.rollout.engines.ray")

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys

name, arguments = {name!r}, sys.argv[1:]
special = [each for each in os.environ if each.startswith("PYTHON") and each != "PYTHONUNBUFFERED"]
if special or name == "python" and (not arguments or arguments[0].startswith("-") and arguments[0] != "-c"):
    command = os.path.join({bin!r}, name)
    os.execv(command, [command, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]).tobytes())])
server.sendall(json.dumps([name, arguments, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
answers = server.makefile()
process = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(process, number))
code = int(answers.readline())
if code < 0:
    if -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def warm_commands(variables: dict[str, str]) -> Iterator[Path]:
    """A folder with the two commands, for the PATH; they work until the end of the context."""
    with TemporaryDirectory(prefix="stateroom-") as folder:  # whose name is short enough for a socket
        address = str(Path(folder) / "socket")
        for name in ("python", "stateroom"):
            client = Path(folder) / name
            told = {"python": sys.executable, "bin": str(Path(sys.executable).parent), "address": address}
            client.write_text(CLIENT.format(name=name, **told), encoding="utf-8")
            client.chmod(0o755)
        command = [sys.executable, "-u", __file__, address]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe) as process:  # its input ends it
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Path(folder)


class Forks:
    """What was forked for clients that still wait."""

    def __init__(self, address: str) -> None:
        self._clients: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._woken, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)

    def next_job(self) -> Any:
        """The command that this process is forked for; in the first one, it ends with its standard input."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for process in self._clients:
                        self._kill(process)
                    sys.exit()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    job = self._fork()
                    if job:
                        return job
                else:  # a client is gone
                    self._selector.unregister(key.fileobj)
                    self._kill(key.data)

    def _fork(self) -> Any:
        client, _ = self._listener.accept()
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile() as lines:
            line = lines.readline()
        if not line:  # it was killed meanwhile
            client.close()
            return None
        job = json.loads(line)
        process = os.fork()
        if not process:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for each in (*self._clients.values(), client, self._listener, self._woken, self._waker):
                each.close()
            self._selector.close()
            for stream in streams:
                os.close(stream)
            return job
        with suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        for stream in streams:
            os.close(stream)
        with suppress(BrokenPipeError):
            client.sendall(f"{process}\n".encode())
        self._clients[process] = client
        self._selector.register(client, selectors.EVENT_READ, process)
        return None

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(ended[0])
                with suppress(KeyError):
                    self._selector.unregister(client)
                with client, suppress(OSError):
                    client.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())

    @staticmethod
    def _kill(process: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)


def run(name: str, arguments: list[str], folder: str, variables: dict[str, str]) -> None:
    """Do what a new interpreter would do."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    sys.argv = [name, *arguments] if name == "stateroom" else arguments
    if name == "stateroom":
        sys.path[0] = str(Path(sys.executable).parent)
        import_module("stateroom.cli").main()
    elif arguments[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), vars(module))
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(str(Path(arguments[0]).resolve()), run_name="__main__")


def finish(job: Any) -> NoReturn:
    """Run a command to its end. The interpreter is not taken down, which would take as long as its imports did."""
    code: Any = 0
    try:
        run(*job)
    except SystemExit as error:
        code = error.code
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        at = error.__traceback__
        while at is not None and at.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            at = at.tb_next
        traceback.print_exception(error.with_traceback(at))
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)  # noqa: T201
        code = 1
    os._exit(code or 0)


def import_everything() -> None:
    """Import all modules of Stateroom but those whose frameworks take longer than all the rest.

    Ray also reads its variables when it is imported, and those that a page sets come later.
    """
    package = import_module("stateroom")
    for module in pkgutil.walk_packages(package.__path__, "stateroom.", onerror=lambda _: None):
        if not module.name.startswith(NOT_IMPORTED) and not module.name.endswith("__main__"):
            with suppress(ImportError):
                import_module(module.name)


if __name__ == "__main__":
    sys.path[0] = ""  # not the folder of this file
    forks = Forks(sys.argv[1])
    import_everything()
    gc.freeze()
    print("ready")  # noqa: T201
    finish(forks.next_job())

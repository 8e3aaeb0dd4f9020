"""Real servers for the tests, on ports of their own: in the test's event loop, or as processes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from stateroom import Environment
from stateroom.gallery import CounterEnvironment
from stateroom.server import Application, ApplicationOptions, Services, bind
from stateroom.server.process import configured
from tests.patience import PATIENCE

SECRET = "a secret that is only good for tests"


class Impatient:
    """What uvicorn takes for asyncio: it looks ten times a second whether it is to stop, here a hundred times."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = Impatient()  # type: ignore[assignment,attr-defined]


@dataclass
class Client:
    """A client that keeps cookies."""

    url: str
    client: aiohttp.ClientSession

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """The status and the decoded body of a reply."""
        async with self.client.post(f"{self.url}{path}", json={} if body is None else body, **options) as reply:
            return reply.status, await reply.json()

    @property
    def token(self) -> str:
        """The token of its session, from its only cookie."""
        [cookie] = self.client.cookie_jar
        return str(cookie.value)

    async def good(self, path: str, body: Any = None, **options: Any) -> Any:
        """The body of the reply to a post that succeeds."""
        status, reply = await self.post(path, body, **options)
        assert status == 200, reply
        return reply

    async def refused(self, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
        """The status and the code of the error that a post is answered with."""
        status, reply = await self.post(path, body, **options)
        return status, reply["error"]["code"]

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.client.get(f"{self.url}{path}", **options) as reply:
            return reply.status, await reply.json()


@dataclass
class Served(Client):
    """The same, and the server, which runs in the same event loop."""

    app: Application

    @property
    def services(self) -> Services:
        return self.app.services

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


Serve = Callable[..., Awaitable[Served]]
Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server of some environments, by default the counter, with the options that are given by name."""
    async with AsyncExitStack() as stack:

        async def start(*environments: Environment[Any, Any], now: Any = None, **options: Any) -> Served:
            made = ApplicationOptions(secrets=options.pop("secrets", (SECRET,)), **options)
            clock = {} if now is None else {"now": now}
            app = Application(environments or (CounterEnvironment(),), made, **clock)
            return await stack.enter_async_context(running(app))

        yield start


@pytest.fixture
async def served(serve: Serve) -> Served:
    """A server of the counter."""
    return await serve()


@pytest.fixture
async def stored(serve: Serve, store_url: str) -> Served:
    """A server of the counter whose store is in memory, and one whose store is in a file."""
    return await serve(store=store_url)


@asynccontextmanager
async def listening(app: Any, timeout: float) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """The server of an ASGI application, and its URL."""
    place = bind("127.0.0.1", 0)
    server = uvicorn.Server(configured(lambda: app, timeout))
    task = asyncio.create_task(server.serve([place]))
    while not server.started:
        await asyncio.sleep(0)
        if task.done():
            await task
    host, port = place.getsockname()
    try:
        yield server, f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task
        place.close()


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[Served]:
    """Serve an application on a port of its own."""
    async with listening(app, app.limits.timeout) as (_, url), _http() as client:
        yield Served(url, client, app)


def _http() -> aiohttp.ClientSession:
    jar = aiohttp.CookieJar(unsafe=True)  # it keeps cookies of hosts without a name
    return aiohttp.ClientSession(cookie_jar=jar)


@pytest.fixture
def shared_url(tmp_path: Path) -> str:
    """A store in a file, `rooms.db`, which several servers can have open."""
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, shared_url: str) -> str:
    """A store that only its server can see, and one in a file."""
    return "memory://" if request.param == "memory" else shared_url


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes a client of a server in another process, by its URL; with another client's cookies, if that is given."""
    async with AsyncExitStack() as stack:

        async def make(url: str, like: Client | None = None) -> Client:
            client = await stack.enter_async_context(_http())
            if like is not None:
                client.cookie_jar.update_cookies({cookie.key: cookie.value for cookie in like.client.cookie_jar})
            return Client(url, client)

        yield make


Wire = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    """Opens a connection to a port of this machine, to write and read bytes."""
    async with AsyncExitStack() as stack:

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            return reader, writer

        yield connect


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition that nothing tells of, such as one in another process; it may be a coroutine's result."""
    async with asyncio.timeout(PATIENCE):
        while True:
            met = condition()
            if await met if isawaitable(met) else met:
                return
            await asyncio.sleep(0.01)


CONSOLE_SCRIPT = (str(Path(sys.executable).with_name("stateroom")),)


class Command:
    """`stateroom serve` as a process, in a folder of its own."""

    def __init__(self, folder: Path, command: list[str], variables: dict[str, str | None]) -> None:
        environ = dict(os.environ)
        environ |= {"STATEROOM_SECRET": SECRET, "XDG_DATA_HOME": str(folder / "data"), "TMPDIR": str(folder)}
        self.folder = folder
        self.log = folder / f"log-{time.monotonic_ns()}"
        """What it says on standard error."""
        self.lines: list[str] = []
        """What it says on standard output."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={key: value for key, value in (environ | variables).items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a process group, to be ended as one
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_until(lambda: any(line.startswith("docs:") for line in self.lines) or self.process.poll() is not None)
        assert self.process.poll() is None, self.said
        self.url = self.lines[0].split(": ", 1)[1]

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.lines.extend(line.rstrip("\n") for line in iter(self.process.stdout.readline, ""))

    @property
    def root(self) -> str:
        """Where it listens."""
        return "/".join(self.url.split("/")[:3])

    @property
    def port(self) -> int:
        return int(self.root.rpartition(":")[2])

    @property
    def said(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for child in children:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def alive(self) -> list[int]:
        """The ids of all processes in its group."""
        return [process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_mine(process)]

    def _is_mine(self, process: int) -> bool:
        try:
            state, _, group = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            return False
        return int(group) == self.process.pid and state != "Z"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End all its processes at once, as if the power had failed."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @staticmethod
    def wait_until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.01)


Launch = Callable[..., Command]


@contextmanager
def _launching(folder: Path) -> Iterator[Launch]:
    with ExitStack() as stack:

        def launch(
            *arguments: str, starter: tuple[str, ...] = CONSOLE_SCRIPT, command: str = "serve", **variables: str | None
        ) -> Command:
            whole = [*starter, command, *arguments, "--port", "0"]
            made = Command(folder, whole, {"COLUMNS": "80", **variables})
            stack.callback(_end, made)
            return made

        yield launch


def _end(command: Command) -> None:
    command.kill()
    command.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts the command: `launch("counter", "--workers", "2", STATEROOM_ADMIN_TOKEN="…")`."""
    with _launching(tmp_path) as launch:
        yield launch


@pytest.fixture(scope="module")
def launch_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """The same, for a process that the tests of a module share."""
    with _launching(tmp_path_factory.mktemp("served")) as launch:
        yield launch


@pytest.fixture(scope="session")
def room() -> str:
    """An environment whose tools wait, hang and fail, as a path."""
    return f"{Path(__file__).parent / 'room.py'}:Room"

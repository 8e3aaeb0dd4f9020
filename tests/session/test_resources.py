"""Resources: what sessions have outside their state, which is forked, rewound and moved honestly or not at all."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from stateroom import Environment, Resource, SessionInfo, Sessions, open_store, tool
from stateroom.errors import Busy, CannotFork, CannotRewind, SessionError
from stateroom.session import Copier, Rescorer, Session, check_session
from stateroom.store import Record, Store
from tests.environments import Unjudged
from tests.messages import raises, says
from tests.patience import PATIENCE
from tests.processes import line, starting
from tests.session.outside import Desk, DeskEnvironment, Office, SurfEnvironment, files, write


@pytest.fixture
async def office(store: Store) -> AsyncIterator[Office]:
    made = Office(store)
    yield made
    await made.sessions.stop()


@pytest.fixture
async def elsewhere(store: Store) -> AsyncIterator[Office]:
    """The same store in another process, as far as sessions can tell."""
    made = Office(store)
    yield made
    await made.sessions.stop()


@pytest.fixture
async def session(office: Office) -> Session[Desk]:
    return await office.sessions.seed({})


async def entries(session: Session[Any]) -> list[dict[str, Any]]:
    """What the session's calls say of resources."""
    return [
        {name: entry.facts[name] for name in ("resources", "restarted") if name in entry.facts}
        async for entry in session.log(kinds={"call"})
    ]


# A folder, which can be exported.


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("how", "code"),
    [("keep", "tool_failed"), ("fill", "too_large"), ("refuse", "tool_error"), ("raise", "tool_failed")],
)
async def test_a_read_changes_no_folder(session: Session[Desk], used: bool, how: str, code: str) -> None:
    if used:
        await write(session, "mine")
    before = await files(session)
    refused = await session.call("peek", {"how": how})
    assert (refused.ok, refused.code) == (False, code)
    assert await files(session) == before
    await write(session, "more")
    assert set(await files(session)) == {*before, "more"}


async def test_a_read_of_what_is_never_saved_alike_leaves_nothing(store: Store) -> None:
    """Whether it has changed cannot be seen then, so it is restored."""

    class Stamped(Resource[list[str]]):
        kind = "exportable"

        def start(self, session: SessionInfo, /) -> list[str]:
            return []

        def save(self, lines: list[str], /) -> Any:
            return [next(numbers), *lines]

        def restore(self, saved: Any, session: SessionInfo, /) -> list[str]:
            return list(saved[1:])

    class Diary(Unjudged[Desk]):
        resources = {"lines": Stamped()}

        @tool
        def add(self, lines: list[str], text: str) -> None:
            """Add a line."""
            lines.append(text)

        @tool(effect="read")
        def show(self, lines: list[str]) -> list[str]:
            """All lines; and one more is written, which may not be."""
            shown = [*lines]
            lines.append("smuggled")
            return shown

    numbers, sessions = count(), Sessions[Desk](Diary(), store)
    session = await sessions.seed({})
    assert (await session.call("show")).output == []
    assert (await session.call("add", {"text": "mine"})).ok
    for _ in range(3):
        assert (await session.call("show")).output == ["mine"]
    await sessions.stop()


async def test_the_model_sees_nothing_of_a_resource(session: Session[Desk]) -> None:
    definition = DeskEnvironment().tools["write"].definition
    assert set(definition["parameters"]["properties"]) == {"name", "text"}
    refused = await session.call("write", {"name": "a", "text": "b", "folder": "/etc"})
    assert refused.code == "invalid_arguments"


async def test_a_fork_and_its_parent_have_a_folder_each(session: Session[Desk]) -> None:
    await write(session, "both")
    fork = await session.fork()
    await write(fork, "forks")
    await write(session, "parents")
    assert set(await files(session)) == {"both", "parents"}
    assert set(await files(fork)) == {"both", "forks"}
    again = await fork.fork()
    await write(again, "grandchilds")
    assert set(await files(again)) == {"both", "forks", "grandchilds"}
    assert set(await files(fork)) == {"both", "forks"}


@pytest.mark.every_store
async def test_a_fork_of_the_past_has_the_folder_of_then(session: Session[Desk]) -> None:
    for number in range(12):  # farther than a room remembers
        await write(session, "file", str(number))
    for revision in (1, 2, 7, 13):
        lines = "".join(f"{number}\n" for number in range(revision - 1))
        assert await files(await session.fork(at=revision)) == ({"file": lines} if lines else {})


async def test_a_rewind_brings_the_folder_back(session: Session[Desk], elsewhere: Office) -> None:
    await write(session, "first")
    await write(session, "second")
    await session.rewind(2)
    assert set(await files(session)) == {"first"}
    await write(session, "third")
    other = await elsewhere.sessions.open(session.id)
    assert set(await files(other)) == {"first", "third"}
    await other.rewind(1)
    assert await files(session) == {}
    await other.rewind(3)
    assert set(await files(session)) == set(await files(other)) == {"first", "second"}


async def test_the_folder_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # which the process leaves things in
    url = f"sqlite:///{tmp_path / 'rooms.db'}"
    async with open_store(url) as store:
        office = Office(store)
        session = await office.sessions.seed({})
        await write(session, "mine")
        async with starting(str(Path(__file__).with_name("outside.py"))) as start:  # which kills it in the end
            assert await line(await start(url, session.id)) == "inside"
        assert await files(session) == {"kept": "by the other\n", "mine": "text\n"}
        await office.sessions.stop()


@pytest.mark.parametrize("how", ["refuse", "raise", "hang", "state", "output", "fill", "link"])
async def test_a_call_that_fails_leaves_the_folder_as_it_was(office: Office, session: Session[Desk], how: str) -> None:
    await write(session, "good")
    result = await session.call("spoil", {"how": how})
    assert not result.ok
    says(result.error or "")
    spoiled = office.given
    assert await files(session) == {"good": "text\n"}
    assert not spoiled.exists()
    await write(session, "better")
    assert set(await files(session)) == {"better", "good"}
    assert session.revision == 3


async def test_a_call_that_is_run_again_finds_the_folder_as_it_was(
    office: Office, elsewhere: Office, session: Session[Desk]
) -> None:
    other = await elsewhere.sessions.open(session.id)

    async def others_come_first() -> None:
        await write(other, "file", "theirs")

    office.environment.meanwhile = others_come_first
    await write(session, "file", "mine")
    assert await files(session) == await files(other) == {"file": "theirs\nmine\n"}


async def test_only_what_has_changed_is_stored(session: Session[Desk], elsewhere: Office) -> None:
    await write(session, "file")
    await session.call("touch")
    await session.call("note", {"text": "nothing of the folder"})
    other = await elsewhere.sessions.open(session.id)
    await other.call("touch")
    await other.rewind(2)
    await other.call("touch")
    first, *rest = await entries(other)
    assert set(first["resources"]["folder"]) == {"saved", "bytes"}
    assert rest == [{}, {}, {}, {}]


@pytest.mark.parametrize("order", [1, -1])
async def test_what_one_of_a_family_has_saved_is_saved_for_each(
    session: Session[Desk], elsewhere: Office, store: Store, order: int
) -> None:
    await write(session, "both")
    first, second = await session.fork(n=2)
    family = [session, first, second, await first.fork()][::order]
    for each in family:
        await write(each, "file")
    for each in family:
        assert set(await files(await elsewhere.sessions.open(each.id))) == {"both", "file"}
        saved = (await entries(each))[-1]["resources"]["folder"]["saved"]
        assert saved in await store.blobs(each.id, [saved])


@pytest.mark.parametrize("effect", ["read", "write", "external"])
async def test_arguments_are_validated_once(store: Store, effect: Any) -> None:
    validated: list[Any] = []

    class CountingEnvironment(Unjudged[Desk]):
        resources = DeskEnvironment.resources

        @tool(effect=effect)
        def count(self, client: list[str], what: Annotated[int, AfterValidator(validated.append)]) -> None:
            """Count."""

    sessions = Sessions[Desk](CountingEnvironment(), store)
    assert (await (await sessions.seed({})).call("count", {"what": 1})).ok
    assert validated == [1]
    await sessions.stop()


async def test_an_external_call_keeps_what_it_has_written(session: Session[Desk], elsewhere: Office) -> None:
    assert (await session.call("send", {}, call_id="a")).ok
    assert await files(session) == {"sent": "sent"}
    await session.rewind(1)
    assert not (await session.call("send", {"fails": True}, call_id="b")).ok
    assert await files(session) == await files(await elsewhere.sessions.open(session.id)) == {}


async def test_an_external_call_is_not_merged_with_what_others_wrote(
    office: Office, elsewhere: Office, session: Session[Desk]
) -> None:
    other = await elsewhere.sessions.open(session.id)

    async def others_come_first() -> None:
        assert (await other.call("scribble")).ok

    office.environment.meanwhile = others_come_first
    result = await session.call("send", {}, call_id="a")
    says(result.error or "")
    assert set(await files(session)) == set(await files(other)) == {"scribble"}


@pytest.mark.every_store
async def test_a_large_content_is_stored_and_read_back(session: Session[Desk], elsewhere: Office) -> None:
    await write(session, "large", "x" * 500_000)
    for number in range(3):
        await write(session, "small", str(number))
    assert (await files(await elsewhere.sessions.open(session.id)))["large"] == "x" * 500_000 + "\n"
    assert len((await files(await session.fork(at=2)))["large"]) == 500_001


async def test_a_snapshot_knows_of_the_folder(store: Store, session: Session[Desk], elsewhere: Office) -> None:
    await write(session, "file")
    for _ in range(20):
        await session.call("note", {"text": "x" * 1000})
    loaded = await store.load(session.id)
    assert loaded.snapshot is not None
    assert loaded.snapshot.revision > 2
    assert await files(await elsewhere.sessions.open(session.id)) == {"file": "text\n"}


@pytest.mark.every_store
async def test_a_copied_session_has_its_folder(session: Session[Desk], store: Store) -> None:
    await write(session, "file", "x" * 100_000)
    fork = await session.fork()
    await write(fork, "more")
    async with open_store("memory://") as target:
        await Copier(store, target).copy(fork.id)
        there = Office(target)
        assert set(await files(await there.sessions.open(fork.id))) == {"file", "more"}
        await there.sessions.stop()


async def test_a_content_that_is_missing_is_found_by_a_check(session: Session[Desk], store: Store) -> None:
    await write(session, "file")
    for _ in range(20):
        await session.call("note", {"text": "x" * 1000})
    record = await store.maintenance.export(session.id)
    assert await check_session(store, record.head) == []
    async with open_store("memory://") as broken:
        await broken.put(Record(record.head, record.entries, record.snapshots, {}))
        [finding] = await check_session(broken, record.head)
        assert finding.startswith("the large value")
        assert finding.endswith("is missing")
        await broken.prune(session.id, record.snapshots[-1].revision)  # only a snapshot speaks of it then
        assert await check_session(broken, record.head) == [finding]


# A browser, which can only be started afresh.


async def test_where_a_browser_was_used_there_can_be_no_fork(session: Session[Desk]) -> None:
    await session.call("look")
    await session.call("note", {"text": "a"})
    assert (await session.fork()).revision == 2  # to look is not to use
    await session.call("visit", {"address": "a"})
    await session.call("note", {"text": "b"})
    for at in (None, 3, 4):
        with raises(CannotFork):
            await session.fork(at)
    fork = await session.fork(at=2)
    assert (await fork.call("visit", {"address": "b"})).output == ["b"]


async def test_a_far_fork_of_a_large_state_is_refused_too(store: Store) -> None:
    sessions = Sessions[Desk](SurfEnvironment(), store)
    session = await sessions.seed({})
    await session.call("visit", {"address": "a"})
    for _ in range(12):
        await session.call("note")
    with raises(CannotFork):
        await session.fork(at=4)
    await session.call("visit", {"address": "b"})
    with raises(CannotRewind):
        await session.rewind(4)
    await session.rewind(1)
    assert (await session.call("visit", {"address": "c"})).output == ["c"]
    await sessions.stop()


async def test_a_browser_cannot_go_back_but_it_can_stay(office: Office, session: Session[Desk]) -> None:
    await session.call("visit", {"address": "a"})
    page = office.given
    await session.call("note", {"text": "x"})
    await session.rewind(2)  # it was not used since
    await session.call("visit", {"address": "b"})
    assert office.given is page
    with raises(CannotRewind):
        await session.rewind(4)
    assert session.revision == 5
    await session.rewind(1)
    assert (await session.call("visit", {"address": "c"})).output == ["c"]
    assert page.closed.is_set()
    assert [set(each) for each in await entries(session)] == [{"resources"}, set(), {"resources"}, {"resources"}]


async def test_a_browser_that_is_gone_is_started_afresh_and_the_log_says_so(
    session: Session[Desk], elsewhere: Office, caplog: pytest.LogCaptureFixture
) -> None:
    await session.call("visit", {"address": "a"})
    assert not caplog.records
    other = await elsewhere.sessions.open(session.id)
    assert (await other.call("look")).output == []
    assert f"the browser of session {session.id} is started again" in caplog.text
    await other.call("visit", {"address": "b"})
    assert (await other.call("visit", {"address": "c"})).output == ["b", "c"]
    assert (await session.call("visit", {"address": "d"})).output == ["d"]
    assert [each.get("restarted") for each in await entries(session)] == [None, ["browser"], None, ["browser"]]


async def test_a_refused_call_keeps_the_browser_and_a_crash_does_not(office: Office, session: Session[Desk]) -> None:
    await session.call("visit", {"address": "a"})
    page = office.given
    assert (await session.call("visit", {"address": "nowhere"})).code == "tool_error"
    assert (await session.call("visit", {})).code == "invalid_arguments"
    await session.call("visit", {"address": "b"})
    assert office.given is page
    assert (await session.call("visit", {"address": "crash"})).code == "tool_failed"
    assert (await session.call("visit", {"address": "c"})).output == ["c"]
    assert page.closed.is_set()
    assert (await entries(session))[-1]["restarted"] == ["browser"]


async def test_a_call_that_was_not_run_for_want_of_threads_keeps_the_browser(
    office: Office, session: Session[Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.call("browse", {"address": "a"})
    with monkeypatch.context() as patched:
        patched.setattr("stateroom.session.runner.MAX_THREADS", 0)
        patched.setattr(office.sessions.runtime.runner, "timeout", 0.01)
        office.sessions.runtime.runner._workers._idle.clear()
        with pytest.raises(Busy):
            await session.call("browse", {"address": "b"})
    assert (await session.call("browse", {"address": "c"})).output == ["a", "c"]


@pytest.mark.every_store
async def test_of_two_that_have_a_browser_the_one_that_was_used_last_keeps_it(store: Store) -> None:
    office = Office(store, hot=2)
    old, used = await office.sessions.seed({}), await office.sessions.seed({})
    pages = []
    for session in (used, old, used):
        await session.call("visit", {"address": "a"})
        pages.append(office.given)
    new = await office.sessions.seed({})
    await new.call("visit", {"address": "a"})
    await asyncio.wait_for(pages[1].closed.wait(), PATIENCE)
    assert not pages[0].closed.is_set()
    assert (await used.call("visit", {"address": "b"})).output == ["a", "a", "b"]
    assert (await new.call("visit", {"address": "b"})).output == ["a", "b"]
    await office.sessions.stop()


async def test_readers_at_once_share_one_browser(office: Office, session: Session[Desk]) -> None:
    await asyncio.gather(*(session.call("look") for _ in range(5)))
    assert len(set(map(id, office.environment.given))) == 1


async def test_a_judge_who_asks_for_a_browser_cannot_judge_again(store: Store) -> None:
    sessions = Sessions[Desk](SurfEnvironment(), store)
    session = await sessions.seed({})
    await session.call("visit", {"address": "a"})
    await session.verify()
    rejudging = Rescorer(SurfEnvironment(), store)
    assert (await rejudging.judge(session.id, at=1)).verdict.reward == 0.0
    with raises(SessionError):
        await rejudging.judge(session.id)
    await sessions.stop()


# A client, which has nothing to lose.


async def test_all_sessions_of_a_process_share_one_client(office: Office, session: Session[Desk]) -> None:
    other = await office.sessions.seed({})
    fork = await other.fork()
    await asyncio.gather(*(each.call("ask", {"what": "x"}) for each in (session, other, fork)))
    assert office.given == ["x", "x", "x"]
    assert len(set(map(id, office.environment.given))) == 1
    await office.sessions.stop()
    assert office.given == ["x", "x", "x", "stopped"]
    assert (await session.call("ask", {"what": "y"})).output == 1
    assert await entries(session) == []


async def test_an_environment_without_a_state_can_have_one(store: Store) -> None:
    class AskEnvironment(Environment):
        resources = {"client": DeskEnvironment.resources["client"]}

        @tool
        def ask(self, client: list[str], what: str) -> int:
            """Ask."""
            client.append(what)
            return len(client)

        def verify(self, client: list[str]) -> float:
            return float(len(client))

    sessions = Sessions[None](AskEnvironment(), store)
    one, two = await sessions.seed({}), await sessions.seed({})
    assert [(await each.call("ask", {"what": "x"})).output for each in (one, two)] == [1, 2]
    assert (await one.verify()).reward == 2.0
    await sessions.stop()

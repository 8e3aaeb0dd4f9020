"""facts: the source that decides by the rules, and no reward without having compared it with the others."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, run
from stateroom.errors import BadTask
from stateroom.gallery import FactsEnvironment
from stateroom.model import Item
from stateroom.rollout import generate_tasks
from stateroom.session import Session, Verdict
from stateroom.store import Store

REFERENCE = FactsEnvironment.policies["reference"]


def document(kind: str, year: int, supports: bool | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "date": f"{year}-05-01", "title": "Ivy Mill", "text": "…", "supports": supports, **more}


ARCHIVE = {
    "old": document("newspaper", 1995, True),
    "new": document("newspaper", 2005, False),
    "chat": document("forum", 2020, True),
    "void": document("register", 2010, True),
    "note": document("register", 2011, withdraws="void"),
    "else": document("register", 2015),
}
COMPARED = ("old", "new", "chat", "void", "note")


def reads(*ids: str) -> list[tuple[str, dict[str, Any]]]:
    return [("read_document", {"document_id": each}) for each in ids]


def says(verdict: str, citation: str) -> tuple[str, dict[str, Any]]:
    return "give_verdict", {"verdict": verdict, "citation": citation}


async def seeded(store: Store, archive: Any = ARCHIVE) -> Session[Any]:
    row = {"ranking": ["register", "newspaper", "forum"], "archive": archive}
    return await Sessions[Any](FactsEnvironment(), store).seed(row)


async def judged(store: Store, *calls: tuple[str, dict[str, Any]], archive: Any = ARCHIVE) -> Verdict:
    session = await seeded(store, archive)
    for call in calls:
        await session.call(*call)
    return await session.verify()


@pytest.mark.parametrize(
    ("documents", "decides"),
    [
        ([("forum", 2020, True), ("newspaper", 2010, False)], 1),  # the better kind
        ([("newspaper", 2010, True), ("newspaper", 2011, False)], 1),  # the newer one
        ([("register", 1990, True), ("newspaper", 2020, False), ("forum", 2024, False)], 0),  # not the majority
        ([("register", 2020, None), ("forum", 2010, True)], 1),  # about something else
    ],
)
async def test_the_source_that_decides(store: Store, documents: Any, decides: int) -> None:
    archive = {str(number): document(*each) for number, each in enumerate(documents)}
    verdict = "true" if archive[str(decides)]["supports"] else "false"
    assert (await judged(store, *reads(*archive), says(verdict, str(decides)), archive=archive)).reward == 1.0


async def test_a_claim_that_nothing_decides_is_refused(store: Store) -> None:
    with pytest.raises(BadTask):
        await seeded(store, {"else": ARCHIVE["else"]})


@pytest.mark.parametrize(
    ("calls", "components"),
    [
        ([], (0, 0, 0)),  # an empty episode
        ([says("true", "old")], (0, 0, 0)),  # the claim is taken for true
        ([says("false", "new")], (1, 1, 0)),  # a guess that happens to be right
        ([*reads(*COMPARED)], (0, 0, 1)),  # all is read, and nothing is said
        ([*reads("new"), says("false", "new")], (1, 1, 0.2)),  # compared with nothing
        ([*reads(*COMPARED[:-1]), says("false", "new")], (1, 1, 0.8)),
        ([says("false", "new"), *reads(*COMPARED)], (1, 1, 0)),  # read too late
        ([*reads(*COMPARED), says("false", "else")], (1, 0, 1)),
        ([*reads(*COMPARED), says("true", "new")], (0, 1, 1)),
        ([*reads(*COMPARED), says("true", "chat"), says("false", "new")], (0, 0, 1)),  # there is no second try
    ],
)
async def test_no_trick_gets_a_reward(store: Store, calls: Any, components: Any) -> None:
    verdict = await judged(store, *calls)
    assert (verdict.reward, tuple(verdict.components.values())) == (0.0, components)


class Shortcut(REFERENCE):  # type: ignore[misc, valid-type]
    """Does what the reference policy does, but sees something else in each document, and perhaps other rules."""

    def __init__(self, see: Callable[[dict[str, Any]], dict[str, Any]], rules: str | None) -> None:
        super().__init__()
        self.see = see
        self.rules = rules

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return super().respond([self.seen(item) for item in conversation], tools)

    def seen(self, item: Item) -> Item:
        if item.get("role") == "system" and self.rules is not None:
            return {**item, "content": self.rules}
        shown = json.loads(item["output"]) if item.get("type") == "function_call_output" else None
        if not isinstance(shown, dict) or "kind" not in shown:
            return item
        return {**item, "output": json.dumps(shown | self.see(shown))}


@pytest.mark.parametrize(
    ("see", "rules", "most"),
    [
        (lambda document: {"kind": "register"}, "register", 0.0),  # the newest wins, of whatever kind
        (lambda document: {"date": "2000-01-01"}, None, 0.6),  # the first that was found wins
        (lambda document: {"text": document["text"].replace("withdrawn", "fine")}, None, 0.6),
    ],
)
async def test_each_rule_is_needed(store: Store, see: Any, rules: str | None, most: float) -> None:
    rows = generate_tasks(FactsEnvironment, 60, seed=2)
    rewards = []
    for row in rows:
        session = await Sessions(FactsEnvironment(), store).seed(row)
        await run(Agent(Shortcut(see, rules)), session)
        rewards.append((await session.verify()).reward)
    assert sum(rewards) / len(rewards) <= most


async def test_a_search_tells_titles_and_reading_tells_the_rest(store: Store) -> None:
    [row] = generate_tasks(FactsEnvironment, 1, seed=1)
    session = await Sessions(FactsEnvironment(), store).seed(row)
    for found in (await session.call("search", {"query": ""})).output:
        assert set(found) == {"id", "title"}
        read = (await session.call("read_document", {"document_id": found["id"]})).output
        assert set(read) == {"kind", "date", "title", "text"}
    assert session.state.read == set(row["archive"])


async def test_a_document_that_is_not_there_is_refused(store: Store) -> None:
    session = await seeded(store)
    for call in (*reads("D-0"), says("true", "D-0")):
        assert "'D-0'" in ((await session.call(*call)).error or "")
    assert session.revision == 1


async def test_tasks_are_all_different_and_claims_are_true_as_often_as_false(store: Store) -> None:
    rows = generate_tasks(FactsEnvironment, 120, seed=7)
    assert len({json.dumps(row["responses_create_params"]) for row in rows}) == len(rows)
    said = []
    for row in rows:
        session = await Sessions(FactsEnvironment(), store).seed(row)
        await run(Agent(REFERENCE()), session)
        said += [call.input["verdict"] async for call in session.log(kinds={"call"}) if call.name == "give_verdict"]
    assert 40 < said.count("true") < 80

"""office: a world that fits together, tasks that can be done, and a verdict that sees what was done beside."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib.resources import files
from random import Random
from typing import Any

import pytest

from stateroom import Sessions, Verdict
from stateroom.agent import Agent, run
from stateroom.gallery import Office, OfficeEnvironment
from stateroom.gallery.office.tasks import KINDS, example_tasks
from stateroom.model import Policy
from stateroom.rollout import generate_tasks
from stateroom.session import Session
from tests.messages import says

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORLD = OfficeEnvironment().world()
NOISY: Any = OfficeEnvironment.policies["noisy"]
TASKS = [
    json.loads(line) for line in files("stateroom.gallery.office").joinpath("tasks.jsonl").read_text().splitlines()
]
READS = {name for name, tool in OfficeEnvironment().tools.items() if tool.effect == "read"}

Row = dict[str, Any]


def some(each: int, *kinds: str) -> list[Row]:
    """A few tasks of each kind."""
    taken: Counter[str] = Counter()
    rows = []
    for row in TASKS:
        if (not kinds or row["kind"] in kinds) and taken[row["kind"]] < each:
            taken[row["kind"]] += 1
            rows.append(row)
    return rows


def one(kind: str, **fields: Any) -> Row:
    return next(row for row in TASKS if row["kind"] == kind and fields.items() <= row.items())


async def play(sessions: Sessions[Office], row: Row, policy: Policy) -> Verdict:
    session = await sessions.seed(row)
    trajectory = await run(Agent(policy), session)
    assert trajectory.status == "completed"
    return await session.verify({"output": trajectory.output})


async def act(session: Session[Office], actions: Iterable[Row]) -> None:
    for number, action in enumerate(actions):
        if "message" in action:
            await session.reply(action["message"], call_id=f"reply {number}")
        else:
            result = await session.call(action["name"], action["arguments"])
            assert result.ok, result.error


async def judged(sessions: Sessions[Office], row: Row, actions: Iterable[Row]) -> Verdict:
    session = await sessions.seed(row)
    await act(session, actions)
    return await session.verify()


def writes(row: Row) -> list[Row]:
    return [action for action in row["gold"] if action.get("name") not in READS]


async def test_the_world_is_of_real_size_and_every_reference_leads_somewhere() -> None:
    kinds = ("contacts", "mails", "events", "projects", "tickets", "expenses", "files")
    tables = [getattr(WORLD, kind) for kind in kinds]
    assert sum(map(len, tables)) >= 10_000
    assert all(key == record.id for table in tables for key, record in table.items())
    people, addresses = WORLD.contacts, {contact.email for contact in WORLD.contacts.values()}
    staff = {contact.id for contact in people.values() if contact.company == "Larkspur Works"}
    assert len(addresses) == len(people)
    assert all((contact.deputy in staff - {contact.id}) == (contact.id in staff) for contact in people.values())
    assert all({mail.sender, *mail.to} <= addresses for mail in WORLD.mails.values())
    assert all({event.organizer} <= set(event.attendees) <= staff for event in WORLD.events.values())
    assert all({project.lead} < set(project.members) <= staff for project in WORLD.projects.values())
    assert all(ticket.assignee in WORLD.projects[ticket.project].members for ticket in WORLD.tickets.values())
    assert all(expense.employee in staff for expense in WORLD.expenses.values())
    assert all({file.owner, *file.shared_with} <= staff for file in WORLD.files.values())
    names = Counter(contact.name for contact in people.values())
    assert sum(count > 1 for count in names.values()) >= 20


async def test_the_tasks_file_is_what_the_generator_makes() -> None:
    assert example_tasks(OfficeEnvironment().tools) == TASKS


async def test_there_are_tasks_of_all_sorts() -> None:
    assert len(TASKS) >= 200
    assert {row["kind"] for row in TASKS} == {kind.name for kind in KINDS}
    assert {row["difficulty"] for row in TASKS} == {1, 2, 3, 4, 5}
    lengths = [len(row["gold"]) for row in TASKS]
    assert (min(lengths), max(lengths)) == (2, 15)
    assert sum(any("message" in action for action in row["gold"]) for row in TASKS) >= 30
    assert {row["manager"] for row in TASKS} == {None, "yes", "no"}


async def test_harder_tasks_take_more_steps() -> None:
    lengths = defaultdict(list)
    for row in TASKS:
        lengths[row["difficulty"]].append(len(row["gold"]))
    means = [sum(lengths[difficulty]) / len(lengths[difficulty]) for difficulty in sorted(lengths)]
    assert means == sorted(means)


async def test_whoever_stands_in_for_somebody_is_not_away_too() -> None:
    given = [action["arguments"] for row in TASKS if row["kind"] == "cover_leave" for action in writes(row)]
    assert given
    assert [each for each in given if WORLD.contacts[each["assignee_id"]].away_until] == []


async def test_a_prompt_is_of_one_kind_and_gives_no_ids_away() -> None:
    for row in [*TASKS, *generate_tasks(OfficeEnvironment, 200, seed=2)]:
        prompt = row["responses_create_params"]["input"][1]["content"]
        assert [kind.name for kind in KINDS if kind.read(prompt)] == [row["kind"]], prompt
        assert not re.search(r"\b(C|M|EV|P|T|EX|F)-\d{4}\b", prompt), prompt


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_what_a_prompt_asks_can_be_read_from_each_wording(kind: Any) -> None:
    asked = kind.draw(WORLD, Random(4)).asked
    for wording in kind.wordings:
        assert kind.read(wording.format(**asked)) == {name: asked[name] for name in re.findall(r"\{(\w+)\}", wording)}
        assert kind.read("Good morning.") is None


async def test_idling_gets_nothing_and_breaks_nothing(sessions: Sessions[Office]) -> None:
    for row in some(1):
        verdict = await play(sessions, row, OfficeEnvironment.policies["idle"]())
        assert (verdict.reward, verdict.components) == (0.0, {"goal": 0.0, "untouched": 1.0, "rules": 1.0}), row["kind"]


FREE = ("file_mail", "close_ticket", "share_with_team", "cover_leave", "clear_day", "kickoff", "merge_duplicates")


@pytest.mark.parametrize("kind", FREE)
async def test_the_order_of_independent_actions_is_free(sessions: Sessions[Office], kind: str) -> None:
    for row in some(3, kind):
        actions = writes(row)
        assert len(actions) > 1
        for order in (actions[::-1], Random(1).sample(actions, len(actions))):
            verdict = await judged(sessions, row, order)
            assert verdict.reward == 1.0, verdict.reason


async def test_leaving_any_action_out_misses_the_goal(sessions: Sessions[Office]) -> None:
    for row in some(1, "file_mail", "share_with_team", "moved_meeting", "kickoff", "merge_duplicates", "handover"):
        actions = writes(row)
        for left_out in range(len(actions)):
            verdict = await judged(sessions, row, [*actions[:left_out], *actions[left_out + 1 :]])
            assert verdict.components == {"goal": 0.0, "untouched": 1.0, "rules": 1.0}, row["kind"]


async def test_drafts_and_the_wording_of_mails_do_not_count_but_their_facts_do(sessions: Sessions[Office]) -> None:
    row = one("answer_status")
    [mail] = writes(row)
    [told] = row["told"]
    draft = {"name": "draft_mail", "arguments": {"to": ["me@x.example"], "subject": "?", "body": "?"}}
    given = {**mail["arguments"], "subject": "Your question", "body": f"Dear all, {' AND '.join(told['says'])}."}
    assert (await judged(sessions, row, [draft, {**mail, "arguments": given}])).reward == 1.0
    given["body"] = f"Ask {told['says'][0]}."
    every_day = " ".join((*told["says"], *(f"2026-03-{day:02}" for day in range(1, 32))))
    for body in (every_day, given["body"]):  # one that names every day tells none
        verdict = await judged(sessions, row, [{**mail, "arguments": given | {"body": body}}])
        assert verdict.components == {"goal": 0.0, "untouched": 1.0, "rules": 1.0}
    assert verdict.reason == f"mail to {told['to'][0]}: must say {' and '.join(told['says'])}"
    elsewhere = {**mail, "arguments": {**mail["arguments"], "to": ["me@x.example"]}}
    verdict = await judged(sessions, row, [{**mail, "arguments": given}, elsewhere])
    assert verdict.components == {"goal": 0.0, "untouched": 0.0, "rules": 1.0}


@pytest.mark.parametrize(("manager", "granted"), [("yes", True), ("no", False)])
async def test_the_manager_decides_what_is_named_and_notes_it(
    sessions: Sessions[Office], manager: str, granted: bool
) -> None:
    session = await sessions.seed(one("settle_large", manager=manager))
    says(str(await session.reply("EX-1201 needs your approval. Do you approve?", call_id="a")))
    assert {name: each.granted for name, each in session.state.approvals.items()} == {"EX-1201": granted}
    assert await session.reply("EX-1201 is settled.", call_id="b") is None


@pytest.mark.parametrize("message", ["May I pay EX-0001?", "May I?"])
async def test_the_manager_says_what_needs_no_approval_but_not_for_ever(
    sessions: Sessions[Office], message: str
) -> None:
    session = await sessions.seed(one("settle_large"))
    says(str(await session.reply(message, call_id="a")))
    assert session.state.approvals == {}
    assert await session.reply("Hello?", call_id="b") is None


async def test_nobody_answers_where_nothing_needs_an_approval(sessions: Sessions[Office]) -> None:
    session = await sessions.seed(one("new_phone"))
    assert await session.reply("Which one do you mean?", call_id="a") is None


@pytest.mark.parametrize("manager", ["yes", "no"])
@pytest.mark.parametrize("named", ["EX-1201 and EX-1202", "EX-1202"])
async def test_the_parts_of_a_split_expense_are_decided_together(
    sessions: Sessions[Office], manager: str, named: str
) -> None:
    row = one("settle_split", manager=manager)
    verdict = await judged(sessions, row, [{"message": f"May I pay {named}?"}, *writes(row)[1:]])
    assert verdict.components == {"goal": 1.0, "untouched": 1.0, "rules": 1.0}


async def test_an_approval_afterwards_is_too_late(sessions: Sessions[Office]) -> None:
    row = one("share_outside", manager="yes")
    asked, share, mail = writes(row)
    assert (await judged(sessions, row, [asked, share, mail])).reward == 1.0
    verdict = await judged(sessions, row, [share, asked, mail])
    assert verdict.components == {"goal": 1.0, "untouched": 1.0, "rules": 0.0}
    assert verdict.reason.startswith(f"rule broken: {share['arguments']['file_id']}: ")


@pytest.mark.parametrize("fault", sorted({made.fault for seed in range(500) if (made := NOISY(seed)).errs}))
async def test_each_fault_is_seen(sessions: Sessions[Office], fault: str) -> None:
    seeds = iter(range(10_000))
    for row in some(1):
        policy = next(made for seed in seeds if (made := NOISY(seed)).errs and made.fault == fault)
        verdict = await play(sessions, row, policy)
        assert verdict.reward == 0.0, row["kind"]
        assert verdict.reason != "all as expected"


async def test_faults_differ_in_what_they_spoil(sessions: Sessions[Office]) -> None:
    spoilt: dict[str, set[tuple[float, ...]]] = defaultdict(set)
    for seed, row in enumerate(some(9, "settle_large", "new_phone", "kickoff", "settle_split")):
        policy = NOISY(seed)
        if policy.errs:
            spoilt[policy.fault].add(tuple((await play(sessions, row, policy)).components.values()))
    assert len(set().union(*spoilt.values())) >= 3
    assert len({frozenset(found) for found in spoilt.values()}) >= 3


async def test_who_takes_somebody_for_their_namesake_fails_twice(sessions: Sessions[Office]) -> None:
    policy = next(made for seed in range(999) if (made := NOISY(seed)).errs and made.fault == "mixes up")
    names = Counter(contact.name for contact in WORLD.contacts.values())
    rows = (row for row in TASKS if row["kind"] == "new_phone")
    row = next(row for row in rows if names[row["gold"][0]["arguments"]["query"]] > 1)
    verdict = await play(sessions, row, policy)
    assert verdict.components == {"goal": 0.0, "untouched": 0.0, "rules": 1.0}

"""A house full of payloads: every text that models, tools and files may write is an attack on the page."""

import asyncio
import json
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pydantic import JsonValue

from stateroom import Environment, State, ToolError, Verdict, tool
from stateroom.model import Item, Policy, function_call, message, outputs_of
from stateroom.rollout import RunFiles
from stateroom.server import Application, ApplicationOptions
from stateroom.session import Sessions
from stateroom.store import open_store
from stateroom.studio import Studio
from tests.patience import PATIENCE
from tests.rows import write_rows
from tests.server.conftest import SECRET, Served, running

SCREENS = Path(__file__).parents[2] / "src" / "stateroom" / "studio" / "static" / "screens.js"

IMAGE = "<img src=x onerror=window.pwned=1>"
"""The payload by which a test knows that a screen shows what others wrote."""

KEYS = ("__proto__", "constructor", "toString", "__html", "dangerouslySetInnerHTML", "innerHTML", "key", "ref")
"""Names that a page may mistake for its own."""

PAYLOADS = (
    IMAGE,
    "<script>window.pwned=1</script>",
    "</pre></title></textarea><svg onload=window.pwned=1><a href='javascript:window.pwned=1'>click</a></svg>",
    "\"><iframe srcdoc='<script>parent.pwned=1</script>'></iframe><object data=//evil.example></object>",
    "javascript:window.pwned=1 data:text/html,<script>window.pwned=1</script> //evil.example/x",
    "[link](javascript:window.pwned=1) ![image](http://evil.example/x.png) http://evil.example/",
    "${window.pwned=1} {{constructor.constructor('window.pwned=1')()}} <%= 7*7 %> #{7*7} `${7}` &lt;b&gt; &#x202e;",
    "' OR 1=1 -- \\ %s %n %00 %2e%2e%2f %zz ../../etc/passwd",
    "\u202egpj.exe \u2066isolated\u2069 \u200bzero \x1b[31mred\x1b[0m \x00 \x07 \x7f \ufeff \U000e0041",
    "w" * 500,
)


def bad(field: str, *, printable: bool = False) -> str:
    """All payloads, with the name of the field that they are in."""
    return " ".join([f"§{field}§", *(each for each in PAYLOADS if each.isprintable() or not printable)])


PERSON = f'§person§ {IMAGE} "%zz ${{7*7}} javascript:window.pwned=1'
NAME = f"§name§ {IMAGE}\u202e%2e%zz '\"\\ ${{7*7}} ?#&+"
"""For ids and names of files."""

SAID: list[Item] = [
    {"role": f"§role§ {NAME}", "content": [{"type": NAME, "text": bad("part")}, {"type": "image", "image_url": NAME}]},
    {"type": "function_call", "call_id": "c", "name": f"§called§ {NAME}", "arguments": bad("arguments")},
    {"type": "function_call_output", "call_id": "c", "output": bad("output")},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": bad("thought")}]},
    {"type": f"§type§ {NAME}", **dict.fromkeys(KEYS, IMAGE)},
    {"role": "user", "content": bad("said")},
]
ROW = {
    "responses_create_params": {"input": SAID, "instructions": bad("instructions")},
    bad("column"): bad("cell"),
    **dict.fromkeys(KEYS, IMAGE),
}


class Notes(State):
    pages: dict[str, JsonValue] = {}
    constructor: str = IMAGE
    dangerouslySetInnerHTML: dict[str, str] = {"__html": IMAGE}


class HostileEnvironment(Environment[Notes]):
    __doc__ = bad("environment")
    examples: ClassVar[str | None] = None

    def seed(self, task: Any) -> Notes:
        return Notes(pages={bad("key"): {bad("below"): [bad("value")]}, **{key: {"__html": IMAGE} for key in KEYS}})

    @tool
    def write(self, state: Notes, title: str, text: str) -> dict[str, Any]:
        state.pages[title] = text
        return {bad("result"): text}

    @tool(effect="external")
    def fail(self, state: Notes) -> None:
        raise ToolError(bad("error"))

    @tool
    def beg(self, state: Notes, ask: Any) -> str:
        return str(ask(bad("question")))

    @tool(effect="external")
    def dangerouslySetInnerHTML(self, state: Notes, constructor: str, key: int) -> str:
        return IMAGE

    write.__doc__ = fail.__doc__ = beg.__doc__ = dangerouslySetInnerHTML.__doc__ = bad("tool")

    def verify(self, state: Notes) -> Verdict:
        components = {bad("component"): 0.25, **dict.fromkeys(KEYS, 0.25)}
        return Verdict(0.5, components=components, metrics={NAME: 1.0}, details={NAME: NAME}, reason=bad("verdict"))


class Attacker(Policy):
    """Says and calls what it should not, then asks."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        calls = [
            function_call(f"§called§ {NAME}", "c0", **{bad("arguments"): IMAGE}),
            function_call("write", "c1", title=bad("title"), text=bad("text")),
            function_call("fail", "c2"),
            function_call("beg", "c3"),
        ]
        return [message(bad("answer")), *(calls[len(outputs_of(conversation)) :][:1] if tools else [])]


RUN = f"{NAME}/{NAME}"
SESSIONS = {name: f"{name} {NAME}" for name in ("judged", "waiting", "played", "thread")}
"""The ids of sessions by what they are."""


def patterns() -> list[str]:
    """The paths of all screens, from the page's own file."""
    return re.findall(r'^  "(/[^"]*)": ', SCREENS.read_text(), re.MULTILINE)


def views(pattern: str) -> dict[str, str]:
    """The views of a screen that differ in more than a tab, each with a field that it shows when it is complete."""
    judged, waiting, played, thread = (quote(each, safe="") for each in SESSIONS.values())
    found = {
        "/sessions": {"": "owner"},
        "/sessions/:id": {f"/{judged}?at=5": "edited", f"/{judged}?at=4": "error", f"/{waiting}": "answer"},
        "/sessions/:id/play": {f"/{played}/play": "said"},
        "/sessions/:id/compare": {f"/{judged}/compare": "edited"},
        "/runs": {"": "model"},
        "/runs/:run": {"": "failure", "?tab=tasks": "failure", "?tab=metrics": "failure"},
        "/runs/:run/rollouts/:line": {"/rollouts/1": "said", "/rollouts/1?file=failures": "failure"},
        "/runs/:run/sessions/:id": {f"/sessions/{judged}": "verdict"},
        "/runs/:run/sessions/:id/play": {f"/sessions/{judged}/play": "said"},
        "/runs/:run/sessions/:id/compare": {f"/sessions/{judged}/compare": "edited"},
        "/threads": {"": "owner"},
        "/threads/:id": {f"/{thread}": "answer", f"/{waiting}?show=all": "answer"},
        "/store": {"": "name"},
        "/play": {f"?environment=hostile&task={way}&example=0": "environment" for way in ("Examples", "Form", "JSON")},
        "/inbox": {"": "question"},
    }
    start = f"/runs/{quote(RUN, safe='')}" if pattern.startswith("/runs/") else f"/{pattern.split('/')[1]}"
    return {f"/studio{start}{view}": field for view, field in found[pattern].items()}


CHAT = "said role part called arguments output thought type"
STATE = "key below value"
EDIT = "key edited title text"
JUDGED = "name owner person reason checkpoint verdict component"
FIELDS = {
    "/sessions": "name owner",
    "/sessions/:id": f"{JUDGED} {EDIT} {STATE} {CHAT} instructions result error message answer question",
    "/sessions/:id/play": f"name tool instructions {STATE} {CHAT}",
    "/sessions/:id/compare": f"name {STATE} {EDIT}",
    "/runs": "name environment model",
    "/runs/:run": "name environment model failure failed",
    "/runs/:run/rollouts/:line": f"name failure error reason column cell {CHAT}",
    "/runs/:run/sessions/:id": f"{JUDGED} {EDIT} {CHAT}",
    "/runs/:run/sessions/:id/play": f"name tool {EDIT} {CHAT}",
    "/runs/:run/sessions/:id/compare": f"name {STATE} {EDIT}",
    "/threads": "name owner",
    "/threads/:id": "name owner message answer called arguments error",
    "/store": "name",
    "/play": "environment said",
    "/inbox": "name question title text answer error",
}
"""The fields of others that each screen shows."""


def serve(folder: Path, studio: Studio) -> AbstractAsyncContextManager[Served]:
    """Serve the environment on a store in a folder."""
    examples = folder / "examples.jsonl"
    write_rows(examples, [ROW])
    HostileEnvironment.examples = str(examples)
    options = ApplicationOptions((SECRET,), store=f"sqlite:///{folder}/store.db", model=f"{__file__}:Attacker")
    return running(Application((HostileEnvironment(),), options, extensions=(studio,)))


async def fill(served: Served, runs: Path) -> None:
    """Fill a server's store and a folder of runs."""
    environments = served.services.session_environments
    for name, session in SESSIONS.items():
        sessions = environments["thread" if name == "thread" else "hostile"].sessions
        await sessions.seed({} if name == "thread" else ROW, owner=bad("owner"), session_id=session, by=PERSON)
    await _judge(environments["hostile"].sessions)
    for name in ("waiting", "thread"):
        await _converse(served, f"/studio/api/sessions/{quote(SESSIONS[name], safe='')}/continue")
    files = RunFiles(runs / f"{RUN}.jsonl")
    files.rollouts.parent.mkdir(parents=True)
    _write_run(files)
    async with open_store(f"sqlite:///{quote(str(files.sessions))}") as store:
        of_run = Sessions(HostileEnvironment(), store)
        await of_run.seed(ROW, owner=bad("owner"), session_id=SESSIONS["judged"])
        await _judge(of_run)


async def _converse(served: Served, path: str) -> None:
    status, told = await served.post(path, {"message": bad("message"), "by": PERSON})
    async with asyncio.timeout(PATIENCE):
        while status == 200 and told["running"]:
            status, told = await served.get(path)
    assert (status, told) == (200, {"running": False, "error": None})


async def _judge(sessions: Any) -> None:
    session = await sessions.open(SESSIONS["judged"])
    await session.call("write", {"title": bad("title"), "text": bad("text")}, by=PERSON)
    await session.call("fail", {}, by=PERSON)
    await session.edit([{"place": ["pages", bad("key")], "value": bad("edited")}], by=PERSON, reason=bad("reason"))
    await session.checkpoint(bad("checkpoint", printable=True), by=PERSON)
    await session.fork(n=1, ids=[f"fork of {session.id}"], by=PERSON)
    await session.verify(by=PERSON)


def _write_run(files: RunFiles) -> None:
    row = {**ROW, "_ng_task_index": 0, "_ng_rollout_index": 0}
    response = {"model": bad("model"), "output": SAID}
    good = {
        **row,
        "reward": 0.5,
        "a_number_whose_name_is_too_long_for_a_small_screen": 1,
        "reason": bad("reason"),
        "_stateroom_session": SESSIONS["judged"],
        "response": response,
    }
    write_rows(files.rollouts, [good, {**good, "_ng_rollout_index": 1}])
    failed = {
        **row,
        "_ng_rollout_index": 2,
        "_ng_failure_class": f"§failure§ {NAME}",
        "error": bad("error"),
        "cause": NAME,
    }
    write_rows(files.failures, [failed])
    write_rows(files.inputs, [{**row, "_ng_rollout_index": each} for each in range(3)])
    write_rows(files.tool_failures, [{**row, "tool": f"§failed§ {NAME}", "error": NAME}])
    files.description.write_text(json.dumps({"environment": bad("environment"), "model": bad("model"), "episodes": 3}))

"""An environment whose verifier asks a model, and what becomes of episodes when that model fails.

Run it with `python examples/judged.py`: for a while the judge mumbles about some letters, so that their episodes have
no reward. They wait in the failures file, and get it once the judge is itself again.

The judge is the `Critic` below, which needs no key. `JUDGE` names another model, as `--model` does; or the same one,
served. Here it is `mumbling` at first:

    stateroom model serve examples/judged.py:Critic --port 9000 &
    JUDGE=mumbling stateroom run examples/judged.py:LetterEnvironment --output letters.jsonl
    export JUDGE=chat:examples/judged.py:Critic@http://127.0.0.1:9000/v1
    stateroom reverify letters.jsonl --env examples/judged.py:LetterEnvironment --judge-failed-only
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from stateroom import Environment, Episode, State, Task, Verdict, open_store, tool
from stateroom.model import (
    Item,
    Judge,
    Model,
    Noisy,
    Policy,
    function_call,
    last_user_text,
    message,
    outputs_of,
)
from stateroom.rollout import RunFiles, plan_run, read_tasks, run, score_failures

RUBRIC = """\
2: the letter says what it should, and addresses its reader by name.
1: one of the two.
0: neither."""


class Letter(State):
    text: str = ""


class LetterTask(Task):
    reader: str
    purpose: str


class Critic(Policy):
    """Stands for a model that judges: it looks for two words."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        shown = json.loads(last_user_text(conversation))
        found = [name for name in ("reader", "purpose") if shown[name].lower() in shown["answer"].lower()]
        return [
            message(json.dumps({"score": len(found), "reason": f"It has its {' and its '.join(found) or 'faults'}."}))
        ]


class Mumbling(Critic):
    """Says nothing that can be read about letters to people whose names are long."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if len(json.loads(last_user_text(conversation))["reader"]) > 4:
            return [message("A fine letter, perhaps a 2, or a 1 on a bad day.")]
        return super().respond(conversation, tools)


CRITICS: dict[str, Model] = {"critic": Critic(), "mumbling": Mumbling()}


class Writer(Policy):
    """Writes the letter that it is asked for."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if outputs_of(conversation):
            return [message("It is written.")]
        reader, _, purpose = last_user_text(conversation).removeprefix("Write to ").partition(": ")
        return [function_call("write", "call_0", text=f"Dear {reader},\nthis is to say: {purpose}\nYours")]


class Careless(Noisy):
    """Forgets, in some episodes, who is to read the letter."""

    better = Writer

    def err(self, items: list[Item]) -> list[Item]:
        if items[0]["type"] != "function_call":
            return items
        text: str = json.loads(items[0]["arguments"])["text"]
        return [function_call("write", "call_0", text="Dear all," + text[text.index("\n") :])]


class LetterEnvironment(Environment[Letter, LetterTask]):
    """Write a letter, which a model will judge."""

    name = "letter"
    examples = "judged.jsonl"
    policies = {"reference": Writer, "noisy": Careless}

    def __init__(self, judge: Judge | None = None) -> None:
        spec = os.environ.get("JUDGE", "critic")
        self.judge = judge or Judge(CRITICS.get(spec, spec), RUBRIC, votes=3, scale=(0, 2))

    @tool
    def write(self, state: Letter, text: str) -> dict[str, int]:
        """Write the letter, in place of what was written before."""
        state.text = text
        return {"words": len(text.split())}

    async def verify(self, state: Letter, episode: Episode) -> Verdict:
        task = episode.task
        return await self.judge.verdict(
            question="Write the letter.", answer=state.text, reader=task.reader, purpose=task.purpose
        )


async def main() -> None:
    """Run letters with a judge that mumbles, and judge them again with one that does not."""
    say = Console().print
    with TemporaryDirectory() as folder:
        files, store = RunFiles(Path(folder) / "letters.jsonl"), f"sqlite:///{folder}/letters.db"
        mumbling = LetterEnvironment(Judge(Mumbling(), RUBRIC, votes=3, scale=(0, 2)))
        tasks = read_tasks(Path(__file__).with_name("judged.jsonl"), mumbling)
        report = await run(plan_run(mumbling, model=Careless, input=tasks, output=files.rollouts, store=store))
        say(f"{report.episodes} episodes, of which {report.failed} wait for a judge")
        say(f"  {report.first_error}")
        async with open_store(store) as opened:
            judged = await score_failures(LetterEnvironment(), files, opened)
        say(f"{len(judged.rows)} judged; the mean reward is {judged.metrics['agent_metrics']['mean/reward']:.2f} now")


if __name__ == "__main__":
    asyncio.run(main())

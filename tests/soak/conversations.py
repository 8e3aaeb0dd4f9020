"""Conversations by OpenAI's client on `stateroom model serve`, which is killed and started again, beside plain lists.

A request that was under way when the server was killed has happened, or it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any

import openai

from tests.server.serving_models import Served, serving
from tests.server.test_conversations import ECHO, texts
from tests.soak.rounds import Round

ACTIONS = ["create", "add", "add", "answer", "answer", "delete item", "delete", "check", "check", "kill"]
LONGEST_DELAY = 0.03
"""Seconds between the start of a request and the kill."""

Change = Callable[[list[str]], list[str] | None]
"""What a conversation's texts become; None if it is deleted."""


class Talk:
    """Conversations with a server, and what must be in them."""

    def __init__(self, round: Round, folder: Path, url: str) -> None:
        self.round = round
        self.luck = Random(round.seed)
        self.folder, self.url = folder, url
        self.expected: dict[str, list[str]] = {}
        self.deleted: list[str] = []
        self.interrupted: set[str] = set()
        """Those in which a server was killed: its lease may refuse changes for a while."""

    @contextmanager
    def connect(self) -> Iterator[tuple[Served, openai.OpenAI]]:
        with (
            serving(ECHO, self.folder, "--store", self.url) as served,
            openai.OpenAI(base_url=served.url, api_key="x", max_retries=0) as client,
        ):
            yield served, client

    def run(self) -> None:
        """Take the steps of a round; each server lasts until it is killed."""
        steps = 0
        while steps < self.round.steps:
            with self.connect() as (served, client):
                while steps < self.round.steps:
                    steps += 1
                    action = self.luck.choice(ACTIONS) if self.expected else "create"
                    if action == "kill":
                        self.kill(served, client)
                        break
                    self.act(served, client, action)
        with self.connect() as (_, client):
            self.check(client)

    def act(self, served: Served, client: openai.OpenAI, action: str) -> None:
        self.round.tally.operations += 1
        match action:
            case "create":
                words = self.words()
                self.expected[client.conversations.create(items=items(words)).id] = words
            case "check":
                self.check(client)
            case _:
                conversation, work, change = self.request(served, client, action)
                try:
                    work()
                except openai.ConflictError:
                    assert conversation in self.interrupted
                else:
                    self.note(conversation, change)

    def request(self, served: Served, client: openai.OpenAI, action: str) -> tuple[str, Callable[[], object], Change]:
        """A request that changes a conversation, and what it comes to."""
        conversation = self.luck.choice([*self.expected])
        expected = self.expected[conversation]
        match action:
            case "delete item" if expected:
                place = self.luck.randrange(len(expected))
                [*ids] = [str(item.id) for item in client.conversations.items.list(conversation, order="asc")]
                delete = partial(client.conversations.items.delete, ids[place], conversation_id=conversation)
                return conversation, delete, lambda old: [*old[:place], *old[place + 1 :]]
            case "delete":
                return conversation, partial(client.conversations.delete, conversation), lambda _: None
            case "answer":
                [word] = self.words(1)
                ask = partial(client.responses.create, model=served.name, input=word, conversation=conversation)
                return conversation, ask, lambda old: [*old, word, f"{len(old) + 1}: {word}"]
            case _:
                words = self.words()
                add = partial(client.conversations.items.create, conversation, items=items(words))
                return conversation, add, lambda old: [*old, *words]

    def kill(self, served: Served, client: openai.OpenAI) -> None:
        """Kill the server while it works on a request; then look which of both it came to."""
        action = self.luck.choice(["add", "answer", "delete item", "delete"])
        conversation, work, change = self.request(served, client, action)
        timer = Timer(self.luck.random() * LONGEST_DELAY, served.process.kill)
        with ThreadPoolExecutor(1) as thread:
            timer.start()
            failed = thread.submit(work).exception()
        timer.join()
        self.round.tally.operations += 1
        self.round.tally.kills += 1
        if failed is None:
            self.note(conversation, change)
            return
        if isinstance(failed, openai.ConflictError):
            assert conversation in self.interrupted
            return
        assert isinstance(failed, openai.APIConnectionError), failed
        self.interrupted.add(conversation)
        with self.connect() as (_, other):
            before, after = self.expected[conversation], change(self.expected[conversation])
            found = find(other, conversation)
            assert found in (before, after), f"{action}: {found} is neither {before} nor {after}"
            self.note(conversation, lambda _: found)

    def note(self, conversation: str, change: Change) -> None:
        changed = change(self.expected.pop(conversation))
        if changed is None:
            self.deleted.append(conversation)
        else:
            self.expected[conversation] = changed

    def check(self, client: openai.OpenAI) -> None:
        for conversation, expected in self.expected.items():
            found = find(client, conversation)
            missing = [word for word in expected if word not in (found or [])]
            self.round.tally.lost += len(missing)
            assert found == expected, f"{conversation} has {found} instead of {expected}"
        for conversation in self.deleted:
            assert find(client, conversation) is None, conversation

    def words(self, number: int | None = None) -> list[str]:
        return [f"w{self.luck.randrange(10**9)}" for _ in range(number or self.luck.randrange(1, 5))]


def items(words: list[str]) -> Any:
    return [{"role": "user", "content": word} for word in words]


def find(client: openai.OpenAI, conversation: str) -> list[str] | None:
    """The texts of a conversation; None if there is none."""
    try:
        return texts(client, conversation, order="asc", limit=7)
    except openai.NotFoundError:
        return None


def play(round: Round) -> None:
    """Send `steps` requests, some of which the server does not survive."""
    with round.place.fresh_folder() as folder, round.place.fresh_store(round.store) as url:
        Talk(round, folder, url).run()

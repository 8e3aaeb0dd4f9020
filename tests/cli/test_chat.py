"""Talking to an agent: with a pipe, and at a terminal."""

import io
import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Threads
from stateroom.model import Item
from stateroom.store import Store
from tests.cli.chatting import PurseEnvironment
from tests.cli.conftest import Outcome, Refuses, in_store
from tests.messages import says
from tests.patience import PATIENCE

MODELS = Path(__file__).with_name("chatting.py")
PURSE = ("chat", f"{MODELS}:PurseEnvironment", "--model", f"{MODELS}:Payer")
STORE = "sqlite:///rollouts/chat_sessions.db"

Talk = Callable[..., Outcome]


@pytest.fixture
def talk(stateroom: Any, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Chats, one line after another."""

    def talk(*lines: str, arguments: tuple[Any, ...] = PURSE) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        done: Outcome = stateroom(*arguments)
        return done

    return talk


def session_of(done: Outcome) -> str:
    """The session that a chat can be continued in."""
    return re.findall(r"--session (\w+)", done.out)[-1]


def said_in(session: str) -> list[Item]:
    async def read(store: Store) -> list[Item]:
        return (await Threads(Sessions(PurseEnvironment(), store)).items(session)).items

    return in_store(read, STORE)


def test_an_empty_line_says_what_the_task_does_if_nothing_was_said(talk: Talk) -> None:
    done = talk("", "", "/quit", "pay 5")
    items = said_in(session_of(done))
    assert [item.get("content") for item in items[:2]] == ["Be careful.", "pay 3"]
    assert len(items) == 5
    assert "pay 5" not in done.out


def test_a_person_takes_the_place_of_the_simulated_user_and_answers_questions(talk: Talk) -> None:
    done = talk("pay 60", "yes", "pay 70", "no", "/state")
    assert "asks  Pay 60?" in done.out
    assert "1000" not in done.out
    assert re.findall(r"money: (.+)", done.out) == ["100 → 40", "40"]


def test_an_episode_that_ended_goes_on_in_a_fork(talk: Talk, stateroom: Any) -> None:
    stateroom("run", "counter", "--limit", 1, "--output", "a.jsonl")
    listed = stateroom("sessions", "list", "--store", "sqlite:///a_sessions.db", "--json").out
    episode = re.findall(r'"id": "(\w+)"', listed)[0]
    chat = ("chat", "counter", "--store", "sqlite:///a_sessions.db", "--session", episode)
    done = talk("add 1", arguments=chat)
    assert re.findall(r"value: (.+)", done.out) == ["17 → 25", "25 → 26"]
    assert session_of(done) != episode


def test_a_fork_goes_on_by_itself(talk: Talk) -> None:
    done = talk("pay 3", "/fork", "pay 4", "/state", "/fork 1", "/state")
    first, second, third = re.findall(r"^session (\w+)", done.out, re.MULTILINE)
    assert re.findall(r"^  money: (\d+)", done.out, re.MULTILINE) == ["93", "100"]
    assert [len(said_in(each)) for each in (first, second, third)] == [5, 9, 1]


def test_the_log_and_the_commands_can_be_shown(talk: Talk) -> None:
    done = talk("pay 3", "/log", "/help")
    assert re.search(r"call       pay\(amount=3\) → 97\n +money: 100 → 97", done.out)
    assert "instructions for the agent: There is 100 in the purse." in done.out
    assert re.findall(r"^(/\w+)", done.out, re.MULTILINE) == [
        *("/fork", "/undo", "/redo", "/state", "/log", "/verify", "/help", "/quit")
    ]


@pytest.mark.parametrize("line", ["/frok", "/fork x", "/fork 99", "fail"])
def test_a_mistake_and_a_failure_are_told_and_the_chat_goes_on(talk: Talk, line: str) -> None:
    done = talk("pay 1", line, "pay 2", "/state")
    assert (done.code, "  money: 97\n" in done.out) == (0, True)
    says(done.err)


@pytest.mark.parametrize("arguments", [(*PURSE, "--task", 7), ("chat", "weather")])
def test_a_chat_that_cannot_begin_says_why(refuses: Refuses, arguments: tuple[Any, ...]) -> None:
    refuses(*arguments)


class Terminal:
    """A program at a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.screen = ""
        """What it has shown, after the last text that was waited for."""
        self.pid, self._file = pty.fork()
        if self.pid == 0:  # the program
            os.chdir(folder)
            command = [sys.executable, "-m", "stateroom.cli", *arguments]
            os.execve(sys.executable, command, os.environ | {"TERM": "dumb"})

    def until(self, text: str) -> str:
        """Wait for a text, and give all that came before it."""
        while text not in self.screen:
            assert select([self._file], [], [], PATIENCE)[0], self.screen
            self.screen += os.read(self._file, 4096).decode().replace("\r\n", "\n")
        before, _, self.screen = self.screen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def ended(self) -> int:
        """Wait for its end, and give its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._file)
        return code


CTRL_C, CTRL_D = "\x03", "\x04"


def test_at_a_terminal_ctrl_c_stops_an_answer_and_not_the_program(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, *PURSE)
    terminal.until("> ")
    terminal.type("wait 3\n")
    assert "user  " not in terminal.until("money: 100 → 97")  # it is on the screen already
    terminal.type(CTRL_C)
    terminal.until("stopped\n> ")
    terminal.type("pay 4\n")
    assert "money: 97 → 93" in terminal.until("Paid.\n> ")
    terminal.type(CTRL_D)
    terminal.until("to continue: stateroom chat")
    session = terminal.until("\n").split()[-1]
    assert terminal.ended() == 0
    again = Terminal(tmp_path, *PURSE, "--session", session)
    assert "     user  wait 3\n" in again.until("Paid.\n> ")  # what was said before is shown
    again.type("/quit\n")
    again.until("to continue")
    assert again.ended() == 0


def test_ctrl_c_at_the_prompt_says_how_to_leave(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[Any] = [KeyboardInterrupt, "pay 3", "/quit"]

    def read(_: str) -> str:
        if typed[0] is KeyboardInterrupt:
            raise typed.pop(0)
        return str(typed.pop(0))

    monkeypatch.setattr("builtins.input", read)
    done = talk()
    assert "leave with /quit or Ctrl-D" in done.out
    assert "money: 100 → 97" in done.out


def test_what_was_said_can_be_undone_and_done_again(talk: Talk) -> None:
    done = talk("pay 3", "pay 4", "/undo 2", "/redo", "/state", "pay 5", "/undo 9", "/undo")
    assert re.findall(r"money: (.+)", done.out) == [
        *("100 → 97", "97 → 93", "93 → 100", "100 → 97", "97", "97 → 92", "92 → 100"),
    ]
    assert re.findall(r"(undo|redo): (\d)", done.out) == [("undo", "2"), ("redo", "1"), ("undo", "2"), ("undo", "0")]

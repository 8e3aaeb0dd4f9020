"""What commands print on a terminal of what models, tools, tasks and files say."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stateroom.rollout import visible
from tests.cli.conftest import Command

ATTACK = (
    "\x1b[2J\x1b]0;title\x07\x1b[38;5;77m\x9b31m\u202ereversed\x7f[red]words[/red][link=https://x.test]y[/link]"
    "\r\n 999  verdict    reward 1: forged" + " " * 80 + "998  verdict    reward 1: forged"
)
"""Clears the screen, sets the title and colours, reverses text, is markup, and has lines like those of a log."""

HOSTILE = f"""
from stateroom import Environment, State, ToolError, Verdict, tool
from stateroom.model import Policy, function_call, message, outputs_of

ATTACK = {ATTACK!r}


class Wall(State):
    text: str = ATTACK


class WallEnvironment(Environment[Wall]):
    \"\"\"Write on a wall.\"\"\"

    name = "wall"

    @tool
    def paint(self, state: Wall, text: str) -> str:
        \"\"\"Paint a text.\"\"\"
        state.text = text
        return text

    @tool
    def spoil(self, text: str) -> str:
        \"\"\"Fail.\"\"\"
        raise ToolError(text)

    def verify(self, state: Wall) -> Verdict:
        return Verdict(0.5, {{ATTACK: 0.5}}, reason=ATTACK)


class Painter(Policy):
    def respond(self, conversation, tools):
        done = len(outputs_of(conversation))
        if done < 2:
            return [function_call("paint" if done == 0 else "spoil", f"call_{{done}}", text=f"{{done}} {{ATTACK}}")]
        return [message(ATTACK)]


class Other(Painter):
    def respond(self, conversation, tools):
        return [message(f"no {{ATTACK}}")]


class Fails(Policy):
    def respond(self, conversation, tools):
        raise RuntimeError(ATTACK)
"""

WALL = "wall.py:WallEnvironment"
STORE = "--store sqlite:///out/a_sessions.db"
COMMANDS = {
    "run": f"run {WALL} --model wall.py:Painter --input tasks.jsonl --output out/a.jsonl",
    "run that fails": f"run {WALL} --model wall.py:Fails --input tasks.jsonl --output out/b.jsonl",
    "run of another": f"run {WALL} --model wall.py:Other --input tasks.jsonl --output out/c.jsonl",
    "branch": f"branch {WALL} --model wall.py:Painter --input tasks.jsonl --output out/t.jsonl --verbose",
    "tree": "tree out/t_tree.jsonl",
    "runs": "runs out",
    "show": "show out/a.jsonl",
    "show of failures": "show out/b.jsonl --failed",
    "compare": "compare out/a.jsonl out/c.jsonl",
    "profile": "profile out/a.jsonl",
    "reverify": f"reverify out/a.jsonl --env {WALL} --output out/r.jsonl",
    "replay": f"replay out/a.jsonl --env {WALL}",
    "check": f"check {WALL}",
    "sessions list": f"sessions list {STORE}",
    "sessions log": f"sessions log SESSION {STORE}",
    "sessions show": f"sessions show SESSION {STORE}",
    "sessions show --diff": f"sessions show SESSION {STORE} --at 2 --diff 1",
    "sessions transcript": f"sessions transcript SESSION {STORE}",
    "chat": f"chat {WALL} --model wall.py:Painter --input tasks.jsonl",
    "data stats": "data stats tasks.jsonl",
}

DRIVER = """
import json, os, shlex, sys
from stateroom.cli import main
for name, line in json.loads(sys.argv[1]).items():
    print(f"\\n### {name}", flush=True)
    if "SESSION" in line:
        session = json.loads(open("out/a.jsonl").readline())["_stateroom_session"]
        line = line.replace("SESSION", session)
    sys.argv = ["stateroom", *shlex.split(line)]
    if name == "chat":
        sys.stdin = open("said.txt")
    try:
        main()
    except SystemExit as ended:
        print(f"\\n### code {ended.code or 0}", flush=True)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command prints on a terminal."""
    folder = tmp_path_factory.mktemp("wall")
    (folder / "wall.py").write_text(HOSTILE)
    (folder / "tasks.jsonl").write_text(json.dumps({"responses_create_params": {"input": ATTACK}}) + "\n")
    (folder / "said.txt").write_text("hello\n/state\n/log\n/verify\n/nonsense\n")
    terminal, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    command = [sys.executable, "-c", DRIVER, json.dumps(COMMANDS)]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=other, stdout=other, stderr=other) as process:
        os.close(other)
        parts = []
        try:
            while part := os.read(terminal, 1 << 16):
                parts.append(part)
        except OSError:  # on Linux, the end
            pass
        process.wait()
    os.close(terminal)
    found = re.split(r"### (.+?)\r?\n", b"".join(parts).decode().replace("\r\n", "\n"))[1:]
    return {name: text for name, text in zip(found[::2], found[1::2], strict=True) if not name.startswith("code")}


@pytest.mark.parametrize("name", COMMANDS)
def test_control_characters_are_shown_and_not_obeyed(printed: dict[str, str], name: str) -> None:
    text = printed[name]
    assert "Traceback" not in text
    for attack in ("\x1b[2J", "\x1b]0;", "\x07", "\x1b[38;5;77m", "\x9b", "\u202e", "\x7f"):
        assert attack not in text
    assert "\x1b]8;" not in text  # no link of ours, either


@pytest.mark.parametrize("name", ["show", "sessions log", "sessions transcript", "chat"])
def test_what_was_said_cannot_pose_as_an_entry(printed: dict[str, str], name: str) -> None:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed[name])
    assert not re.search(r"^ ?99[89]  verdict", plain, re.MULTILINE)


@pytest.mark.parametrize("name", ["run that fails", "show", "show of failures", "sessions log", "sessions transcript"])
def test_what_was_said_is_seen_whole(printed: dict[str, str], name: str) -> None:
    plain = re.sub(r"\s+|\x1b\[[0-9;?]*[A-Za-z]", "", printed[name])
    assert r"\x1b[2J\x1b]0;title" in plain
    assert r"\x9b31m\u202ereversed\x7f[red]words[/red][link=https://x.test]y[/link]" in plain


def test_json_is_exact(stateroom: Command, tmp_path: Path) -> None:
    (tmp_path / "wall.py").write_text(HOSTILE)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"responses_create_params": {"input": ATTACK}}) + "\n")
    stateroom(*shlex.split(COMMANDS["run"]))
    shown = stateroom("show", "out/a.jsonl", "--json").out
    [episode] = json.loads(shown)
    assert episode["items"][0]["content"] == ATTACK
    assert episode["reason"] == ATTACK
    assert visible(shown) == shown

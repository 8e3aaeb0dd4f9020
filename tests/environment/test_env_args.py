"""Constructor arguments of environments: typed by the signature, from the command line, Python or a task row."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

import stateroom
from stateroom import tool
from stateroom.environment import TypedText, make_environment, variant_of
from stateroom.errors import BadTask, DefinitionError, NotFound
from stateroom.model import Scripted
from stateroom.rollout import RunFiles, replay_rollouts, rescore_rollouts
from stateroom.store import open_store
from tests.cli.conftest import stateroom as stateroom_command  # noqa: F401 - a fixture
from tests.environments import Unjudged
from tests.messages import raises

SOURCE = '''
from typing import Literal
from stateroom import Environment, State, tool
from stateroom.model import Policy, function_call, message, outputs_of

class Score(State):
    points: int = 0

class Game(Environment[Score]):
    """A game."""

    def __init__(self, difficulty: Literal["easy", "hard"] = "easy", lives: int = 3, names: list[str] | None = None):
        self.difficulty, self.lives, self.names = difficulty, lives, names

    @tool
    def play(self, state: Score) -> int:
        """Play."""
        state.points += {"easy": 1, "hard": 10}[self.difficulty]
        return state.points

    def verify(self, state: Score) -> float:
        return float(state.points * self.lives)

class Plays(Policy):
    def respond(self, conversation, tools):
        return [message("Done.")] if outputs_of(conversation) else [function_call("play", "c")]
'''


class Game(Unjudged[None]):
    """Takes arguments of several types."""

    def __init__(
        self,
        level: int,
        mode: Literal["easy", "hard"] = "easy",
        *,
        names: list[str] | None = None,
        text: str = "",
        ratio=0.5,
        other=None,
        owner: Path | None = None,
    ) -> None:
        self.given = (level, mode, names, text, ratio, other, owner)

    @tool
    def look(self) -> None:
        """Look."""


def typed(**given: str) -> Any:
    return make_environment(Game, {name: TypedText(value) for name, value in given.items()}).given  # type: ignore[attr-defined]


def test_what_was_typed_becomes_what_the_signature_says() -> None:
    assert typed(level="3") == (3, "easy", None, "", 0.5, None, None)
    given = typed(level="3", mode="hard", names='["a"]', text="7", ratio="2", other='{"a": 1}', owner="x")
    assert given == (3, "hard", ["a"], "7", 2.0, {"a": 1}, Path("x"))
    assert typed(level="3", names="null", other="plain")[2:6:3] == (None, "plain")


@pytest.mark.parametrize(("given", "error"), [({}, DefinitionError), ({"lvl": "1"}, NotFound)])
def test_an_argument_that_is_missing_or_unknown_is_named(given: dict[str, str], error: type[Exception]) -> None:
    with raises(error):
        typed(**given)


@pytest.mark.parametrize(("name", "text"), [("level", "x"), ("mode", "odd")])
def test_an_argument_of_a_wrong_type_is_named(name: str, text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        typed(**{"level": "1", name: text})
    assert f"'{name}'" in str(caught.value)


def test_an_instance_has_its_arguments() -> None:
    with raises(DefinitionError):
        make_environment(Game(1), {"level": 2})
    with raises(BadTask):
        variant_of(Game(1), {"env_args": {"level": 2}})


def test_rows_with_equal_arguments_share_an_instance() -> None:
    made: Any = make_environment(Game, {"level": 1})
    hard: Any = variant_of(made, {"env_args": {"mode": "hard", "level": 1}})
    assert hard.given[:2] == (1, "hard")
    assert variant_of(made, {"env_args": {"level": 1, "mode": "hard"}}) is hard
    assert variant_of(made, {}) is variant_of(made, {"env_args": {}}) is made
    hard.parse_task({"env_args": {"mode": "hard"}})
    with raises(BadTask):
        made.parse_task({"env_args": {"mode": "hard"}})
    for wrong in ({"nope": 1}, "hard"):
        with raises(BadTask):
            variant_of(made, {"env_args": wrong})


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.py").write_text(SOURCE)
    rows: list[dict[str, Any]] = [{}, {"env_args": {"difficulty": "hard"}}, {"env_args": {"lives": 1}}]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return "game.py:Game"


@pytest.mark.filterwarnings("ignore:.* no prompt")
async def test_each_row_of_a_file_runs_in_the_instance_that_it_asks_for(game: str) -> None:
    options: Any = {"input": "tasks.jsonl", "model": "game.py:Plays", "output": "a.jsonl"}
    result = await stateroom.arun(game, env_args={"lives": 2}, **options)
    assert [each.reward for each in result.episodes] == [2, 20, 1]
    assert result.episodes[1].session.fork(at=1).call("play").output == 10
    environment = make_environment(game, {"lives": 4})
    async with open_store("sqlite:///a_sessions.db") as store:
        replays = await replay_rollouts(environment, Path("a.jsonl"), store)
        assert [(each.differences, each.refused) for each in replays] == [([], None)] * 3
        report = await rescore_rollouts(environment, Path("a.jsonl"), RunFiles(Path("b.jsonl")), store)
    assert sorted(row["reward"] for row in report.rows) == [1, 4, 40]
    with raises(BadTask):
        stateroom.run(game, input=[{}, {"env_args": {"no": 1}}], model="game.py:Plays")


@pytest.mark.filterwarnings("ignore:.* no prompt")
async def test_a_stateless_environment_whose_answers_are_stored(game: str) -> None:
    rows = [{"env_args": {"mode": "hard"}}, {}]
    result = await stateroom.arun(
        Game, env_args={"level": 1}, input=rows, model=Scripted(["Done."]), store="sqlite:///a.db"
    )
    assert (len(result.episodes), result.failures) == (2, [])


def test_every_command_takes_them(game: str, stateroom_command: Any) -> None:  # noqa: F811
    command = stateroom_command
    given = ["--env-arg", "difficulty=hard", "--env-arg", "lives=5"]
    Path("one.jsonl").write_text("{}\n")
    run = ["run", game, "-m", "game.py:Plays", "-i", "one.jsonl", "-o", "a.jsonl", *given, "--json"]
    assert json.loads(command(*run).out)["metrics"]["mean/reward"] == 50
    branch = ["branch", game, "-m", "game.py:Plays", "-i", "one.jsonl", *given, "--json"]
    assert json.loads(command(*branch).out)["metrics"]["mean/reward"] == 50
    again = ["reverify", "a.jsonl", "--env", game, "-o", "b.jsonl", "--json"]
    assert json.loads(command(*again).out)["metrics"]["mean/reward"] == 50
    other = ["--env-arg", "lives=3"]
    assert command(*again, *other).code == 2
    assert json.loads(command(*again, *other, "--force").out)["metrics"]["mean/reward"] == 30
    assert command(*again[:5], "a.jsonl", "--force").code == 2
    assert command("replay", "a.jsonl", "--env", game).code == 0
    assert command("replay", "a.jsonl", "--env", game, "--env-arg", "difficulty=easy").code == 1
    assert command("check", game, "--input", "one.jsonl", *given).code in (0, 1)
    for wrong, told in (("difficulty", "is not NAME=VALUE, such as difficulty=hard"), ("x=1", "no argument 'x'")):
        for words in (["run"], ["branch"], ["serve"], ["check"]):
            done = command(*words, game, "--env-arg", wrong)
            assert done.code in (1, 2)
            assert told in " ".join((done.err + done.out).replace("│", " ").split())

"""`stateroom serve`: serve environments over HTTP."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from stateroom.cli.command import Given
from stateroom.cli.configuration import ConfigFiles, Configuration, names_and_overrides, serve_options
from stateroom.cli.studio import ServeWithStudio, start, studio_of


class ServeCommand(TyperCommand):
    """The command, whose `--studio` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, each in enumerate(args):
            if each == "--studio" and args[place + 1 : place + 2] not in (["read"], ["full"]):
                args = [*args[:place], "--studio=full", *args[place + 1 :]]
        return super().parse_args(ctx, args)


def serve(given: Given[ServeWithStudio], config: ConfigFiles = None) -> None:
    """Serve environments over HTTP and MCP: one at the root, several under /NAME/.

    Session tokens are signed with STATEROOM_SECRET, or with a secret that is made on first use and kept in your data
    folder. Several secrets, separated by commas, let a new one take over: the first signs.

    Example: stateroom serve counter

    Example: stateroom serve counter weather --store sqlite:///rooms.db --workers 4 --port 9000

    With a model that answers in threads: stateroom serve counter --model chat:qwen3@http://127.0.0.1:9000/v1

    With an agent for NeMo Gym's rollout collection: stateroom serve counter --agent reference

    With a page for people: stateroom serve counter --studio

    While you write an environment: stateroom serve mine.py:MyEnvironment --reload

    Environments of a file, as it says: stateroom serve --config stateroom.yaml NAME serve.port=9000
    """
    names, changes = names_and_overrides(given.typed.get("environments", ()), config)
    chosen = serve_options(Configuration.load(config, changes), names, given) if config else given.options({})
    start(chosen, [] if chosen.studio is None else [studio_of(chosen.studio, chosen)])

"""Configurations of NeMo Gym, converted: its servers, agents and datasets as environments, models and runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from stateroom.config.document import Node, Origin, SizeLimit, merged, read_yaml
from stateroom.environment import registered
from stateroom.errors import BadConfig

PORTED = {
    "example_session_state_mgmt": "counter",
    "example_multi_step": "extraction",
    "example_single_tool_call": "weather",
}
"""Resources servers of NeMo Gym that the gallery has under another name."""

NOT_ARGUMENTS = frozenset(
    {"entrypoint", "domain", "description", "value", "verified", "verified_url", "host", "port", "num_workers"}
)
"""Keys of a resources server that say nothing to the environment."""

MODELS = {"openai_model": ("responses", "openai_"), "vllm_model": ("chat", "")}
"""Model servers of NeMo Gym: the API behind each, and how its keys begin."""

NO_KEYS = frozenset({"", "none", "null", "dummy", "empty", "EMPTY"})
"""What is written for the key of a server that needs none."""

MAX_REFERENCES = 100
"""References that a value may lead through."""

OPEN, CLOSE = "\0", "\1"
"""What stands for the braces of our own references while Gym's are replaced."""

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")

Mapped = dict[str, Any]

EMPTY = Node({}, Origin(""))


class GymImport(NamedTuple):
    """A configuration of NeMo Gym as one of ours."""

    config: Mapped
    notes: list[str]
    """What a person has to do, or what has no counterpart."""


def import_gym(paths: Sequence[Path]) -> GymImport:
    """Convert configuration files of NeMo Gym, of which later ones change earlier ones.

    A reference to a value that the files do not have becomes an environment variable of that name.
    """
    notes: list[str] = []
    size = SizeLimit()
    document = reduce(merged, (_read(path, notes, size) for path in paths), EMPTY)
    return _Import(_inherited(document), notes).convert()


def _read(path: Path, notes: list[str], size: SizeLimit) -> Node:
    """What a file says together with those in its `config_paths`, which it changes."""
    own = read_yaml(path, size)
    if not isinstance(own.value, dict | None):
        raise BadConfig(f"{path}: should be a mapping of names to servers")
    servers = {**(own.value or {})}
    files = EMPTY
    for name in servers.pop("config_paths", EMPTY).plain() or ():
        places = [Path(name), *(parent / name for parent in path.parents)]  # of Gym's folder, wherever that is
        there = next((place for place in places if place.is_file()), None)
        if there is None:
            notes.append(f"config_paths: there is no {name} here; import it from Gym's folder")
        else:
            files = merged(files, _read(there, notes, size))
    return merged(files, Node(servers, own.origin))


def _inherited(document: Node) -> Mapped:
    """The servers with what they inherit; what is inherited from is no server of its own, as in Gym."""
    bases = {name: server.at(["_inherit_from"]) for name, server in document.value.items()}
    base_of = {name: base.value for name, base in bases.items() if base is not None}
    servers = {name: server for name, server in document.value.items() if name not in base_of.values()}
    for name, base in base_of.items():
        server = merged(document.value.get(base, EMPTY), servers[name])
        servers[name] = Node({key: part for key, part in server.value.items() if key != "_inherit_from"}, server.origin)
    return {name: server.plain() for name, server in servers.items()}


class _Import:
    """Converts one document."""

    def __init__(self, document: Mapped, notes: list[str]) -> None:
        self._document = document
        self._notes = notes

    def convert(self) -> GymImport:
        servers = dict(self._servers("resources_servers"))
        environments: Mapped = {name: self._environment(name, *each) for name, each in servers.items()}
        models = {name: self._model(name, *each) for name, each in self._servers("responses_api_models")}
        self._note_missing_models(models)
        runs: dict[str, Mapped] = {}
        for name, (_, agent) in self._servers("responses_api_agents"):
            self._add_agent(name, agent, environments, runs)
        known = {name: each for name, each in models.items() if each}
        config = {"environments": environments, "models": known, "runs": runs, **self._served(servers)}
        sections = {name: section for name, section in config.items() if section}
        return GymImport(sections, list(dict.fromkeys(self._notes)))

    def _note_missing_models(self, models: Mapped) -> None:
        """Note the models that agents name, and that no file has; Gym gets them from another file."""
        named = {
            (agent.get("model_server") or {}).get("name") for _, (_, agent) in self._servers("responses_api_agents")
        }
        for name in sorted(filter(None, named - models.keys())):
            add = "import the file of its model server too, or add it to models"
            self._notes.append(f"models.{name}: the files do not have it; {add}")

    def _servers(self, kind: str) -> Iterator[tuple[str, tuple[str, Mapped]]]:
        """The servers of a kind by name, each with its implementation and the configuration of that."""
        for name, value in self._document.items():
            kinds = value.get(kind) if isinstance(value, dict) else None
            if isinstance(kinds, dict) and kinds:
                implementation, options = next(iter(kinds.items()))
                yield name, (str(implementation), options or {})

    def _environment(self, name: str, implementation: str, options: Mapped) -> Mapped:
        known = implementation if implementation in registered() else PORTED.get(implementation)
        if known is None:
            self._notes.append(f"environments.{name}.environment: name your port of {implementation}, as path.py:Class")
        arguments = {key: self._text(value) for key, value in options.items() if key not in NOT_ARGUMENTS}
        if arguments:
            self._notes.append(f"environments.{name}.args: its constructor must take {', '.join(arguments)}")
        return {"environment": known or implementation, **({"args": arguments} if arguments else {})}

    def _model(self, name: str, implementation: str, options: Mapped) -> Mapped:
        """A model; empty if there is no counterpart."""
        if implementation not in MODELS:
            self._notes.append(f"models.{name}: {implementation} has no counterpart; name a model that has one")
            return {}
        kind, prefix = MODELS[implementation]
        model, url, key = (self._text(options.get(f"{prefix}{each}")) for each in ("model", "base_url", "api_key"))
        if model is None or url is None:
            self._notes.append(f"models.{name}: it does not say which model, and where")
            return {}
        urls = ",".join(url) if isinstance(url, list) else url
        return {"model": f"{kind}:{model}@{urls}", **self._key(name, key)}

    def _key(self, name: str, key: Any) -> Mapped:
        """The environment variable with a model's key; a key itself is not copied."""
        if variable := re.fullmatch(r"\$\{env:(\w+)(?:,.*)?\}", str(key)):
            return {"api_key_env": variable[1]}
        if key is not None and str(key) not in NO_KEYS:
            self._notes.append(f"models.{name}: its key is not copied; name the variable that has it in api_key_env")
        return {}

    def _add_agent(self, name: str, agent: Mapped, environments: Mapped, runs: dict[str, Mapped]) -> None:
        """Add the runs of an agent: one for each of its datasets, together with other agents' of the same split."""
        server = (agent.get("resources_server") or {}).get("name")
        if server not in environments:
            self._notes.append(f"{name}: it has no resources server {server!r}, so there is no run of it")
            return
        for dataset in agent.get("datasets") or ():
            entry = f"{server}-{dataset['name']}"
            environments[entry] = {**deepcopy(environments[server]), "input": self._text(dataset["jsonl_fpath"])}
            if "prompt_config" in dataset:
                self._notes.append(f"environments.{entry}.input: make its prompts with stateroom data render")
            options = {
                "model": (agent.get("model_server") or {}).get("name"),
                "max_steps": agent.get("max_steps"),
                "repeats": dataset.get("num_repeats") or self._document.get("num_repeats"),
                "concurrency": self._document.get("num_samples_in_parallel"),
                "limit": self._document.get("limit"),
                "settings": self._document.get("responses_create_params"),
            }
            options = {key: self._text(value) for key, value in options.items() if value is not None}
            split = str(dataset.get("type") or dataset["name"])
            run = runs.setdefault(split, {"environments": [], **options})
            if options != {key: value for key, value in run.items() if key != "environments"}:
                run = runs.setdefault(f"{split}-{name}", {"environments": [], **options})
            run["environments"].append(entry)

    def _served(self, servers: Mapping[str, tuple[str, Mapped]]) -> Mapped:
        """How to serve: as the one resources server that has a port."""
        placed = {name: options for name, (_, options) in servers.items() if "port" in options}
        if len(placed) > 1:
            self._notes.append(f"serve: {', '.join(placed)} have ports of their own; one server has them below /NAME/")
        if len(placed) != 1:
            return {}
        [(name, options)] = placed.items()
        names = {"host": "host", "port": "port", "num_workers": "workers"}
        chosen = {ours: self._text(options[theirs]) for theirs, ours in names.items() if options.get(theirs)}
        return {"serve": {"environments": [name], **chosen}}

    def _text(self, value: Any) -> Any:
        """A value with its references replaced."""
        if isinstance(value, dict):
            return {name: self._text(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._text(each) for each in value]
        if not isinstance(value, str):
            return value
        for _ in range(MAX_REFERENCES):
            reference = _REFERENCE.search(value)  # the innermost first
            if reference is None:
                return value.replace(OPEN, "${").replace(CLOSE, "}")
            made = self._reference(reference[1])
            if reference[0] == value and not isinstance(made, str):
                return self._text(made)
            value = value.replace(reference[0], str(made))
        raise BadConfig(f"{value:.100}: a reference leads to itself")

    def _reference(self, name: str) -> Any:
        kind, _, rest = name.partition(":")
        if kind == "oc.env":
            return f"{OPEN}env:{rest}{CLOSE}"
        name, _, default = rest.partition(",") if kind == "oc.select" else (name, "", "")
        target: Any = self._document
        for step in name.split("."):
            target = target.get(step) if isinstance(target, dict) else None
        if target is not None or default:
            return default if target is None else target
        variable = re.sub(r"\W", "_", name).upper()
        self._notes.append(f"{name}: the files do not have it; set the environment variable {variable}")
        return f"{OPEN}env:{variable}{CLOSE}"

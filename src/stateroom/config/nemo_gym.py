"""Convert configurations of NeMo Gym: servers, agents and datasets become environments, models and runs."""

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
"""Resources servers of NeMo Gym that have another name in the gallery."""

NOT_ARGUMENTS = frozenset(
    {"entrypoint", "domain", "description", "value", "verified", "verified_url", "host", "port", "num_workers"}
)
"""Keys of a resources server that are not arguments of the environment."""

MODELS = {"openai_model": ("responses", "openai_"), "vllm_model": ("chat", "")}
"""Model servers of NeMo Gym: the API of each, and the prefix of its keys."""

NO_KEYS = frozenset({"", "none", "null", "dummy", "empty", "EMPTY"})
"""Placeholder for the key of a server that needs none."""

MAX_REFERENCES = 100
"""The most references in a chain."""

OPEN, CLOSE = "\0", "\1"
"""Placeholders for the braces of our own references while Gym's are replaced."""

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")

Mapped = dict[str, Any]

EMPTY = Node({}, Origin(""))


class GymImport(NamedTuple):
    """A converted configuration."""

    config: Mapped
    notes: list[str]
    """Steps left for the user, and values without a counterpart."""


def import_gym(paths: Sequence[Path]) -> GymImport:
    """Convert configuration files of NeMo Gym; later files win.

    A reference to a value that the files do not contain becomes an environment variable of that name.
    """
    notes: list[str] = []
    size = SizeLimit()
    document = reduce(merged, (_read(path, notes, size) for path in paths), EMPTY)
    return _Import(_inherited(document), notes).convert()


def _read(path: Path, notes: list[str], size: SizeLimit) -> Node:
    """Read a file, merged over those in its `config_paths`."""
    own = read_yaml(path, size)
    if not isinstance(own.value, dict | None):
        raise BadConfig(f"{path}: must be a mapping of names to servers")
    servers = {**(own.value or {})}
    files = EMPTY
    for name in servers.pop("config_paths", EMPTY).plain() or ():
        places = [Path(name), *(parent / name for parent in path.parents)]  # Gym's folder may be any parent
        there = next((place for place in places if place.is_file()), None)
        if there is None:
            notes.append(f"config_paths: {name} not found; import the configuration from Gym's folder")
        else:
            files = merged(files, _read(there, notes, size))
    return merged(files, Node(servers, own.origin))


def _inherited(document: Node) -> Mapped:
    """The servers with inherited values; the base of another server is dropped, as in Gym."""
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
        """Note the models that agents name but no file defines; Gym gets them from another file."""
        named = {
            (agent.get("model_server") or {}).get("name") for _, (_, agent) in self._servers("responses_api_agents")
        }
        for name in sorted(filter(None, named - models.keys())):
            add = "also import the file of its model server, or add it to models"
            self._notes.append(f"models.{name}: not defined in the files; {add}")

    def _servers(self, kind: str) -> Iterator[tuple[str, tuple[str, Mapped]]]:
        """The servers of a kind by name, each with its implementation and configuration."""
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
            self._notes.append(f"environments.{name}.args: the constructor must accept {', '.join(arguments)}")
        return {"environment": known or implementation, **({"args": arguments} if arguments else {})}

    def _model(self, name: str, implementation: str, options: Mapped) -> Mapped:
        """A model; empty if there is no counterpart."""
        if implementation not in MODELS:
            self._notes.append(f"models.{name}: {implementation} has no counterpart; choose another model")
            return {}
        kind, prefix = MODELS[implementation]
        model, url, key = (self._text(options.get(f"{prefix}{each}")) for each in ("model", "base_url", "api_key"))
        if model is None or url is None:
            self._notes.append(f"models.{name}: add the name and URL of the model")
            return {}
        urls = ",".join(url) if isinstance(url, list) else url
        return {"model": f"{kind}:{model}@{urls}", **self._key(name, key)}

    def _key(self, name: str, key: Any) -> Mapped:
        """The environment variable with a model's key; a key itself is not copied."""
        if variable := re.fullmatch(r"\$\{env:(\w+)(?:,.*)?\}", str(key)):
            return {"api_key_env": variable[1]}
        if key is not None and str(key) not in NO_KEYS:
            self._notes.append(f"models.{name}: the API key is not copied; name its variable in api_key_env")
        return {}

    def _add_agent(self, name: str, agent: Mapped, environments: Mapped, runs: dict[str, Mapped]) -> None:
        """Add the runs of an agent: one for each split, which agents share."""
        server = (agent.get("resources_server") or {}).get("name")
        if server not in environments:
            self._notes.append(f"{name}: no run is written, because the resources server {server!r} is missing")
            return
        for dataset in agent.get("datasets") or ():
            entry = f"{server}-{dataset['name']}"
            environments[entry] = {**deepcopy(environments[server]), "input": self._text(dataset["jsonl_fpath"])}
            if "prompt_config" in dataset:
                self._notes.append(f"environments.{entry}.input: create the prompts with stateroom data render")
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
        """The `serve` section: from the only resources server with a port."""
        placed = {name: options for name, (_, options) in servers.items() if "port" in options}
        if len(placed) > 1:
            self._notes.append(f"serve: {', '.join(placed)} have separate ports; one server serves them under /NAME/")
        if len(placed) != 1:
            return {}
        [(name, options)] = placed.items()
        names = {"host": "host", "port": "port", "num_workers": "workers"}
        chosen = {ours: self._text(options[theirs]) for theirs, ours in names.items() if options.get(theirs)}
        return {"serve": {"environments": [name], **chosen}}

    def _text(self, value: Any) -> Any:
        """A value with all references replaced."""
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
        raise BadConfig(f"{value:.100}: circular reference")

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
        self._notes.append(f"{name}: not defined in the files; set the environment variable {variable}")
        return f"{OPEN}env:{variable}{CLOSE}"

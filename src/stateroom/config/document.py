"""YAML documents with includes and environment variables, in which each value knows its origin.

| in a file | meaning |
|---|---|
| `include: FILE`, or a list of files | files to include, relative to this one, which can override their values |
| `${env:NAME}` | the value of an environment variable, which must be set |
| `${env:NAME,DEFAULT}` | the same, with a default |
| `$${` | `${` itself |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stateroom.errors import BadConfig, NotFound
from stateroom.jsonl import open_regular

INCLUDE = "include"
COMMAND_LINE = "command line"
MERGE = "tag:yaml.org,2002:merge"

MAX_BYTES = 1 << 20
"""The largest size of a file, in bytes."""

MAX_FILES = 100
"""The most files in a document; a file that is included twice counts twice."""

MAX_NODES = 100_000
"""The most values in a document; values that an alias repeats count each time."""

_REFERENCE = re.compile(r"\$?\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"env:(?P<name>\w+)(?:,(?P<default>.*))?", re.DOTALL)


class Origin(NamedTuple):
    """Where a value comes from."""

    place: str
    """Such as `stateroom.yaml:7`."""
    variables: tuple[str, ...] = ()
    """The environment variables in the value."""
    written: str | None = None
    """The text as written in the file, with references to these variables."""

    def __str__(self) -> str:
        return ", ".join([self.place, *(f"variable {name}" for name in self.variables)])


class Node(NamedTuple):
    """A value of a document: a scalar, a list of nodes, or a dict of nodes."""

    value: Any
    origin: Origin

    def plain(self) -> Any:
        """The value without origins."""
        if isinstance(self.value, dict):
            return {name: each.plain() for name, each in self.value.items()}
        return [each.plain() for each in self.value] if isinstance(self.value, list) else self.value

    def at(self, path: Sequence[str | int]) -> Node | None:
        """The node at a path below; None if there is none."""
        node: Node | None = self
        for step in path:
            if node is None or not isinstance(node.value, dict | list):
                return None
            known = dict(enumerate(node.value)) if isinstance(node.value, list) else node.value
            node = known.get(step)
        return node


class SizeLimit:
    """Counts files and nodes, to bound documents that grow through aliases and includes."""

    def __init__(self) -> None:
        self._files = 0
        self._nodes = 0

    def add_file(self, path: Path) -> None:
        self._files += 1
        if self._files > MAX_FILES:
            raise BadConfig(f"{path}: includes more than {MAX_FILES} files")

    def add_nodes(self, number: int, origin: Origin) -> None:
        self._nodes += number
        if self._nodes > MAX_NODES:
            raise BadConfig(f"{origin}: more than {MAX_NODES:,} values, including those that aliases repeat")


def merged(first: Node, second: Node) -> Node:
    """Two nodes merged: mappings key by key; otherwise the second node wins."""
    if not (isinstance(first.value, dict) and isinstance(second.value, dict)):
        return second
    both = {name: merged(first.value[name], each) for name, each in second.value.items() if name in first.value}
    return Node({**first.value, **second.value, **both}, second.origin)


def read_document(paths: Sequence[Path], variables: Mapping[str, str] = os.environ) -> Node:
    """Read and merge files; later files win. Raises `BadConfig` with the file and line of a mistake."""
    size = SizeLimit()
    return reduce(merged, (_read(path, variables, (), size) for path in paths))


def read_yaml(path: Path, size: SizeLimit, variables: Mapping[str, str] | None = None) -> Node:
    """Read one file; without `variables`, references to environment variables are kept."""
    size.add_file(path)
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > MAX_BYTES:
        raise BadConfig(f"{path}: has more than {MAX_BYTES:,} bytes")
    return _Parser(str(path), variables, size).parse(text)


def overrides_of(texts: Sequence[str], variables: Mapping[str, str] = os.environ) -> Node:
    """Parse `KEY.KEY=VALUE` overrides of a command line; values are YAML."""
    root = Node({}, Origin(COMMAND_LINE))
    for text in texts:
        path, _, value = text.partition("=")
        node = _Parser(COMMAND_LINE, variables, SizeLimit(), has_lines=False).parse(value)
        for name in reversed(path.split(".")):
            node = Node({name: node}, Origin(COMMAND_LINE))
        root = merged(root, node)
    return root


def _read(path: Path, variables: Mapping[str, str], within: tuple[Path, ...], size: SizeLimit) -> Node:
    """Read a file; `within` are the files that include it."""
    if path.resolve() in within:
        raise BadConfig(f"{path} includes itself, by {' and '.join(str(each) for each in within)}")
    node = read_yaml(path, size, variables)
    if node.value is None:
        return Node({}, node.origin)
    if not isinstance(node.value, dict):
        raise BadConfig(f"{node.origin}: must be a mapping of keys to values")
    included = node.value.pop(INCLUDE, None)
    if included is None:
        return node
    names = included.value if isinstance(included.value, list) else [included]
    files = [_read(path.parent / str(each.value), variables, (*within, path.resolve()), size) for each in names]
    return reduce(merged, [*files, node])


class _Parser:
    """Parses YAML into nodes."""

    def __init__(
        self, name: str, variables: Mapping[str, str] | None, size: SizeLimit, *, has_lines: bool = True
    ) -> None:
        self._name = name
        self._variables = variables
        self._size = size
        self._has_lines = has_lines
        self._pairs: dict[int, dict[str, yaml.Node]] = {}
        """The keys and values of the mappings so far, by identity."""

    def parse(self, text: str) -> Node:
        try:
            self._loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            where = f"{self._name}:{text.count(chr(10), 0, error.position) + 1}" if self._has_lines else self._name
            raise BadConfig(f"{where}: not YAML: U+{error.character:04X} is not allowed") from None
        try:
            root = self._loader.get_single_node()
            return Node(None, Origin(self._name)) if root is None else self._node(root)
        except yaml.MarkedYAMLError as error:
            where = self._place(error.problem_mark) if error.problem_mark else self._name
            raise BadConfig(f"{where}: not YAML: {error.problem or error}") from None
        except yaml.YAMLError as error:
            raise BadConfig(f"{self._name}: not YAML: {error}") from None
        except RecursionError:
            raise BadConfig(f"{self._name}: nested too deeply, or an alias is within its own anchor") from None
        finally:
            self._loader.dispose()

    def _place(self, mark: Any) -> str:
        return f"{self._name}:{mark.line + 1}" if self._has_lines else self._name

    def _node(self, node: yaml.Node) -> Node:
        origin = Origin(self._place(node.start_mark))
        self._size.add_nodes(1, origin)
        if isinstance(node, yaml.MappingNode):
            return Node({name: self._node(value) for name, value in self._items(node).items()}, origin)
        if isinstance(node, yaml.SequenceNode):
            return Node([self._node(each) for each in node.value], origin)
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, origin)

    def _ensure_unique_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise BadConfig(f"{self._place(key.start_mark)}: {key.value}: duplicate key")
            seen.add(str(key.value))

    def _items(self, node: yaml.MappingNode) -> dict[str, yaml.Node]:
        """The keys and values of a mapping: its own, and those of others by `<<: *anchor`."""
        if id(node) in self._pairs:
            return self._pairs[id(node)]
        self._ensure_unique_keys(node)
        own: dict[str, yaml.Node] = {}
        others: dict[str, yaml.Node] = {}
        for key, value in node.value:
            where = self._place(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                raise BadConfig(f"{where}: a key must be a string")
            if key.tag != MERGE:
                own[key.value] = value
                continue
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(each, yaml.MappingNode):
                    raise BadConfig(f"{where}: << takes a mapping, or a list of mappings")
                items = self._items(each)
                self._size.add_nodes(len(items), Origin(where))
                others = {**items, **others}
        return self._pairs.setdefault(id(node), {**others, **own})

    def _scalar(self, node: yaml.ScalarNode, origin: Origin) -> Node:
        """A scalar with its variables replaced; without quotes, the result is parsed like text in the file."""
        names: list[str] = []
        variables = self._variables

        def replaced(found: re.Match[str]) -> str:
            assert variables is not None
            if found[0].startswith("$$"):
                return found[0][1:]
            variable = _VARIABLE.fullmatch(found[1])
            if variable is None:
                raise BadConfig(f"{origin}: {found[0]} should be ${{env:NAME}} or ${{env:NAME,DEFAULT}}")
            if variable["name"] in variables:
                names.append(variable["name"])
                return variables[variable["name"]]
            if variable["default"] is None:
                raise BadConfig(f"{origin}: the environment variable {variable['name']} is not set")
            return variable["default"]

        written = node.value
        text = written if variables is None else _REFERENCE.sub(replaced, written)
        if text != node.value:
            is_plain = node.style is None
            tag = self._loader.resolve(yaml.ScalarNode, text, (is_plain, not is_plain))  # type: ignore[no-untyped-call]
            node = yaml.ScalarNode(tag, text, node.start_mark, node.end_mark, node.style)
        try:
            value = self._loader.construct_object(node)
        except (ValueError, LookupError, AttributeError) as error:  # of a number, a boolean or a date
            raise BadConfig(f"{origin}: not YAML: {error}") from None
        return Node(value, origin._replace(variables=tuple(names), written=written) if names else origin)

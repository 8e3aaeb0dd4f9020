import ast
from pathlib import Path

from tests.messages import MESSAGES


def test_every_recorded_text_is_of_a_test() -> None:
    modules = {name.partition("::")[0] for name in MESSAGES.recorded}
    tests = {
        f"{module}::{node.name}"
        for module in modules
        if Path(module).exists()
        for node in ast.walk(ast.parse(Path(module).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert MESSAGES.recorded.keys() <= tests

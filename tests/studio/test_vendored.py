"""What lies in `static/vendor` is what its list says."""

import hashlib
import json
from pathlib import Path

import stateroom

STATIC = Path(stateroom.__file__).parent / "studio" / "static"
VENDOR = STATIC / "vendor"


def test_each_vendored_file_is_the_one_that_was_listed() -> None:
    listed = json.loads((VENDOR / "VENDORED.json").read_text())
    for row in listed:
        assert set(row) == {"name", "version", "file", "sha256", "licence"}
        content = (VENDOR / row["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["file"]
        assert b"sourceMappingURL" not in content
    types = {path.name for path in VENDOR.glob("*.d.ts")}
    assert {path.name for path in VENDOR.iterdir()} - types == {row["file"] for row in listed} | {
        "VENDORED.json",
        "LICENSES.txt",
    }


def test_each_vendored_package_has_its_licence() -> None:
    texts = (VENDOR / "LICENSES.txt").read_text()
    for row in json.loads((VENDOR / "VENDORED.json").read_text()):
        assert f"==== {row['name']} {row['version']} ({row['licence']}) ====" in texts

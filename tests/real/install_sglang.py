"""Install a real SGLang for the CPU into a virtual environment of its own.

SGLang's package names builds for GPUs, so what it needs on a CPU is listed in ``sglang_requirements.txt``, and the
packages of GPU builds come without dependencies. Its kernel package, which exists for GPUs only, is replaced by
``kernel_stub``. Two routers come along, which need nothing that SGLang does not need.

Usage: ``python tests/real/install_sglang.py VENV_DIRECTORY`` (the virtual environment is created if need be).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

SGLANG = "sglang==0.5.23"
TORCH = "torch==2.13.0"
ROUTERS = ("sglang-router==0.3.2", "vllm-router==0.1.17")
WITHOUT_DEPENDENCIES = (SGLANG, "torchvision==0.28.0", "triton==3.9.0", *ROUTERS)
HERE = Path(__file__).parent


def main() -> None:
    environment = Path(sys.argv[1])
    done = environment / f".installed-{'-'.join((SGLANG, *ROUTERS))}"
    if done.exists():
        return
    venv.create(environment, with_pip=True, clear=True)
    python = str(environment / "bin" / "python")

    def install(*arguments: str) -> None:
        subprocess.run(
            [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *arguments],
            check=True,
        )

    install(TORCH)
    install("-r", str(HERE / "sglang_requirements.txt"))
    install("--no-deps", *WITHOUT_DEPENDENCIES)
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    packages = Path(asked.stdout.strip())
    # This torchvision is a build for GPUs: the operators that this file describes are not in it.
    (packages / "torchvision" / "_meta_registrations.py").write_text("", encoding="utf-8")
    shutil.copytree(HERE / "kernel_stub" / "sgl_kernel", packages / "sgl_kernel", dirs_exist_ok=True)
    done.touch()


if __name__ == "__main__":
    main()

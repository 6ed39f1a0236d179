"""Check an installed perfnb, as part of `make dist`. Run this file with the Python of an environment for this purpose.

The checks are the import, `perfnb show` with a small trace, and `%load_ext perfnb` with a profile in a kernel. They
must not use the checkout, so this file does not import anything from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

#: The number of seconds for each part. The first part takes long because torch is imported for the first time.
LIMIT_S = 300

IMPORT = """
import pathlib, perfnb
print(pathlib.Path(perfnb.__file__).resolve().parent)
"""

TRACE = """
from perfnb.labs.made_traces import trace_file
print(trace_file("training_b"))
"""

CELLS = (
    "%load_ext perfnb",
    """import torch

model = torch.nn.Linear(8, 4)
batches = [torch.randn(16, 8)] * 2""",
    """%%profile_step --into p --budget 1 --no-stacks for x in batches
model(x).sum().backward()""",
    "assert p.layers.loc['model', 'forward_ms'] > 0",
    "assert p.phases['share'].sum() > 0.999",
)


def printed(command: list[str], folder: Path) -> str:
    """Return a command's standard output. If the command fails, exit with its output."""
    own = {"PERFNB_CACHE": str(folder / "cache"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_cells(folder: Path) -> None:
    """Run the cells in a kernel in this environment."""
    from jupyter_client.manager import start_new_kernel

    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    manager, client = start_new_kernel(startup_timeout=LIMIT_S, cwd=str(folder))
    try:
        for cell in CELLS:
            reply = client.execute_interactive(cell, timeout=LIMIT_S, output_hook=lambda message: None)
            if reply["content"]["status"] != "ok":
                sys.exit(f"A cell failed:\n{cell}\n" + "\n".join(reply["content"].get("traceback", [])))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    """Run all checks."""
    scripts = Path(sysconfig.get_path("scripts"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = Path(printed([sys.executable, "-c", IMPORT], folder).strip())
        if not place.is_relative_to(Path(sysconfig.get_path("purelib")).resolve()):
            sys.exit(f"perfnb was imported from {place}, which is not the environment.")
        trace = printed([sys.executable, "-c", TRACE], folder).strip()
        version = printed([str(scripts / "perfnb"), "--version"], folder).strip()
        report = printed([str(scripts / "perfnb"), "show", trace], folder)
        if "GPU" not in report:
            sys.exit(f"perfnb show has no report of the trace:\n{report}")
        run_cells(folder)
    print(f"{version}: the import, the command and the kernel work.")


if __name__ == "__main__":
    main()

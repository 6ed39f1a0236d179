"""The process that starts the ranks of a job by torch's elastic launcher: ``python -m perfnb.launching.agent``.

A process of its own, because the launcher installs signal handlers and holds the job's port: both end with it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from perfnb.launching.child import FOLDER, STARTED_BY, end_with, tell

_TRIES = 10
_RANK = "from perfnb.launching.child import main; main()"


def main() -> None:
    """Start the ranks and wait for them; leave their exit codes in the folder if one failed."""
    folder, ranks, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    end_with(parent, partial(_end_all, folder))
    os.environ |= {FOLDER: str(folder), STARTED_BY: str(os.getpid())}

    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",  # the store takes a free port, so that two jobs never fight for one
        rdzv_configs={"is_host": True},
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    try:
        elastic_launch(config, sys.executable)("-c", _RANK)
    except ChildFailedError as error:
        tell(folder / "exits", json.dumps({str(rank): one.exitcode for rank, one in error.failures.items()}))
        sys.exit(1)
    finally:
        if os.getppid() != parent:
            _end_all(folder)


def _end_all(folder: Path) -> None:
    """Kill what runs below this process, and remove the job's folder: the process that would do it has been killed."""
    for _ in range(_TRIES):  # until none has started another meanwhile
        children = psutil.Process().children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1.0)
        if not children:
            break
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

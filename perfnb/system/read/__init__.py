"""Read the facts about the machine that the checks judge. Reading does not change anything."""

from __future__ import annotations

import os
import sys
from typing import Any

from perfnb.system.read.disk import disk_readers
from perfnb.system.read.gpus import gpu_readers
from perfnb.system.read.host import build_readers, host_readers
from perfnb.system.read.reading import Reader, SystemTree, Unread, read_all

__all__ = ["Unread", "read_system"]


def read_system(data: str = ".", root: str = "/", platform: str = sys.platform) -> dict[str, Any]:
    """Read the facts that `perfnb.system_check` judges.

    For each name, return a value, or an `Unread` with the reason why there is no value. `data` is a file or folder,
    `root` contains ``sys``, ``proc`` and ``dev``, and `platform` is as in `sys.platform`.
    """
    tree = SystemTree(root, platform)
    readers: dict[str, Reader] = {
        **host_readers(tree),
        **disk_readers(tree, data),
        **build_readers(tree),
        **gpu_readers(os.environ.get("CUDA_VISIBLE_DEVICES")),
    }
    return read_all(readers)

"""Traces that other projects published: fetched from them when a lab asks for one, checked, and kept."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from perfnb.capture.kept import cache_folder
from perfnb.errors import LabError

#: Names a folder with traces that were downloaded before; then nothing is fetched.
FOLDER = "PERFNB_LAB_TRACES"
#: Where a trace is asked for, in this order: by commit and path, then by the hash that git gives its contents.
ADDRESSES = (
    "https://raw.githubusercontent.com/{repository}/{commit}/{path}",
    "https://api.github.com/repos/{repository}/git/blobs/{blob}",
)
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class PublicTrace:
    """A file in a public repository on GitHub; `size` is in bytes, `blob` is git's hash of the contents."""

    repository: str
    commit: str
    path: str
    licence: str
    size: int
    sha256: str
    blob: str

    def addresses(self) -> list[str]:
        """Where the file can be had."""
        return [address.format(**vars(self)) for address in ADDRESSES]

    def same(self, content: bytes) -> bool:
        """Whether `content` is that of the file."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


_TRACELENS = ("AMD-AGI/TraceLens", "MIT, Copyright (c) Advanced Micro Devices, Inc.")
_HTA = ("facebookresearch/HolisticTraceAnalysis", "MIT, Copyright (c) Meta Platforms, Inc. and affiliates")

#: The lab's traces, by name.
TRACES = {
    "h100_vit": PublicTrace(
        repository=_TRACELENS[0],
        commit="061493f6c140b38a9339bc424a243dc06ba74e4b",
        path="tests/traces/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        licence=_TRACELENS[1],
        size=126801,
        sha256="a4c8b5e73482b36d259784bfbe2a7e7d4f363ee58ba518cb5acd0a6c7c36b525",
        blob="0702619a7179d6a29cd69f57b6fcbd9ad230afd3",
    ),
    "mi300_vit": PublicTrace(
        repository=_TRACELENS[0],
        commit="061493f6c140b38a9339bc424a243dc06ba74e4b",
        path="tests/traces/mi300/Falconsai_nsfw_image_detection__1016002.json.gz",
        licence=_TRACELENS[1],
        size=135267,
        sha256="b71ba116f37e99ff2338e6c8007d90a642917714ffcdb36e657f5722790df82d",
        blob="fa7c06f9bfd8699fb06b9fdda132fd0e51127ad1",
    ),
    "mi300_ddp_resnet18": PublicTrace(
        repository=_TRACELENS[0],
        commit="13730e84e1ee04c1e272d23b60e792492f1a39c8",
        path="tests/traces/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
        licence=_TRACELENS[1],
        size=550781,
        sha256="0e9ad539e9d802f76f88c88c4780ad76489626382707d91b7dfcf19c364764b7",
        blob="941dea22a8a90f54ef44517ca24e30a4fbc9862e",
    ),
    "sampled_rank_0": PublicTrace(
        repository=_HTA[0],
        commit="3efc27e2198d1d0d2f1ccf9fa825b5347b6cb55b",
        path="tests/data/trace_filter/sampled_rank-0.json.gz",
        licence=_HTA[1],
        size=124247,
        sha256="71b98c30a2751cc56d9bf78f8fb76467acd56e0be6a1f0da23c600941d29aafd",
        blob="c56feed5f481f51e3c81f973bcbb830dfa7ae084",
    ),
    "sampled_rank_1": PublicTrace(
        repository=_HTA[0],
        commit="89bb65f00c0e8b731c9c019e72a19676caf9cc92",
        path="tests/data/trace_filter/sampled_rank-1.json.gz",
        licence=_HTA[1],
        size=119799,
        sha256="2f9a65fd5f319ec8e60468a22dc9a624eb4b40369c729f6f897259d587eca57e",
        blob="5dbc949e4018dba4343dee56f51d579eb2e70d44",
    ),
}


def trace_file(name: str) -> Path:
    """The file of a public trace: fetched the first time, and kept in the folder that holds perfnb's cache.

    Nothing is fetched where the environment variable ``PERFNB_LAB_TRACES`` names a folder: it must hold the file.

    Parameters
    ----------
    name : str
        One of `TRACES`; the file is called so, with ``.json.gz`` behind it.

    Raises
    ------
    LabError
        If there is no such trace, or it cannot be had unchanged.
    """
    if name not in TRACES:
        raise LabError(f"There is no trace {name!r}; there are {', '.join(TRACES)}.")
    trace, file = TRACES[name], f"{name}.json.gz"
    if chosen := os.environ.get(FOLDER):
        return _chosen(trace, Path(chosen) / file)
    folder = cache_folder()
    if folder is None:
        raise LabError(f"There is no folder to keep the trace {name} in: name one in PERFNB_CACHE.")
    kept = folder / "traces" / file
    try:
        if kept.is_file() and trace.same(kept.read_bytes()):
            return kept
        content = _fetched(name, trace)
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_name(f".{file}.{os.getpid()}")
        beside.write_bytes(content)
        beside.replace(kept)
    except OSError as error:
        raise LabError(f"The trace {name} could not be kept in {kept.parent}: {error.strerror}.") from error
    return kept


def _chosen(trace: PublicTrace, path: Path) -> Path:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LabError(
            f"{path} cannot be read ({error.strerror}): put the file there, from {trace.addresses()[0]}, or unset "
            f"{FOLDER}, so that it is fetched."
        ) from error
    if not trace.same(content):
        raise LabError(f"{path} is not the file that {trace.addresses()[0]} names: its sha256 is another one.")
    return path


def _fetched(name: str, trace: PublicTrace) -> bytes:
    reasons = []
    for address in trace.addresses():
        # The second address answers with the bytes of the file only if asked so; the first one does in any case.
        headers = {"User-Agent": "perfnb", "Accept": "application/vnd.github.raw+json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=TIMEOUT_S) as answer:
                content: bytes = answer.read(trace.size + 1)
        except (OSError, HTTPException) as error:
            reasons.append(f"{address}: {getattr(error, 'reason', None) or error}")
            continue
        if trace.same(content):
            return content
        reasons.append(f"{address}: another file than expected")
    raise LabError(
        f"The trace {name} could not be fetched ({'; '.join(reasons)}): download it where there is a network, as "
        f"{name}.json.gz, and name its folder in the environment variable {FOLDER}."
    )

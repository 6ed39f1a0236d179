"""The other process of `tests.telemetry.nvml_stand_in.Gpus`: carries out commands on an NvmlSource."""

from __future__ import annotations

import json
import sys
from typing import Any

from perfnb.telemetry.sampler.nvml import NvmlSource


def _set_ups(*arguments: Any) -> Any:
    """Return the set-ups of the GPUs; the import loads torch, which only these need."""
    from perfnb.system.read.gpus import read_gpus

    return _told(read_gpus(*arguments))


def _told(value: Any) -> Any:
    """Return a value for JSON; what could not be read keeps its reason."""
    from perfnb.system.read.reading import Unread

    if isinstance(value, Unread):
        return {"unread": value.why}
    return {name: _told(each) for name, each in value.items()} if isinstance(value, dict) else value


def main() -> None:
    """Answer each line of the standard input, a JSON list of a method and its arguments, with one line."""
    source: Any = None
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        value = None
        try:
            if method == "set_ups":
                value = _set_ups(*arguments)
            elif method == "open":
                if source is not None:
                    source.close()
                source = None
                source = NvmlSource(*arguments)
            elif method == "notes":
                value = list(source.notes)
                source.notes.clear()
            elif source is not None:
                value = getattr(source, method)(*arguments)
            answer: dict[str, Any] = {"value": value}
        except Exception as error:
            answer = {"raised": [type(error).__name__, str(error)]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

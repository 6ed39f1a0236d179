"""Write and verify results files for teachers.

A results file contains every answer. For right answers, it also contains the facts, so that a teacher can judge them
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from perfnb.errors import LabError
from perfnb.files import open_regular, write_file
from perfnb.labs.exercise import Hint, flagged, shortened
from perfnb.labs.ledger import Result, exercise_of

FORMAT = "perfnb labs 3"
#: Maximum size of a file that is read, in bytes. A complete results file has about ten thousand.
LARGEST = 4_000_000


@dataclass(frozen=True)
class Verification:
    """The result of verifying a results file. It is displayed as text.

    Attributes
    ----------
    unchanged : bool
        Whether the digest matches the contents. The digest detects damage but not forgery, because it does not depend
        on a secret.
    verdicts : dict
        For each exercise, ``right`` if the facts confirm the answer, ``not yet`` if the file does not claim that the
        answer is right, or ``does not follow`` if the facts do not support the claim.
    """

    unchanged: bool
    verdicts: dict[str, str]

    @property
    def right(self) -> int:
        """Number of exercises that the facts confirm."""
        return list(self.verdicts.values()).count("right")

    def __repr__(self) -> str:
        head = "unchanged since it was written" if self.unchanged else "CHANGED since it was written"
        return "\n".join([f"{self.right} right; the file is {head}"]
                         + [f"  {number:5} {verdict}" for number, verdict in self.verdicts.items()])  # fmt: skip


def write_results(results: Iterable[Result], path: str | Path) -> Path:
    """Write the results as JSON, atomically.

    Raises
    ------
    LabError
        If the file cannot be written.
    """
    from perfnb import __version__

    # The facts of a wrong answer are left out because they would give the answer away.
    content: dict[str, Any] = {
        "format": FORMAT,
        "perfnb": __version__,
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "results": [asdict(result if result.right else replace(result, facts={})) for result in results],
    }
    content["sha256"] = _digest(content)
    target = Path(path)
    try:
        write_file([(json.dumps(content, indent=1) + "\n").encode()], target)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise LabError(f"The results could not be written to {target}: {why}.") from error
    return target


def verify_results(path: str | Path) -> Verification:
    """Judge the facts in a file again. Nothing in the file is executed.

    Raises
    ------
    LabError
        If the file is not a results file.
    """
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise LabError(f"{path} is too large for a results file.")
        content = json.loads(text.decode("utf-8"))
        claimed = content.pop("sha256", None)
        if content.get("format") != FORMAT:
            raise LabError(f"{path} is not a results file that this version of perfnb reads ({FORMAT}).")
        results = content["results"]
        verdicts = {shortened(str(result["number"])).replace("\n", " "): _verdict(result) for result in results}
        digest = _digest(content)
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LabError(f"{path} is not a results file, or is damaged.") from error
    return Verification(unchanged=claimed == digest, verdicts=verdicts)


def exported_results(folder: str | Path) -> dict[str, bool]:
    """Return the exercises that are right according to the results files in a folder. Other files are ignored.

    The facts in each file are judged again. A folder that does not exist counts as empty.
    """
    found: dict[str, bool] = {}
    for path in sorted(Path(folder).glob("*.json")):
        with contextlib.suppress(LabError):
            for number, verdict in verify_results(path).verdicts.items():
                found[number] = found.get(number, False) or verdict == "right"
    return found


def _verdict(result: dict[str, Any]) -> str:
    facts = flagged(result["facts"])
    try:
        exercise_of(str(result["number"])).judge(facts)
        right = bool(facts)
    except (Hint, LabError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        right = False  # these facts do not come from a check, so they prove nothing
    if right:
        return "right"
    return "does not follow" if result["right"] else "not yet"


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

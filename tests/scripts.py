"""Call functions in the browser's scripts from Python, in node or, if it is not installed, in Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from perfnb.draw import assets

NODE = shutil.which("node")


def evaluated(entry: str, function: str, given: Any) -> Any:
    """Return the result of a JavaScript `function` of one argument, which can use all names in the script `entry`."""
    script = f"{assets.script(entry)}\nconst asked = {function};\n"
    if NODE is not None:
        script += 'let text = ""; for await (const part of process.stdin) text += part;\n'
        script += "console.log(JSON.stringify(await asked(JSON.parse(text))));\n"
        command = [NODE, "--input-type=module", "--eval", script]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)
    pytest.importorskip("playwright", reason="needs node, or playwright")
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import ARGUMENTS, CHROMIUM

    if CHROMIUM is None:
        pytest.skip("needs node, or Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            called = "([script, given]) => new Function(`${script}return asked;`)()(given)"
            return json.loads(json.dumps(browser.new_page().evaluate(called, [script, given])))
        finally:
            browser.close()

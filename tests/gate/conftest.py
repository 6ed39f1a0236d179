"""The fixture of the plugin, where perfnb was installed before it had one."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

if not entry_points(group="pytest11", name="perfnb"):

    @pytest.fixture
    def perf() -> None:
        """Skip."""
        pytest.skip("perfnb was installed here without its pytest plugin: run make again")

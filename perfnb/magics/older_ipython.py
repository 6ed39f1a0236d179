"""What IPython 7, as on Colab, lacks: options do not complete, and a trailing ; silences nothing."""

from __future__ import annotations

from typing import Any

from IPython.core import completer, magic

#: Whether options can be completed.
COMPLETES = hasattr(completer, "context_matcher")

#: Decorator of a magic whose value a trailing ; silences.
can_be_silenced: Any = getattr(magic, "output_can_be_silenced", lambda function: function)

"""Determine where a loop's steps end, from its requests for batches, its use of them, and its optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfnb.loop.driver import LoopProfiler


class LoopSteps:
    """Report a loop's steps to a `LoopProfiler`. Each step ends with the batch after which an optimizer has stepped.

    Until an optimizer steps for the first time, it is unknown whether the loop has an optimizer, and each batch counts
    as a step. When an optimizer steps, all batches so far become one step. A step ends when the next batch is
    requested, which means that logging is part of its phase *other*. It ends earlier if its owner calls `end_if_over`.

    Parameters
    ----------
    driver : LoopProfiler
    optimizers_end_steps : bool
        Whether it is known from the start that optimizers end the steps.

    Attributes
    ----------
    batches : int
        The number of batches in the last completed step.
    """

    def __init__(self, driver: LoopProfiler, *, optimizers_end_steps: bool) -> None:
        self.driver, self._known = driver, optimizers_end_steps
        self.batches = 1
        self.restart()

    def restart(self) -> None:
        """Start again without a step in progress."""
        #: For the open step: the number of batches used, whether there was a batch, and whether an optimizer has
        #: stepped.
        self._used, self._works, self._stepped = 0, False, False
        #: Whether the open step was abandoned although more of its batches are to come.
        self._given_up = False

    def ask(self) -> None:
        """Record that the loop requests a batch."""
        self.end_if_over()
        if not self._given_up:
            self.driver.wait()

    def get(self, batch: object = None) -> None:
        """Record that the loop has received the batch that it requested, if any, or works on this batch."""
        self._works |= batch is not None
        if not self._given_up:
            self.driver.begin(batch)

    def use(self) -> None:
        """Record that the loop has used a batch."""
        self._used += 1

    def step(self, *_: object) -> None:
        """Record that an optimizer has stepped."""
        self._stepped = True

    def end_if_over(self) -> None:
        """End the current step, unless it needs more batches."""
        __tracebackhide__ = True
        if not (self._stepped or (self._used and not self._known)):
            return
        recorder = self.driver.recorder
        were_batches = self._stepped and recorder.by_batch
        self._known |= self._stepped
        recorder.by_batch = not self._known
        given_up, self.batches = self._given_up, max(1, self._used)
        self.restart()
        if not given_up:
            self.driver.end()
        if were_batches:
            self.batches = self.driver.join_first()

    def skip(self) -> None:
        """Discard the current step because it does not take place."""
        self.restart()
        self.driver.skip()

    def pause(self) -> None:
        """Record that the next batch comes after other work, such as a checkpoint or the end of an epoch."""
        self.end_if_over()
        if not self._works:
            self.skip()

    def validate(self) -> None:
        """Record that the loop runs its model for something other than training."""
        self.pause()
        self.driver.close()
        self._given_up = self._works

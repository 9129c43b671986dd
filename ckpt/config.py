"""The section `ckpt`: when to save, what to keep, what to start from."""
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from parallel.config import Section

Share = Annotated[float, Field(gt=0.0, le=1.0)]
CheckpointPath = Annotated[Path, Field(strict=False)]


class CkptConfig(Section):
    """Checkpoints: <run>/checkpoints/step_XXXXXXXX, and `latest`."""

    every_steps: int = Field(100, ge=1, description="steps between two checkpoints; one more is written at the end")
    every_minutes: float | None = Field(30.0, gt=0.0, description="no more than so many minutes are at risk; null: steps decide")
    milestones: tuple[Share, ...] = Field((0.5, 1.0), strict=False, description="shares of the run whose checkpoints are kept")
    keep_last: int = Field(2, ge=1, description="newest checkpoints to keep, besides milestones")
    keep_best: bool = Field(False, description="also save where the validation loss of all text is the lowest so far, and keep "
                            "the newest such checkpoint")
    resume: Literal["auto", "none"] | CheckpointPath = Field(
        "auto", description="auto: the newest checkpoint of this run, if any; none: start anew; or the path of a checkpoint")
    init_from: CheckpointPath | None = Field(
        None, description="a checkpoint whose weights alone start a new run")
    init_partial: bool = Field(False, description="of init_from take the tensors that fit by name and shape, and say which do "
                               "not: those keep their initial values")

"""Finds a run's profiles, and reads those of the ranks that are wanted."""
import re
from pathlib import Path

from parallel.errors import UserError
from train.profiling import ascend, cpu
from train.profiling.figures import RankProfile
from train.profiling.tables import Broken
from train.profiling.windows import FOLDER, Marks


def windows(run_folder: Path) -> dict[int, Path]:
    """First step -> folder, of each window that was profiled. Raises UserError: there is none."""
    found = {int(match[1]): path for path in (run_folder / FOLDER).glob("step_*")
             if (match := re.fullmatch(r"step_(\d+)", path.name)) and path.is_dir()}
    if not found:
        raise UserError(f"{run_folder / FOLDER}: no profile there: set profile.enabled=true, or touch "
                        f"{run_folder / 'request_profile'} while it trains")
    return dict(sorted(found.items()))


def ranks_of(window: Path) -> dict[int, Path]:
    """Rank -> folder."""
    found = {int(match[1]): path for path in window.glob("rank_*") if (match := re.fullmatch(r"rank_(\d+)", path.name))}
    return dict(sorted(found.items()))


def read_window(window: Path, rank: int | None) -> tuple[list[RankProfile], int, str]:
    """(profiles, ranks of the run, device) of a window; rank: None for all. Raises UserError: nothing of it can be read."""
    ranks = ranks_of(window)
    if rank is not None and rank not in ranks:
        raise UserError(f"--rank {rank}: {window} has profiles of rank {', '.join(map(str, ranks)) or 'none'}; the run's "
                        "profile.ranks says which are profiled")
    found, world_size, device = [], 1, ""
    for number, folder in ranks.items():
        if rank in (None, number):
            profile, marks = read_rank(number, folder)
            found.append(profile)
            world_size, device = (marks.world_size, marks.device) if marks else (world_size, device)
    if not any(p.steps or p.operators or p.memory for p in found):
        raise UserError(f"{window}: nothing of this profile can be read: "
                        + ("; ".join(problem for p in found for problem in p.problems or ["no files"]) or "no rank_* folder"))
    return found, max(world_size, len(ranks)), device or found[0].device


def read_rank(rank: int, folder: Path) -> tuple[RankProfile, Marks | None]:
    """One rank's figures; what cannot be read is told in `problems`."""
    problems: list[str] = []
    try:
        marks = Marks.read(folder)
    except Broken as broken:
        marks = None
        problems.append(str(broken))
    made = sorted(folder.glob("*_ascend_ms"), key=lambda path: path.name.rsplit("_", 3)[1:])  # <host>_<pid>_<time>_ascend_ms
    if not made:
        problems.append(f"{folder}: mindspore.profiler wrote nothing")
        return RankProfile(rank, marks.device if marks else "", problems=problems), marks
    own, framework = made[-1] / "ASCEND_PROFILER_OUTPUT", made[-1] / "FRAMEWORK"
    on_ascend = marks.device == "Ascend" if marks else (own / "step_trace_time.csv").exists()
    profile = RankProfile(rank, "Ascend" if on_ascend else "CPU", problems=problems)
    if on_ascend and not own.is_dir():
        problems.append(f"{own}: missing, the profile has not been parsed: python -c \"from mindspore.profiler.profiler import "
                        f"analyse; analyse('{folder}')\"")
    elif on_ascend:
        ascend.read(profile, own, marks)
    else:
        cpu.read(profile, framework, marks)
    return profile, marks

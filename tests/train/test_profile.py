"""When the profiler looks on, and that a run does not depend on it."""
import json
import time
from types import SimpleNamespace

import pytest

from parallel.cost.flops import model_flops
from tests.conftest import exact, metrics
from train.callbacks.profile import REQUEST, Profile, start_profiler
from train.clock import Clock
from train.config import ProfileConfig, load_config
from train.plans import sizes_of
from train.profile_report import main
from train.profiling.matrix import is_product
from train.profiling.reading import read_window
from train.profiling.windows import Marks, Window, folder_of, scheduled
from train.run import run


class Recorder:
    """In the profiler's place: what was asked of it, and a file as of its own; fails where it is told to."""

    def __init__(self, fails: str = ""):
        self.calls, self.fails = [], fails

    def __call__(self, folder, window):
        self.act(f"start {window.first}")
        (folder / "x_ascend_ms" / "FRAMEWORK").mkdir(parents=True)
        (folder / "x_ascend_ms" / "FRAMEWORK" / "a").touch()
        return SimpleNamespace(step=lambda: self.act("step"), stop=lambda: self.act("stop"))

    def act(self, what: str) -> None:
        self.calls.append(what)
        if what.split()[0] == self.fails:
            raise RuntimeError("no\ndevice")


def loop(profiles: list[Profile], steps: int, before=lambda step: None, start: int = 0) -> None:
    """The loop of some ranks, in turn."""
    for profile in profiles:
        profile.on_train_begin(None)
    for step in range(start + 1, start + steps + 1):
        before(step)
        for profile in profiles:
            context = SimpleNamespace(original_args=lambda step=step: SimpleNamespace(cur_step_num=step))
            if step == start + 1:
                profile.clock.on_train_begin(SimpleNamespace(original_args=lambda: SimpleNamespace(cur_step_num=start)))
            profile.clock.on_train_step_begin(context)
            profile.on_train_step_begin(context)
        for profile in profiles:
            profile.clock.on_train_step_end(context)
            profile.on_train_step_end(context)


def make(folder, recorder, rank=0, world_size=1, last_step=0, **settings):
    return Profile(Clock(), ProfileConfig(**settings), folder, rank, world_size, last_step, recorder)


def test_by_schedule(tmp_path, capsys):
    recorder = Recorder()
    profile = make(tmp_path, recorder, last_step=40, enabled=True, skip_first=3, wait=1, warmup=1, active=2, repeat=2)
    loop([profile], 20, start=40)
    assert recorder.calls == ["start 45", "step", "step", "step", "stop", "start 49", "step", "step", "step", "stop"]
    for window in scheduled(profile.config, 40):
        marks = Marks.read(folder_of(tmp_path, window, 0))
        assert [mark.step for mark in marks.steps] == list(window.told) and marks.first == window.first
        assert all(mark.start <= mark.begin <= mark.end and mark.gap["data"] >= 0 for mark in marks.steps)
    assert "steps 46 to 47" in (out := capsys.readouterr().out) and "python -m train.profile_report" in out


def test_the_first_step_can_be_profiled(tmp_path):
    recorder = Recorder()
    loop([make(tmp_path, recorder, enabled=True, skip_first=0, warmup=0, active=1)], 3)
    assert recorder.calls == ["start 1", "step", "stop"]


def test_on_request(tmp_path, capsys):
    recorder = Recorder()
    profile = make(tmp_path, recorder, warmup=1, active=2)
    loop([profile], 12, lambda step: (tmp_path / REQUEST).touch() if step in (3, 9) else None)
    assert recorder.calls == ["start 4", "step", "step", "step", "stop", "start 10", "step", "step", "step", "stop"]
    assert not (tmp_path / REQUEST).exists() and "as requested: steps 5 to 6" in capsys.readouterr().out


def test_a_request_starts_all_ranks_at_the_same_step(tmp_path):
    recorders = [Recorder() for _ in range(3)]
    profiles = [make(tmp_path, recorder, rank, 3, ranks=(1, 2), warmup=0, active=1) for rank, recorder in enumerate(recorders)]
    loop(profiles[::-1], 9, lambda step: (tmp_path / REQUEST).touch() if step == 3 else None)  # rank 0 is the last to look
    assert [recorder.calls for recorder in recorders] == [[], ["start 5", "step", "stop"], ["start 5", "step", "stop"]]
    assert not (tmp_path / REQUEST).exists() and not list((tmp_path / "profile").glob("*.json"))


def test_windows_that_a_request_runs_over_are_left_out(tmp_path):
    recorder = Recorder()
    profile = make(tmp_path, recorder, enabled=True, skip_first=4, warmup=0, active=3, repeat=2)
    loop([profile], 15, lambda step: (tmp_path / REQUEST).touch() if step == 2 else None)
    assert [call for call in recorder.calls if "start" in call] == ["start 3", "start 8"]


@pytest.mark.parametrize("fails", ["start", "step", "stop"])
def test_what_fails_is_said_and_nothing_else_happens(tmp_path, capsys, fails):
    recorder = Recorder(fails)
    profile = make(tmp_path, recorder, enabled=True, skip_first=1, warmup=0, active=2, repeat=3)
    loop([profile], 12)
    profile.close()
    lines = [line for line in capsys.readouterr().out.splitlines() if "profile" in line]
    assert len(lines) == 1 and "rank 0 profiles no more, RuntimeError: no device" in lines[0]
    assert len([call for call in recorder.calls if "start" in call]) == 1


def test_a_profiler_that_writes_nothing_is_told(tmp_path, capsys):
    profile = make(tmp_path, lambda folder, window: SimpleNamespace(step=lambda: None, stop=lambda: None), enabled=True,
                   skip_first=1, warmup=0, active=1)
    loop([profile], 4)
    assert "wrote nothing to" in capsys.readouterr().out


def test_a_run_that_ends_within_a_window(tmp_path):
    recorder = Recorder()
    profile = make(tmp_path, recorder, enabled=True, skip_first=1, warmup=0, active=9)
    loop([profile], 4)
    profile.close()
    assert recorder.calls[-1] == "stop"
    assert [mark.step for mark in Marks.read(folder_of(tmp_path, scheduled(profile.config, 0)[0], 0)).steps] == [2, 3, 4]


def test_evaluation_and_the_profilers_own_time_are_no_part_of_a_step(tmp_path):
    recorder, ended = Recorder(), []
    profile = make(tmp_path, recorder, enabled=True, skip_first=2, warmup=1, active=2)
    act = recorder.act
    recorder.act = lambda what: (time.sleep(0.05), act(what), ended.append(time.time()))

    def between(step):
        if step == 5:
            with profile.clock.measure("eval"):
                time.sleep(0.1)
            time.sleep(0.02)

    loop([profile], 6, between)
    mark = Marks.read(folder_of(tmp_path, scheduled(profile.config, 0)[0], 0)).steps[1]
    assert mark.step == 5 and mark.start >= ended[2] and "profile" not in mark.gap  # 2: start, steps 3 and 4
    assert mark.gap["eval"] >= 0.1 and mark.gap["data"] >= 0.02
    assert mark.seconds == mark.end - mark.start - mark.gap["eval"] > 0.02
    assert profile.clock.seconds["profile"] >= 0.2 and profile.clock.training() < profile.clock.total() - 0.3


QUICK = ("eval.stage.enabled=false", "eval.deep.enabled=false", "health.enabled=false", "train.total_steps=12",
         "train.log_every_steps=1")


def test_a_real_run(tiny, capfd):
    """A window on request and one by schedule, in one process; what is trained stays the same to the bit."""
    config = tiny(*QUICK, "profile.enabled=true", "profile.skip_first=6", "profile.warmup=1", "profile.active=3")
    folder = config.run.folder
    folder.mkdir(parents=True)
    (folder / REQUEST).touch()
    run(config)
    assert "profiles no more" not in capfd.readouterr().out and not (folder / REQUEST).exists()
    assert [path.name for path in sorted((folder / "profile").iterdir())] == ["step_00000002", "step_00000007"]
    for first, arguments in ((2, ["--step", "2"]), (7, [])):
        assert main([str(folder), *arguments]) == 0
        found = json.loads((folder / "profile" / f"step_{first:08d}" / "verdict.json").read_text())
        assert found["steps"] == [first + 1, first + 2, first + 3] and found["problems"] == [], found["problems"]
        assert sum(found["shares"].values()) == pytest.approx(1.0) and min(found["shares"].values()) >= 0
        assert found["shares"]["computation"] > 0.05 and found["device"] == "CPU"
        (profile,), *_ = read_window(folder / "profile" / f"step_{first:08d}", None)
        flops = sum(one.flops for one in profile.operators if is_product(one.type)) / 3
        # Of the shapes that the profiler noted, against the closed form; the forms for CPU sum some columns by products.
        assert 1.0 <= flops / (4 * 16 * model_flops(sizes_of(load_config(folder / "config.yaml"), 1))) < 1.3
        assert found["memory"]["window"]["peak_reserved_bytes"] > 0
    run(plain := tiny(*QUICK, "run.name=plain"))
    assert exact(metrics(folder)) == exact(metrics(plain.run.folder)) and not (plain.run.folder / "profile").exists()


def test_a_folder_that_the_profiler_does_not_take(tmp_path):
    with pytest.raises(RuntimeError, match="does not take the folder"):  # it would write to ./data, and only log that
        start_profiler(tmp_path / "a+b", Window(1, 0, 1))

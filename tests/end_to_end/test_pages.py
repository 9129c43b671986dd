"""TensorBoard's pages and report.html of a real run, in headless Chromium where it is installed."""
import pytest

from tests.end_to_end.browser import installed
from tests.end_to_end.screenshots import page, tensorboard
from train.config import load_config
from train.run import run

pytestmark = [pytest.mark.long, pytest.mark.skipif(installed() is None, reason="no Chromium here: apt install chromium")]


@pytest.fixture(scope="module")
def folder(tiny_yaml, tmp_path_factory):
    """Of a run of 10 steps with all tiers, among runs."""
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('pages')}/runs", "train.total_steps=10",
                                     "eval.deep.at=[1.0]", "health.probe_samples=2"])
    run(config)
    return config.run.folder


def test_tensorboard_shows_curves_and_texts(folder, tmp_path):
    tensorboard(folder, tmp_path / "tensorboard.png")
    assert (tmp_path / "tensorboard.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_is_shown_and_printed(folder, tmp_path):
    page(folder, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")

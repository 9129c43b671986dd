"""TensorBoard's pages, report.html and a profile's verdict of a real run, in headless Chromium where it is installed."""
import pytest

from tests.end_to_end.browser import Browser, installed
from tests.end_to_end.screenshots import page, tensorboard, terminal, verdict
from train.config import load_config
from train.run import run

pytestmark = [pytest.mark.long, pytest.mark.skipif(installed() is None, reason="no Chromium here: apt install chromium")]


@pytest.fixture(scope="module")
def folder(tiny_yaml, tmp_path_factory):
    """Of a run of 10 steps with all tiers and a profile, among runs."""
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('pages')}/runs", "train.total_steps=10",
                                     "eval.deep.at=[1.0]", "health.probe_samples=2", "profile.enabled=true",
                                     "profile.skip_first=4", "profile.warmup=0", "profile.active=2"])
    run(config)
    return config.run.folder


def are_pictures(*paths):
    return all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_tensorboard_shows_curves_and_texts(folder, tmp_path):
    tensorboard(folder, tmp_path / "scalars.png", tmp_path / "tensorboard.png")
    assert are_pictures(tmp_path / "scalars.png", tmp_path / "tensorboard.png")


def test_the_report_is_shown_and_printed(folder, tmp_path):
    page(folder, tmp_path / "report.png", tmp_path / "evaluation.png")
    assert are_pictures(tmp_path / "report.png", tmp_path / "evaluation.png")


def test_the_verdict_is_shown(folder, tmp_path):
    verdict(folder, tmp_path / "profile.png")
    assert are_pictures(tmp_path / "profile.png")


def test_a_terminal_is_shown(tmp_path):
    terminal(["$ a command", "<its> answer"], tmp_path / "console.png")
    assert are_pictures(tmp_path / "console.png")


def test_what_is_missing_is_told_with_its_page(tmp_path):
    (tmp_path / "page.html").write_text("<p>here</p>")
    url = (tmp_path / "page.html").as_uri()
    with Browser(400, 300) as browser:
        browser.open(url)
        assert "here" in browser.wait_for("here")
        with pytest.raises(TimeoutError, match=f"{url}: not on the page: elsewhere; there is: here"):
            browser.wait_for("here", "elsewhere", seconds=1)
        with pytest.raises(LookupError, match=f"{url}: no table"):
            browser.shoot(tmp_path / "none.png", "table")

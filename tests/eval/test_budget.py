"""The time budget of the tier `stage`."""
import pytest

from eval.budget import Budget


def test_text_comes_first_in_whole_batches():
    budget = Budget(0.05, 4, text_seconds=2.0, task_seconds=10.0)
    assert budget.shares(19.9, False) == (0.0, 0.0)  # 0.995 s; a batch takes 0.5, and one is kept for the last evaluation
    assert budget.shares(20.1, False) == (0.25, 0.0)
    assert budget.shares(49.9, False) == (0.75, 0.0)
    assert budget.shares(100.0, False) == (1.0, 0.0)


def test_tasks_are_asked_when_all_are_paid_for():
    budget = Budget(0.05, 4, text_seconds=2.0, task_seconds=10.0)
    assert budget.shares(249.0, False) == (1.0, 0.0)
    assert budget.shares(251.0, False) == (1.0, 1.0)


def test_the_last_evaluation_is_never_left_out_and_asks_what_is_paid_for():
    budget = Budget(0.05, 4, text_seconds=2.0, task_seconds=10.0)
    assert budget.shares(0.0, True) == (0.25, 0.0)
    assert budget.shares(140.0, True) == pytest.approx((1.0, 0.5))


def test_what_was_spent_is_gone_and_costs_are_learnt():
    budget = Budget(0.05, 4, text_seconds=2.0, task_seconds=10.0)
    budget.spend((0.5, 0.0), (4.0, 0.0))
    assert (budget.text_seconds, budget.task_seconds, budget.spent) == (8.0, 10.0, 4.0)
    assert budget.shares(80.0, False) == (0.0, 0.0)
    assert budget.shares(159.0, False) == (0.0, 0.0)
    assert budget.shares(161.0, False) == (0.25, 0.0)


def test_no_bound():
    assert Budget(None, 4, 2.0, 10.0).shares(0.0, False) == (1.0, 1.0)


def test_a_run_stays_within_its_budget():
    """Steps of a second, an evaluation every 10: 5 % of the time, with the last batch, but for prices not learnt yet."""
    budget, training = Budget(0.05, 4, text_seconds=1.0, task_seconds=3.0), 0.0
    for i in range(100):
        training += 10.0
        text, tasks = budget.shares(training, i == 99)
        budget.spend((text, tasks), (text * 1.1, tasks * 3.3))
    assert 0.04 * training < budget.spent <= 0.05 * training + 0.05


def test_without_text_the_tasks_have_the_budget():
    budget = Budget(0.05, 4, text_seconds=0.0, task_seconds=10.0)
    assert budget.shares(100.0, False) == (1.0, 0.0) and budget.shares(201.0, False) == (1.0, 1.0)
    assert Budget(0.05, 2, 0.0, 0.0).shares(10.0, True) == (1.0, 0.0)

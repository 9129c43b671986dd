"""Order, cut over ranks, resuming (cases D1, D2, R1, R2 of the fault list) and padding of validation sets."""
import time

import numpy as np
import pytest

from data import dataset as datasets
from data.dataset import train_dataset, valid_dataset
from data.order import SampleOrder
from parallel.errors import UserError
from tests.data.conftest import small_config
from tests.data.test_prepare import rows_of


@pytest.fixture(scope="module", params=["none", "memory"])
def setup(request, config, manifest):
    """(config, manifest, all training rows), for both kinds of cache."""
    return config.model_copy(update={"cache": request.param}), manifest, rows_of(config, manifest, "train")


def batches(dataset, *columns):
    """(sample ids [steps, rows], tokens [steps, rows, length]) of a dataset, or the named columns; its size is as announced."""
    elements = list(dataset.create_dict_iterator(num_epochs=1, output_numpy=True))
    assert len(elements) == dataset.get_dataset_size()
    return tuple(np.stack([element[name] for element in elements]) for name in columns or ("sample_id", "tokens"))


def read(setup, start, steps, batch, rank=0, size=1, seed=1, columns=()):
    config, manifest, _ = setup
    order = SampleOrder(manifest.sets["train"].samples, seed)
    return batches(train_dataset(manifest, config, order, start, steps, batch, rank, size, with_sample_id=True), *columns)


def test_rows_are_the_samples_of_the_order(setup):
    _, manifest, rows = setup
    ids, tokens = read(setup, 0, 20, 8)
    assert np.array_equal(ids.ravel(), SampleOrder(len(rows), 1).indices(0, 160))
    assert tokens.dtype == np.int32
    assert np.array_equal(tokens, rows[ids])


@pytest.mark.parametrize("with_sample_id", [True, False])
def test_columns_come_in_the_order_that_the_step_takes_them(config, manifest, with_sample_id):
    order = SampleOrder(manifest.sets["train"].samples, 1)
    dataset = train_dataset(manifest, config, order, 6, 2, 8, 1, 2, with_sample_id)
    tokens, positions, *ids = next(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True))
    assert tokens.shape == (4, config.seq_length + 1) and tokens.dtype == positions.dtype == np.int32
    assert dataset.get_col_names() == ["tokens", "positions", "sample_id"][:2 + len(ids)]
    assert positions.tolist() == [10, 11, 12, 13]
    assert [found.tolist() for found in ids] == [order.indices(10, 4).tolist()] * with_sample_id
    assert valid_dataset(manifest, config, "valid_en", None, 4, 0, 1).get_col_names() == ["tokens"]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_positions_run_on_across_epochs_and_after_a_resume(setup, size):
    n = len(setup[2])
    for start, steps in ((0, 2 * n // 8 + 2), (n - 3, 4), (3 * n + 5, 4)):
        parts = [read(setup, start, steps, 8, rank, size, columns=("positions", "sample_id")) for rank in range(size)]
        positions, ids = (np.concatenate(part, axis=1).ravel() for part in zip(*parts, strict=True))
        assert positions.tolist() == list(range(start, start + 8 * steps))
        assert np.array_equal(ids, SampleOrder(n, 1).at(positions))  # and those are the samples that stand there


@pytest.mark.parametrize(("border", "before", "there"), [(2**31, 2**31 - 1, -2**31), (2**32, -1, 0),
                                                         (3 * 2**31, 2**31 - 1, -2**31)])
def test_positions_wrap_around(setup, border, before, there):
    start, found = border - 12, [[], []]
    for rank in (0, 1):
        found[rank] = read(setup, start, 3, 8, rank, 2, columns=("positions", "sample_id"))
    positions, ids = (np.concatenate(part, axis=1).ravel() for part in zip(*found, strict=True))
    assert positions.tolist() == [*range(before - 11, before + 1), *range(there, there + 12)]
    assert np.array_equal(ids, SampleOrder(len(setup[2]), 1).indices(start, 24))  # which has 64 bits


@pytest.mark.parametrize("window", [1, 24, 100_000])
def test_windows_do_not_show(setup, monkeypatch, window):
    monkeypatch.setattr(datasets, "MIN_WINDOW", window)
    monkeypatch.setattr(datasets, "MAX_WINDOW", window)
    ids, tokens, positions = read(setup, 5, 20, 8, columns=("sample_id", "tokens", "positions"))
    assert np.array_equal(ids.ravel(), SampleOrder(len(setup[2]), 1).indices(5, 160))
    assert np.array_equal(tokens, setup[2][ids])
    assert positions.ravel().tolist() == list(range(5, 165))


def test_an_epoch_has_each_sample_once_over_all_ranks(setup):
    """D1: ranks read disjoint rows that make up the whole set, across the end of the epoch nothing is dropped."""
    n = len(setup[2])
    assert n % 8
    for size in (1, 2, 4):
        steps = -(-n // 8)
        parts = [read(setup, 0, steps, 8, rank, size)[0] for rank in range(size)]
        assert {part.shape for part in parts} == {(steps, 8 // size)}
        together = np.concatenate(parts, axis=1).ravel()
        assert sorted(together[:n]) == list(range(n))
        assert np.array_equal(together, SampleOrder(n, 1).indices(0, steps * 8))


def test_resuming_reads_on_where_it_stopped(setup):
    """R1 and R2: inside the second epoch, on another number of ranks and with another batch, a seek and not a replay."""
    n = len(setup[2])
    whole = read(setup, n, 15, 8)[0]
    stopped = n + 7 * 8
    resumed = np.concatenate([read(setup, stopped, 8, 8, rank, 2)[0] for rank in range(2)], axis=1)
    assert np.array_equal(resumed, whole[7:])
    assert np.array_equal(read(setup, stopped, 4, 16)[0].ravel(), whole[7:].ravel())
    assert not np.array_equal(whole, read(setup, 0, 15, 8)[0])
    assert not np.array_equal(whole, read(setup, n, 15, 8, seed=2)[0])


def test_any_position_is_reached_at_once(setup):
    read(setup, 0, 1, 8)
    start = time.monotonic()
    ids, _ = read(setup, 10**12, 1, 8)
    assert time.monotonic() - start < 5
    assert np.array_equal(ids.ravel(), SampleOrder(len(setup[2]), 1).indices(10**12, 8))


def test_a_long_run_costs_nothing_to_set_up(config, manifest):
    order = SampleOrder(manifest.sets["train"].samples, 1)
    start = time.monotonic()
    dataset = train_dataset(manifest, config, order, 0, 500_000, 128, 0, 1)
    iterator = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
    tokens, positions = next(iterator)
    assert time.monotonic() - start < 10
    assert tokens.shape == (128, config.seq_length + 1) and positions.tolist() == list(range(128))
    assert dataset.get_dataset_size() == 500_000


def test_fewer_samples_than_a_global_batch(config, manifest):
    """D2: told before the first step."""
    n = manifest.sets["train"].samples
    with pytest.raises(UserError) as error:
        train_dataset(manifest, config, SampleOrder(n, 1), 0, 10, 2 * n, 0, 2)
    for part in (f"{n} samples", f"needs {2 * n}", f"2 ranks with {n} each", "train.global_batch_size"):
        assert part in str(error.value)


def test_what_does_not_fit_together_is_no_user_error(config, manifest):
    n = manifest.sets["train"].samples
    for samples, batch, rank, size in ((n + 1, 8, 0, 1), (n, 9, 0, 2), (n, 8, 2, 2)):
        with pytest.raises(ValueError, match="do not fit together"):
            train_dataset(manifest, config, SampleOrder(samples, 1), 0, 1, batch, rank, size)


@pytest.mark.parametrize("count", [1, 5, 8, 33, None])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_validation_has_each_sample_once_and_equal_steps(config, manifest, count, batch_size, size):
    rows = rows_of(config, manifest, "valid_zh")
    parts = [batches(valid_dataset(manifest, config, "valid_zh", count, batch_size, rank, size, with_sample_id=True))
             for rank in range(size)]
    assert len({ids.shape for ids, _ in parts}) == 1
    ids = np.concatenate([part.ravel() for part, _ in parts])
    tokens = np.concatenate([part.reshape(-1, rows.shape[1]) for _, part in parts])
    assert ids[ids >= 0].tolist() == list(range(len(rows) if count is None else count))
    assert np.array_equal(tokens[ids >= 0], rows[ids[ids >= 0]])
    assert not tokens[ids < 0].any()


def test_validation_can_be_read_again(setup):
    config, manifest, _ = setup
    dataset = valid_dataset(manifest, config, "valid_en", 10, 4, 0, 1, with_sample_id=True)
    first, second = batches(dataset), batches(dataset)
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])
    assert valid_dataset(manifest, config, "valid_en", 10**9, 4, 0, 1).get_dataset_size() == \
        -(-manifest.sets["valid_en"].samples // 4)


def test_empty_validation_set_gives_none(config, manifest):
    empty = manifest.sets["valid_en"].model_copy(update={"samples": 0, "files": ()})
    none_held_out = manifest.model_copy(update={"sets": {**manifest.sets, "valid_en": empty}})
    assert valid_dataset(none_held_out, config, "valid_en", None, 4, 0, 1) is None
    with pytest.raises(UserError, match="there are valid_en, valid_zh"):
        valid_dataset(manifest, config, "valid_fr", None, 4, 0, 1)


def test_rows_in_another_order_are_noticed(config, manifest):
    """The reader compares the number that each row carries: files listed in another order do not pass."""
    entry = manifest.sets["train"]
    files = tuple(sorted(entry.files, key=lambda file: file.name, reverse=True))
    swapped = manifest.model_copy(update={"sets": {**manifest.sets, "train": entry.model_copy(update={"files": files})}})
    order = SampleOrder(entry.samples, 1)
    with pytest.raises(RuntimeError, match="asked for the samples"):
        list(train_dataset(swapped, config, order, 0, 2, 8, 0, 1).create_tuple_iterator(num_epochs=1))


def test_reading_validation_does_not_move_training(config, manifest):
    order = SampleOrder(manifest.sets["train"].samples, 1)
    dataset = train_dataset(manifest, config, order, 0, 12, 8, 0, 1, with_sample_id=True)
    ids = []
    for step, (_, _, found) in enumerate(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)):
        ids.append(found)
        if step % 5 == 0:
            batches(valid_dataset(manifest, config, "valid_en", 7, 2, 0, 1, with_sample_id=True))
    assert np.array_equal(np.concatenate(ids), order.indices(0, 96))


def test_workers_never_exceed_the_cores(text_folder, tmp_path):
    import os
    cores = len(os.sched_getaffinity(0))
    assert small_config(text_folder, tmp_path, num_workers=10_000).workers() == cores
    assert 1 <= small_config(text_folder, tmp_path, num_workers="auto").workers() <= max(1, cores * 6 // 10)
    assert small_config(text_folder, tmp_path, num_workers="auto").workers(auto_percent=100) == min(8, cores)

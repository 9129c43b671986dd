"""Tier `stage`: loss, perplexity and accuracy on held-out text, of each corpus and of all together."""
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Model

from data.config import DataConfig
from data.dataset import valid_dataset
from data.manifest import Manifest
from data.tokenizer import PAD_ID
from eval.metrics import TokenMetric, perplexity, together, token_scores, unigram_loss
from eval.step import EvalStep, mode_kept
from parallel import collectives
from parallel.mesh import Mesh


class Validation:
    """Evaluates the same samples each time, all ranks together.

    Args:
        step: the forward pass.
        network: how it is called: itself, or under MindSpore's parallelism.
        num_samples: of each corpus, from its beginning; None: all of them.
        batch_size: samples that one data-parallel rank computes at once.
    """

    def __init__(self, step: EvalStep, network: nn.Cell, manifest: Manifest, config: DataConfig, mesh: Mesh,
                 num_samples: int | None, batch_size: int):
        self.gpt = step.gpt
        metric = TokenMetric(EvalStep.counts(mesh)).set_indexes([0, 1, 2])
        self.model = Model(network, eval_network=network, metrics={"tokens": metric})
        self.batch_shape = (batch_size, config.seq_length + 1)
        self.datasets = {}
        for name in manifest.valid_sets:
            if manifest.sets[name].samples:
                self.datasets[name.removeprefix("valid_")] = valid_dataset(
                    manifest, config, name, num_samples, batch_size, mesh.dp_rank, mesh.dp)
        self.empty = sorted({name.removeprefix("valid_") for name in manifest.valid_sets} - set(self.datasets))
        self.counts = np.load(config.prepared_dir / "token_counts.npy")
        self.baseline = None

    def warm_up(self) -> None:
        """Compile, on a batch without tokens."""
        with mode_kept(self.gpt):
            self.model.eval(ds.NumpySlicesDataset(np.full((1, *self.batch_shape), PAD_ID, np.int32), shuffle=False))

    def run(self) -> dict:
        """{"corpora": {name: scores}, "all": scores, "unigram_perplexity": of all together, "not_computed": {name: why}}.

        Scores are those of eval.metrics.TokenMetric: None rather than a false number where no token counted.
        """
        if self.baseline is None:
            self.baseline = self._baseline()
        with mode_kept(self.gpt):
            corpora = {n: self.model.eval(dataset, dataset_sink_mode=False)["tokens"] for n, dataset in self.datasets.items()}
        return {"corpora": {**corpora, **{name: token_scores(0, 0, 0) for name in self.empty}},
                "all": together(list(corpora.values())), "unigram_perplexity": self.baseline,
                "not_computed": {name: "there is no validation text" for name in self.empty}}

    def _baseline(self) -> float | None:
        """Perplexity of the training text's token frequencies on the same tokens: what knowing no context gives."""
        sums = np.zeros(2)
        for dataset in self.datasets.values():
            for (tokens,) in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True):
                labels = tokens[:, 1:][tokens[:, 1:] != PAD_ID]
                sums += unigram_loss(self.counts, labels).sum(), len(labels)
        loss, count = collectives.gather(sums).sum(0)
        return perplexity(loss / count) if count else None

"""Looks at each batch on the host before it is trained on: a broken one is passed over, or ends the run, on all ranks alike."""
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import mindspore.dataset as ds
import numpy as np
from mindspore.train import Callback

from data.config import DataConfig
from data.dataset import read_samples
from data.manifest import Manifest
from data.order import Reading, SampleOrder
from data.tokenizer import PAD_ID
from data.verify import Verifier
from eval.health.labels import breaks, wrong_labels
from eval.health.rules.base import Event
from eval.health.rules.config import RulesConfig
from eval.health.rules.data import all_valid, batch_figures
from eval.health.rules.engine import DATA_RULES, Bars
from parallel import collectives
from train.passed_over import Ledger, PassedOver
from train.triggers import Halted, Triggers, Wish

NUMBERS = {name: number for number, name in enumerate(DATA_RULES, 1)}  # by which ranks tell each other of a rule
FILE = len(NUMBERS) + 1   # and of a file that is damaged
PATIENCE = 60.0           # seconds that the first step waits for the files to be read


class Gate(Callback):
    """Keeps one batch in hand. What it finds there travels with the wishes that ranks tell each other at a step's end anyway, so
    that no step waits for it; only where a batch is passed over, and before the first step, ranks meet once more.

    Args:
        rules: of level skip or stop; other levels are told of by the tier `health`, of what was `read`.
        reading: where in the order the run is.
        last_step: the step that this process starts after.
        ledger: of what is passed over.
        verifier: of the files; None: nobody wants to know.
    """

    def __init__(self, rules: RulesConfig, reading: Reading, last_step: int, vocab_size: int, ledger: Ledger,
                 verifier: Verifier | None):
        super().__init__()
        self.verifier = verifier
        self.rules, self.reading, self.step, self.vocab_size = Bars(rules), reading, last_step, vocab_size
        self.settings, self.ledger = rules, ledger
        self.tell: Callable[[list[Event]], None] = lambda events: None  # on rank 0
        self.reason: Callable[[], str] = lambda: "rank 0 says why"
        self.read: np.ndarray | None = None  # the tokens of the batch that the last step read
        self.rank_seconds: dict = {}  # what the ranks' hosts spent before it
        self.source: Iterator | None = None
        self.held, self.coming, self.tokens, self.event, self.left = None, None, None, None, 0

    @property
    def found(self) -> int:
        """The number of what is wrong with the batch in hand, or with a file; 0: nothing."""
        if self.verifier and self.verifier.problem:
            return FILE
        return NUMBERS[self.event.rule] if self.event else 0

    def over(self, dataset: ds.Dataset, steps: int) -> ds.Dataset:
        """The dataset with this at its end, for `steps` batches that may be trained on."""
        make, self.left = dataset.create_tuple_iterator, steps

        def iterator(**options) -> Gate:
            self.source = make(**options)
            return self
        dataset.create_tuple_iterator = iterator
        return dataset

    def remember(self, rows: Iterable[dict]) -> None:
        """The rows of an earlier start, by which repeated batches are told."""
        for row in rows:
            self.rules.see(row)

    def __iter__(self) -> "Gate":
        return self

    def __next__(self):
        if self.held is None:
            raise StopIteration
        element, self.held = self.held, None
        self.coming = next(self.source, None)  # now, that the pipeline's Python refills its queue while the step computes
        return element

    def look(self) -> None:
        """Take the next batch in hand, and hold it against the rules."""
        self.held, self.coming, self.event = self.coming or next(self.source), None, None
        self.tokens = self.held[0].asnumpy()
        # All figures only where a rule asks: what runs once a step finds the processor's caches full of the step.
        if self.rules.hold_valid or not all_valid(self.tokens, self.vocab_size):
            self.event = self.rules.see({"step": self.step + 1, **batch_figures(self.tokens, self.vocab_size)})

    def heed(self, wish: Wish) -> Wish:
        """What all ranks have found in the batch that comes next. Returns their wish, which may have become to halt."""
        if len(wish.seconds) > 1:
            self.rank_seconds = {"slowest_rank": int(wish.seconds.argmax()), "slowest_rank_seconds": float(wish.seconds.max()),
                                 "usual_rank_seconds": float(np.sort(wish.seconds)[(len(wish.seconds) - 1) // 2])}
        found = wish.found
        while found.any():
            event = self.agreed_event(found)
            if event.level == "skip" and (why := self.skip(event)):
                event = replace(event, level="stop", message=f"{event.message}. {why}")
            self.tell([event])
            if event.level != "skip":
                return replace(wish, halt=wish.halt or event.level == "stop")
            self.look()
            found = collectives.gather(float(self.found))[:, 0]
        return wish

    def agreed_event(self, found: np.ndarray) -> Event:
        """The event that all ranks heed: of level stop if one is, and of the first rank that has one."""
        if (found == FILE).any():
            return self.file_event(int((found == FILE).argmax()))
        names = {rank: name for rank, number in enumerate(found) if number
                 for name, own in NUMBERS.items() if own == number}
        rank, name = min(names.items(), key=lambda one: (getattr(self.settings, one[1]).level != "stop", one[0]))
        if self.event and self.event.rule == name:
            return self.event
        return Event(self.step + 1, name, getattr(self.settings, name).level, f"rank {rank} was given such a batch to read")

    def file_event(self, rank: int) -> Event:
        """A file is damaged, as a rank has found; each is told once. It cannot be skipped."""
        level = self.settings.corrupt_data.level
        mine, self.verifier = self.verifier.problem, None
        return Event(self.step + 1, "corrupt_data", "stop" if level == "skip" else level,
                     mine or f"rank {rank} has found a file of the prepared data altered; its log says which")

    def skip(self, event: Event) -> str:
        """Pass over the batch in hand. Returns why that cannot be; "": it is done."""
        places = self.reading.next_batch()
        why = self.ledger.add(PassedOver(first=int(places[0]), stop=int(places[-1]) + 1, step=event.step, rule=event.rule,
                                         message=event.message))
        if not why:
            self.reading.batches += 1
        return why

    def on_train_step_end(self, run_context):
        self.step += 1
        self.read, self.left = self.tokens, self.left - 1
        self.event = None
        if self.left:
            self.look()


class Start(Callback):
    """Before the first step: are the files whole, is the first batch what the text says, are its labels the next tokens?"""

    def __init__(self, gate: Gate, triggers: Triggers, manifest: Manifest, config: DataConfig, order: SampleOrder, dp_rank: int):
        super().__init__()
        self.gate, self.triggers, self.manifest, self.config, self.order = gate, triggers, manifest, config, order
        self.dp_rank = dp_rank

    def verify(self) -> None:
        """Raises Halted, on all ranks, before anything was read from a damaged file, which MindRecord may die of."""
        if verifier := self.gate.verifier:
            if problem := verifier.wait(PATIENCE):
                print(problem, flush=True)
            self.heed()

    def heed(self) -> None:
        """What all ranks have found so far."""
        if self.gate.heed(self.triggers.agreed(self.gate.found)).halt:
            raise Halted(self.gate.reason())

    def on_train_begin(self, run_context):
        """Raises Halted, on all ranks, before anything was trained."""
        gate = self.gate
        gate.look()
        places = gate.reading.next_batch()
        labels, stream = collectives.gather(self.faults(gate.held[0].asnumpy(), places)).max(0)
        setting = gate.settings.label_shift
        if setting.level != "off" and max(labels, stream) > setting.threshold:
            what = f"{labels:.0%} of the first batch's labels are not the token after the one that they are predicted from: " \
                "look at Labels and GPTLoss in model/gpt.py" if labels >= stream else \
                f"{stream:.0%} of the first batch's samples are not those of the prepared text: look at data/dataset.py and " \
                "data/packing.py"
            gate.tell([Event(gate.step + 1, "label_shift", setting.level, what)])
            if setting.level == "stop":
                raise Halted(gate.reason())
        self.heed()

    def faults(self, tokens: np.ndarray, places: np.ndarray) -> tuple[float, float]:
        """The shares of wrong labels, and of samples that are not the text's, in this rank's batch int32 [samples, seq + 1]."""
        if self.gate.settings.label_shift.level == "off" or not all_valid(tokens, self.gate.vocab_size):
            return 0.0, 0.0  # tokens that are none have a rule of their own
        numbers = self.order.at(places)[self.dp_rank * len(tokens):][:len(tokens)]
        last = self.order.num_samples - 1
        both = read_samples(self.manifest, self.config, np.concatenate((numbers, np.minimum(numbers + 1, last))))
        stored, following = np.split(both, 2)
        following[numbers == last] = PAD_ID
        return wrong_labels(tokens), breaks(tokens, stored, following)

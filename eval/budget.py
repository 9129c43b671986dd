"""How much of the tier `stage` fits into its part of the training time."""


class Budget:
    """Shares out `fraction` of the training time; what is not used is saved up.

    Held-out text comes first, in whole batches of each corpus. Tasks are asked when the time saved up pays for all their
    questions; at the last evaluation, for as many as it pays for. That one is never left out: its first batch is kept back.

    Args:
        fraction: of the training time; None: no bound.
        num_batches: of each corpus, the whole of its text.
        text_seconds, task_seconds: what the whole of each takes, to begin with; each evaluation measures it anew.
    """

    def __init__(self, fraction: float | None, num_batches: int, text_seconds: float, task_seconds: float):
        self.fraction, self.num_batches = fraction, num_batches
        self.text_seconds, self.task_seconds = text_seconds, task_seconds
        self.spent = 0.0

    def shares(self, training_seconds: float, last: bool) -> tuple[float, float]:
        """The shares of the text and of the tasks' questions to evaluate now; of the text 0: none of either."""
        if self.fraction is None:
            return 1.0, 1.0
        left = self.fraction * training_seconds - self.spent - (0.0 if last else self.text_seconds / max(1, self.num_batches))
        if self.text_seconds:
            batches = min(self.num_batches, int(left / self.text_seconds * self.num_batches)) if left > 0 else 0
            text = max(batches, int(last)) / self.num_batches
        else:  # there is no text
            text = 1.0
        left -= text * self.text_seconds
        tasks = min(1.0, max(0.0, left / self.task_seconds)) if self.task_seconds and text else 0.0
        return text, tasks if tasks == 1.0 or last else 0.0

    def spend(self, shares: tuple[float, float], seconds: tuple[float, float]) -> None:
        """Note what an evaluation of these shares took."""
        self.spent += sum(seconds)
        if shares[0]:
            self.text_seconds = seconds[0] / shares[0]
        if shares[1]:
            self.task_seconds = seconds[1] / shares[1]

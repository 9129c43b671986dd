"""What can be wrong with the graphs of a job."""


class LockstepError(RuntimeError):
    """The graphs cannot be executed together."""


class UnknownOperator(LockstepError):
    """A graph uses an operator that has no kernel here."""


class KernelFailure(LockstepError):
    """An operator failed, or its result is not what MindSpore's inference says."""


class Mismatch(LockstepError):
    """Two ranks came to the same communication with something different."""


class Deadlock(LockstepError):
    """No rank can go on."""

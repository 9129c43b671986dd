"""The one error that a user is meant to read."""


class UserError(ValueError):
    """Something that the user gave is wrong: one line that says what, where, what is allowed and what to do.

    Command lines print it without a traceback and end with exit code 2; nothing was started or written.
    """

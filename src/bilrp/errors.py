"""Errors that users see: one clear line that says what happened and what to do."""


class BilrpError(Exception):
    """Base of everything bilrp raises on purpose; the command line prints it as one line, no traceback."""


class InputError(BilrpError):
    """An input that cannot be explained: wrong shape, NaN, an unreadable file, an empty region."""


class TapeError(BilrpError):
    """The model did something that the tape cannot see."""


class RuleError(BilrpError):
    """A step has no rule, or a rule does not fit its step."""


class MismatchError(BilrpError):
    """Two decompositions that do not belong to the same encoder, layer, rules or projection."""

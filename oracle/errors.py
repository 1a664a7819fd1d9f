"""Errors of the oracle. Each message is one line that names what, where, have and want."""


class SpecError(ValueError):
    """A model description that is incomplete, unknown or impossible."""


class WeightError(ValueError):
    """Weights that cannot be used: broken, contradictory or incomplete."""


class Unavailable(WeightError):
    """A place that does not have the weights or cannot be reached; another place may."""

"""What can end a run, each with one line for the person at the terminal."""

from __future__ import annotations


class BundleError(Exception):
    """The bundle, the environment or the call is wrong. Exit status 2."""


class DeviceError(Exception):
    """The device did not complete what it was asked for, or gave back nonsense. Exit status 2."""

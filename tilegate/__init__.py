"""Tilegate: declarative, gated deployment of decoder-only LLMs on a spatial NPU."""

__version__ = "0.1.0"

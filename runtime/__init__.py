"""The runtime of a bundle: an XRT-shaped session, the model runner and the command line.

It is copied into every bundle and runs there alone: standard library, numpy and tokenizers only,
relative imports only. It reads manifests; it never plans, compiles or judges.
"""

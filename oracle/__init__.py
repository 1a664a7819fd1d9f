"""The truth: weight sources, the FP32 decoder, golden traces and error metrics."""

"""Decode of the promoted default model on the emulated device against other runtimes on this CPU.

    python benchmarks/decode.py [BUNDLE] [--threads N] [--tokens N] [--llama-site DIR]

In turns in one run, on the same cores: the bundle on the emulated NPU2; transformers in bf16 on the
same weights; and llama.cpp on an F16 GGUF of them where `llama_cpp` can be imported (`pip install
llama-cpp-python` builds it; it is no requirement of ours). Wall time of this machine, best token of
each: nothing here says how fast the NPU is.

The cost of a token is also shown by its place in the context, where attention makes it grow.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tilegate.config import load, plain
from tilegate.store import ROOT

PROMPT = 16


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=24, help="per turn, default %(default)s")
    parser.add_argument("--llama-site", type=Path, help="a folder that holds llama_cpp")
    options = parser.parse_args(argv)
    name = load([]).model.name
    bundle = options.bundle or ROOT / "build" / "deploy" / name
    os.environ["TILEGATE_THREADS"] = str(options.threads)
    if options.llama_site:
        sys.path.append(str(options.llama_site))
    sides: dict[str, Callable[[int], list[float]]] = {}
    runner, sides["emulated NPU2"] = _emulated(bundle)
    model, sides["transformers bf16"] = _transformers(bundle, options.threads)
    with tempfile.TemporaryDirectory() as place:
        try:
            sides["llama.cpp F16"] = _llama(bundle, model, Path(place, "model.gguf"), options)
        except ImportError as error:
            print(f"llama.cpp: not measured ({error})")
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(3):
            for side, decode in sides.items():
                best[side] = min(best[side], *decode(options.tokens))
    print(f"{name}, {options.threads} threads, best token of 3 x {options.tokens}, wall time")
    for side, seconds in best.items():
        ratio = seconds / best["emulated NPU2"]
        print(f"{side:20} {seconds * 1e3:8.2f} ms  {1 / seconds:7.1f} tokens/s  x {ratio:.2f}")
    _growth(runner)
    return 0


def _timed(step: Callable[[], Any], count: int) -> list[float]:
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        spent.append(time.perf_counter() - begun)
    return spent


def _emulated(bundle: Path) -> tuple[Any, Callable[[int], list[float]]]:
    from runtime.manifest import read_manifest
    from runtime.runner import Runner
    from runtime.session import open_session

    runner = Runner(bundle, open_session("emulated", read_manifest(bundle).device))

    def decode(count: int) -> list[float]:
        runner.prefill(list(range(40, 40 + PROMPT)))
        return _timed(lambda: runner.decode(7), count)

    return runner, decode


def _transformers(bundle: Path, threads: int) -> tuple[Any, Callable[[int], list[float]]]:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from oracle.check import reference_config
    from oracle.spec import ModelSpec

    spec = ModelSpec.from_dict(plain(load([]).model))
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_config(reference_config(spec)).bfloat16().eval()
    state = load_file(bundle / "weights.safetensors")
    model.load_state_dict(state, strict=not spec.tied)
    model.tie_weights()

    def decode(count: int) -> list[float]:
        with torch.inference_mode():
            seen = model(torch.arange(40, 40 + PROMPT)[None], use_cache=True)
            cache = seen.past_key_values
            token = torch.tensor([[7]])
            return _timed(lambda: model(token, past_key_values=cache, use_cache=True), count)

    return model, decode


def _llama(
    bundle: Path, model: Any, path: Path, options: argparse.Namespace
) -> Callable[[int], list[float]]:
    import llama_cpp

    _write_gguf(model, path)
    llm = llama_cpp.Llama(
        str(path), n_ctx=512, n_threads=options.threads, n_threads_batch=options.threads,
        verbose=False,
    )  # fmt: skip

    def decode(count: int) -> list[float]:
        llm.reset()
        llm.eval(list(range(40, 40 + PROMPT)))
        return _timed(lambda: llm.eval([7]), count)

    return decode


def _write_gguf(model: Any, path: Path) -> None:
    """The model's weights as F16 GGUF of llama.cpp's own names; Q and K in its order of rows."""
    import gguf
    import numpy as np

    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.float().numpy()
        for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            if name.endswith(f"{part}_proj.weight"):
                halves = array.reshape(heads, 2, array.shape[0] // heads // 2, array.shape[1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        found = names.get_name(name, try_suffixes=(".weight",))
        matrix = array.ndim > 1
        writer.add_tensor(found, array.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _growth(runner: Any) -> None:
    """Milliseconds of a token by its position; all of the cache is streamed at every one."""
    context = runner.bundle.manifest.context
    print("position    ms per token (best of 8)")
    runner.prefill(list(range(40, 40 + PROMPT)))
    while runner.position + 8 < context:
        at = runner.position
        print(f"{at:8}    {min(_timed(lambda: runner.decode(7), 8)) * 1e3:.2f}")
        for _ in range(min(56, context - runner.position - 9)):
            runner.decode(7)


if __name__ == "__main__":
    sys.exit(main())

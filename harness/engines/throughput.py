"""Greedy tokens per second of both runners and of transformers, interleaved, as one JSON line.

Run as a child by `harness bench`; imports torch and transformers, and nothing of the command line.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Generate = Callable[[], int]
"""Generates the whole batch and returns how many new tokens came."""


def transformers_generate(request: Mapping[str, Any], prompts: list[list[int]]) -> Generate:
    """Transformers' own generate on the checkpoint; prompts of one length, so nothing is padded."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, request["dtype"])
    model: Any = AutoModelForCausalLM.from_pretrained(request["path"], dtype=dtype)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    input_ids = torch.tensor(prompts)
    mask = torch.ones_like(input_ids)

    def generate() -> int:
        with torch.inference_mode():
            whole = model.generate(
                input_ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=request["tokens"],
                min_new_tokens=request["tokens"],
            )
        return int((whole.shape[1] - input_ids.shape[1]) * whole.shape[0])

    return generate


def engine_generate(request: Mapping[str, Any], prompts: list[list[int]], flag: str) -> Generate:
    """The reference engine under one runner, without offload and without log-probabilities."""
    from harness.refengine import LLM, SamplingParams

    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = flag
    length = len(prompts[0]) + request["tokens"]
    llm = LLM(
        request["path"],
        dtype=request["dtype"],
        max_model_len=length,
        max_num_seqs=len(prompts),
        max_num_batched_tokens=max(2048, length * len(prompts)),
    )
    params = SamplingParams(max_tokens=request["tokens"], temperature=0.0, ignore_eos=True)

    def generate() -> int:
        outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params)
        return sum(len(o.token_ids) for o in outputs)

    return generate


def main() -> None:
    """Measure; the rounds of the three go in turn, so that drift touches all alike."""
    request = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(request["num_threads"])
    rng = random.Random(0)
    prompts = [
        [rng.randrange(4, request["vocab_size"]) for _ in range(32)]
        for _ in range(request["batch"])
    ]
    arms: dict[str, Generate] = {
        "transformers": transformers_generate(request, prompts),
        "v1": engine_generate(request, prompts, "0"),
        "v2": engine_generate(request, prompts, "1"),
    }
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for generate in arms.values():
        generate()
    for _ in range(request["rounds"]):
        for name, generate in arms.items():
            started = time.perf_counter()
            count = generate()
            rates[name].append(count / (time.perf_counter() - started))
    sys.stdout.write(json.dumps(rates) + "\n")


if __name__ == "__main__":
    main()

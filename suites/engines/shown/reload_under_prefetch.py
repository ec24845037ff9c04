"""vLLM: reload_weights does not reach the host copies of a prefetch offloader.

python reload_under_prefetch.py MODEL OTHER: folders of one shape with different weights; a GPU.
MODEL is loaded and reloaded with OTHER's weights. It must then answer as an engine that was started
with OTHER, and go on to. Without the offload arguments it does.
"""

import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams

PROMPTS = [{"prompt_token_ids": list(range(5, 15))}]
PARAMS = SamplingParams(temperature=0, max_tokens=8, detokenize=False, ignore_eos=True)
ARGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 64 << 20,
    "max_model_len": 64,
}
PREFETCH = {"offload_group_size": 1, "offload_prefetch_step": 3}


def answer(llm):
    """The tokens of one answer."""
    return list(llm.generate(PROMPTS, PARAMS, use_tqdm=False)[0].outputs[0].token_ids)


def main(model, other):
    """Leave with what each engine answers, where the answers differ."""
    fresh = LLM(other, **ARGS)
    wanted = answer(fresh)
    fresh.llm_engine.engine_core.shutdown()
    del fresh
    llm = LLM(model, **ARGS, **PREFETCH)
    llm.collective_rpc("reload_weights", kwargs={"weights_path": other})
    found = [answer(llm) for _ in range(3)]
    if found != [wanted] * 3:
        sys.exit(f"started with OTHER:  {wanted}\nreloaded with OTHER: {found}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

"""Makes harness/checkpoints/tiny-llama from nothing: text, tokenizer, training, prompts.

The text comes from the small grammar in tiny_text.py; no data set is read. A fixed seed fixes the
text, the tokenizer and the order of training; weights repeat bit for bit on the same machine,
number of threads and library versions only. Needs torch, transformers and tokenizers
(`pip install .[dev,engine]`); about six minutes on two free cores.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_text import write_documents, write_held_out
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

HOME = Path(__file__).resolve().parents[1] / "harness" / "checkpoints" / "tiny-llama"
END = "<|end|>"
SEQ_LEN = 336
DEFAULT_LENGTHS = (6, 12, 24, 48, 96, 144, 200, 256)
ORACLE_LENGTHS = (1, 2, 7, 16, 33, 64, 129, 256)
MAX_SAFETENSORS_BYTES = 4_000_000

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def train_tokenizer(documents: list[str]) -> Tokenizer:
    """A byte-level BPE of exactly vocab_size tokens; digits stay apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    assert tokenizer.get_vocab_size() == CONFIG["vocab_size"], tokenizer.get_vocab_size()
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[int]:
    """One stream of ids with an end token after each document."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(documents):
        ids += [*encoding.ids, CONFIG["eos_token_id"]]
    return ids


def unigram_entropy(ids: list[int]) -> float:
    """Nats per token of a model that knows frequencies only."""
    counts = Counter(ids)
    return -sum(n / len(ids) * math.log(n / len(ids)) for n in counts.values())


def train(ids: list[int], *, steps: int, batch: int, seed: int, peak: float) -> LlamaForCausalLM:
    """Next-token training in float32 (AdamW, warm-up, cosine); prints the loss in nats."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).float().train()
    stream, generator = torch.tensor(ids), torch.Generator().manual_seed(seed)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))
    started = time.monotonic()
    for step in range(steps):
        warm, done = min(1.0, (step + 1) / 40), step / steps
        for group in optimizer.param_groups:
            group["lr"] = peak * warm * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        at = torch.randint(len(ids) - SEQ_LEN, (batch,), generator=generator)
        rows = torch.stack([stream[i : i + SEQ_LEN] for i in at.tolist()])
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 25 == 0 or step == steps - 1:
            spent = time.monotonic() - started
            print(f"step {step:5d}  loss {loss.item():.3f}  {spent:.0f} s", flush=True)
    return model.eval()


def held_out_prompts(ids: list[int]) -> dict[str, list[list[int]]]:
    """Prompts by workload name, cut from the start of held-out documents."""
    starts = [0] + [i + 1 for i, token in enumerate(ids) if token == CONFIG["eos_token_id"]]

    def cut(lengths: tuple[int, ...], first: int) -> list[list[int]]:
        return [ids[starts[first + i] :][:n] for i, n in enumerate(lengths)]

    return {
        "default": cut(DEFAULT_LENGTHS, 0),
        "oracle": cut(ORACLE_LENGTHS, 20),
        "short": cut((10, 32), 40),
    }


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, prompts: object, folder: Path) -> None:
    """Writes the folder: bfloat16 weights, config, tokenizer and prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)
    size = file.stat().st_size
    assert size <= MAX_SAFETENSORS_BYTES, f"{size} bytes"
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "prompts.json").write_text(json.dumps(prompts) + "\n", encoding="utf-8")
    print(f"wrote {folder}: {size} bytes of safetensors")


def main() -> None:
    """Train, show a few continuations, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=HOME)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=4, help=f"sequences of {SEQ_LEN} tokens")
    parser.add_argument("--peak-lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    documents = write_documents(args.seed, 24_000)
    unseen = write_held_out(args.seed + 1, 240, set(documents))
    tokenizer = train_tokenizer(documents)
    ids, held_out = encode_documents(tokenizer, documents), encode_documents(tokenizer, unseen)
    print(f"{len(ids)} training tokens, unigram entropy {unigram_entropy(ids):.3f} nats")
    model = train(ids, steps=args.steps, batch=args.batch, seed=args.seed, peak=args.peak_lr)
    prompts = held_out_prompts(held_out)
    with torch.inference_mode():
        rows = torch.tensor(held_out[: SEQ_LEN * 16]).view(16, SEQ_LEN)
        print(f"held-out loss {model(input_ids=rows, labels=rows).loss.item():.3f} nats")
        for prompt in prompts["default"][:5]:
            out = model.generate(torch.tensor([prompt]), max_new_tokens=64, do_sample=False)
            new = tokenizer.decode(out[0].tolist()[len(prompt) :])
            print(f"--- {tokenizer.decode(prompt)!r}\n    {new!r}")
    save(model, tokenizer, prompts, args.output)


if __name__ == "__main__":
    main()

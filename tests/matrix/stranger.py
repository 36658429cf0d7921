"""What somebody else does with our folders: run by environments that lack this package, it imports none of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

SETTINGS = ("eos_token_id", "pad_token_id", "temperature", "top_p", "repetition_penalty")


def look_at_tokenizer(tokenizer: Any, texts: list[str], chat: list[dict[str, str]]) -> dict[str, Any]:
    """Ids, texts and settings of a tokenizer, as JSON."""
    ids = [tokenizer(text)["input_ids"] for text in texts]
    return {
        "ids": ids,
        "decoded": [tokenizer.decode(each, skip_special_tokens=True) for each in ids],
        "size": len(tokenizer),
        "special": sorted(map(int, tokenizer.all_special_ids)),
        "side": tokenizer.padding_side,
        "max_length": int(tokenizer.model_max_length),
        "chat": tokenizer.apply_chat_template(chat, tokenize=False) if tokenizer.chat_template else None,
    }


def look_at_model(model: Any, ids: list[int]) -> tuple[Any, dict[str, Any]]:
    """Logits (T, V_rows) of a text; greedy continuation and generation settings as JSON."""
    import torch

    given = torch.tensor([ids])
    with torch.no_grad():
        logits = model(given).logits[0]
        greedy = model.generate(
            given[:, :40], attention_mask=torch.ones_like(given[:, :40]), do_sample=False, max_new_tokens=16
        )
    settings = {name: getattr(model.generation_config, name, None) for name in SETTINGS}
    return logits, {"greedy": greedy[0].tolist(), "settings": settings, "dtype": str(model.dtype)}


def options_of(folder: str) -> dict[str, Any]:
    """How the model card says that a folder is to be loaded in this release."""
    options = {"dtype": "auto"}
    if importlib.metadata.version("transformers").startswith("4."):
        card = (Path(folder) / "README.md").read_text(encoding="utf-8")
        options |= dict(re.findall(r'`(attn_implementation)="(\w+)"`', card))
    return options


def main(job_file: str) -> None:
    """Load each folder of a job and write what it gives into `answers.json` and `logits.safetensors`."""
    if importlib.util.find_spec("vocabx_utils") is not None:
        raise SystemExit("vocabx_utils can be imported here: this shows nothing about other people's machines")
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    logits, answers = {}, {}
    for name, folder in job["folders"].items():
        try:
            answer = look_at_tokenizer(AutoTokenizer.from_pretrained(folder), job["texts"], job["chat"])
            if (Path(folder) / "config.json").exists():
                model = AutoModelForCausalLM.from_pretrained(folder, **options_of(folder)).eval()
                logits[name], seen = look_at_model(model, job["ids"][name])
                answer |= seen
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers[name] = answer
    out = Path(job["out"])
    out.mkdir()
    save_file(logits, out / "logits.safetensors")
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers", "torch")}
    text = json.dumps({"versions": versions, "folders": answers}, ensure_ascii=False)
    (out / "answers.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

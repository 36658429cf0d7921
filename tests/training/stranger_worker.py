"""What somebody does with exported folders who has this package not, in a process of its own (see `forked`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def load_folders(ids: list[int], jobs: list[tuple[Path, Path | None]]) -> None:
    """Write the logits of `ids`, and what a pipeline and the tokenizer say, into each folder (with an adapter or none).

    Both go into files, because libraries print.
    """
    assert not [name for name in sys.modules if name.startswith("vocabx_utils")]
    sys.modules["vocabx_utils"] = None  # type: ignore[assignment]  # as on a machine that does not have it
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    for folder, adapter in jobs:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        if adapter:
            model = PeftModel.from_pretrained(model, adapter).eval()
        with torch.no_grad():
            torch.save(model(torch.tensor([ids])).logits[0], folder / "logits.pt")
        pipe = pipeline("text-generation", model=str(folder))
        text = pipe("Write groupby", max_new_tokens=3, do_sample=False)[0]["generated_text"]
        told = [tokenizer("x groupby numpy")["input_ids"], text, tokenizer.chat_template is not None]
        (folder / "told.json").write_text(json.dumps(told))

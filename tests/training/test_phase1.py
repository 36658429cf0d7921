"""Phase 1 as a whole, on a tiny model: it learns, stops when it must, and goes on where it was killed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import run_forked
from tiny import ROWS, WIDTH, N, V, as_base, new_tokens, tiny_model, tokenizers
from training.phase1_parts import aligned, example_set, phase1_data, settings
from training.phase1_worker import train_and_die

from vocabx_utils import files, runs
from vocabx_utils.student import Student
from vocabx_utils.training import phase1, step_losses
from vocabx_utils.training.checkpoints import load_checkpoint
from vocabx_utils.training.checks import NotImprovedError, RowsNotTrainedError
from vocabx_utils.training.continuations import sample_after
from vocabx_utils.training.examples import AlignedSet, whole_texts
from vocabx_utils.training.loop import NonFiniteLossError, learning_rate
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1_stage import VariantResult, train_variant
from vocabx_utils.training.teacher import ask_teacher, teacher_cache
from vocabx_utils.training.validation import evaluate
from vocabx_utils.vocabulary.alignment import align_ids

VARIANTS = [
    "mean_ce",
    "mean_kl_last",
    "random_kl_first",
    "mean_kl_none",
    "mean_kl_last_ce0.3_t2_w3",
    "mean_hidden_last",
]


def train(name: str, folder: Path, **changes: Any) -> tuple[VariantResult, Any]:
    base = tiny_model()
    data = phase1_data(base, folder / "teacher")
    return train_variant(name, base, new_tokens(), data, settings(**changes), folder / name), base


def rows_of(folder: Path, epoch: int) -> dict[str, torch.Tensor]:
    return files.read_tensors(folder / "rows" / f"epoch_{epoch:02d}.safetensors")


@pytest.mark.parametrize(
    "name", [*VARIANTS, "mean_cosine_first", "align_kl_last", "first_kl_last", "mean_hidden_last_l1"]
)
def test_a_variant_learns_its_own_objective_and_moves_nothing_else(tmp_path: Path, name: str) -> None:
    base = tiny_model()
    before = {key: value.clone() for key, value in base.model.state_dict().items()}
    data = phase1_data(base, tmp_path / "teacher")
    layer = parse_variant(name).objective.layer  # type: ignore[union-attr]
    if layer != -1:
        extra = teacher_cache(base, data.train, tmp_path / "layer", layer=layer, tell=lambda _: None)
        data = replace(data, layers={layer: extra})
    result = train_variant(name, base, new_tokens(), data, settings(epochs=6), tmp_path / name)
    losses = np.array([row["input_loss"] for row in files.read_jsonl(tmp_path / name / "steps.jsonl")])
    assert losses[-4:].mean() < losses[:4].mean()
    assert [row["epoch"] for row in result.metrics] == list(range(7))
    assert all(torch.equal(value, before[key]) for key, value in base.model.state_dict().items())
    start, end = rows_of(tmp_path / name, 0), rows_of(tmp_path / name, 6)
    seen = data.train.counts() > 0
    assert (start["input_rows"] != end["input_rows"]).any(1).numpy()[seen].all()
    assert torch.equal(start["input_rows"][~seen], end["input_rows"][~seen])
    assert result.without_examples == (np.flatnonzero(~seen) + V).tolist()
    sealed = runs.read_provenance(tmp_path / name)
    assert sealed["key"]["variant"] == name


def test_kl_last_improves_validation_kl(tmp_path: Path) -> None:
    result, _ = train("mean_kl_last", tmp_path, epochs=6, require_improvement=True)
    assert result.metrics[-1]["kl_last"] < result.metrics[0]["kl_last"]


def test_no_improvement_is_a_failure_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotImprovedError, match="untrained start"):
        train("mean_kl_last", tmp_path, learning_rate=30.0, require_improvement=True)


def test_an_improvement_that_cannot_be_judged_is_refused_before_the_first_step(tmp_path: Path) -> None:
    base = tiny_model()
    data = phase1_data(base, tmp_path / "teacher")
    plain = [replace(e, merged={k: np.zeros_like(v) for k, v in e.merged.items()}) for e in data.validation.examples]
    data = replace(data, validation=replace(data.validation, examples=tuple(plain)))
    with pytest.raises(NotImprovedError, match="no merged span"):
        train_variant(
            "mean_kl_last", base, new_tokens(), data, settings(require_improvement=True), tmp_path / "v"
        )  # fmt: skip
    assert not (tmp_path / "v" / "metrics.jsonl").exists()


def test_recurrent_models_are_run_from_their_first_token(tmp_path: Path) -> None:
    """Mamba keeps no keys and values: its prefixes are not kept, and what is continued is read again."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": ROWS, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4}
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    base = as_base(MambaForCausalLM(MambaConfig(**shape, **ends, initializer_range=0.3)).eval())
    train_set, validation = example_set(0, 4), example_set(20, 22)
    caches = [
        teacher_cache(base, s, tmp_path / str(len(s)), likelihood=s is validation, tell=lambda _: None)
        for s in (train_set, validation)
    ]
    data = phase1.Phase1Data(train_set, validation, *caches)
    result = train_variant("mean_kl_last", base, new_tokens(), data, settings(epochs=1), tmp_path / "v")
    assert result.metrics[-1]["kl_last"] != result.metrics[0]["kl_last"]
    rows = rows_of(tmp_path / "v", 1)
    model = Student(base.model, base.vocab_size, rows["input_rows"], rows["head_rows"])
    ids = validation.examples[0].ids[:7]
    found = sample_after(model, [ids], 2)[0]
    for length, token in enumerate(found):
        with torch.no_grad():
            best = model.logits(torch.tensor([[*ids.tolist(), *found[:length]]]))[0, -1].argmax()
        assert token == int(best)


def test_untrained_variants_are_only_measured(tmp_path: Path) -> None:
    result, _ = train("random_untrained", tmp_path)
    assert [row["epoch"] for row in result.metrics] == [0]
    assert not (tmp_path / "random_untrained" / "rows" / "epoch_01.safetensors").exists()


def test_same_seed_twice_and_finished_work_is_skipped(tmp_path: Path) -> None:
    train("mean_kl_last", tmp_path / "a")
    train("mean_kl_last", tmp_path / "b")
    for epoch in range(3):
        a, b = rows_of(tmp_path / "a/mean_kl_last", epoch), rows_of(tmp_path / "b/mean_kl_last", epoch)
        assert all(torch.equal(a[key], b[key]) for key in a)
    stamp = (tmp_path / "a/mean_kl_last/metrics.jsonl").stat().st_mtime_ns
    train("mean_kl_last", tmp_path / "a")
    assert (tmp_path / "a/mean_kl_last/metrics.jsonl").stat().st_mtime_ns == stamp
    with pytest.raises(runs.KeyMismatchError, match="learning_rate"):
        train("mean_kl_last", tmp_path / "a", learning_rate=1e-3)


def test_micro_batches_do_not_change_the_step(tmp_path: Path) -> None:
    train("mean_kl_last_ce0.3_w2", tmp_path / "small", token_budget=60)
    train("mean_kl_last_ce0.3_w2", tmp_path / "large", token_budget=10_000)
    a, b = (
        [row["input_loss"] for row in files.read_jsonl(tmp_path / size / "mean_kl_last_ce0.3_w2/steps.jsonl")]
        for size in ("small", "large")
    )
    np.testing.assert_allclose(a, b, rtol=1e-3)


def _worker(folder: Path, variant: str, step: int) -> int:
    [ended] = run_forked(train_and_die, folder, variant, step, log=folder / "log")
    return ended


def test_killed_and_resumed_equals_unbroken_bit_for_bit(tmp_path: Path) -> None:
    """SIGKILL at a random step (printed if it fails), twice, in a process of its own."""
    variant = "mean_kl_last_ce0.3"
    first, second = sorted(np.random.default_rng().choice(np.arange(1, 12), 2, replace=False).tolist())
    print("killed at steps", first, second)
    assert _worker(tmp_path / "broken", variant, first) == -9
    assert _worker(tmp_path / "broken", variant, second) == -9
    assert _worker(tmp_path / "broken", variant, 0) == 0
    assert _worker(tmp_path / "whole", variant, 0) == 0
    for epoch in range(4):
        a, b = (rows_of(tmp_path / which / variant, epoch) for which in ("broken", "whole"))
        assert all(torch.equal(a[key], b[key]) for key in a)
    a, b = (files.read_jsonl(tmp_path / which / variant / "steps.jsonl") for which in ("broken", "whole"))
    assert a == b
    a, b = (files.read_jsonl(tmp_path / which / variant / "metrics.jsonl") for which in ("broken", "whole"))
    for row in a + b:
        del row["seconds"]
    assert a == b


def test_a_checkpoint_of_version_01_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors stood as `input_rows` and `input_rows.exp_avg`."""
    variant, step = "mean_kl_last_ce0.3", phase1.Phase1Training.step

    def stop(self: Any, indices: list[int]) -> torch.Tensor:
        if self.done == 5:
            raise KeyboardInterrupt
        return step(self, indices)

    monkeypatch.setattr(phase1.Phase1Training, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(variant, tmp_path / "old")
    path = tmp_path / "old" / variant / "checkpoint.safetensors"
    stored = files.read_tensors(path)
    earlier = {".".join(reversed(k.split("/"))).removesuffix(".weights"): v for k, v in stored.items()}
    assert {"input_rows", "input_rows.exp_avg", "head_rows.step", "place"} <= earlier.keys()
    files.write_tensors(path, earlier)
    monkeypatch.undo()
    train(variant, tmp_path / "old")
    train(variant, tmp_path / "new")
    one, other = (rows_of(tmp_path / which / variant, 2) for which in ("old", "new"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    files.write_tensors(path, {"place": earlier["place"]})
    with pytest.raises(ValueError, match=r"does not hold input_rows of shape \(12, 32\): remove it to start anew"):
        load_checkpoint(path.parent, {"input_rows": one["input_rows"]}, [])


def test_two_processes_equal_one_at_the_same_global_batch(tmp_path: Path) -> None:
    variant = "mean_kl_last_ce0.3"
    assert _worker(tmp_path / "one", variant, 0) == 0
    log = tmp_path / "log"
    assert run_forked(train_and_die, tmp_path / "two", variant, 0, log=log, count=2) == [0, 0], log.read_text()[-3000:]
    one, two = (files.read_jsonl(tmp_path / which / variant / "steps.jsonl") for which in ("one", "two"))
    for name in ("input_loss", "head_loss"):
        np.testing.assert_allclose([row[name] for row in one], [row[name] for row in two], rtol=1e-4)
    kl = [files.read_jsonl(tmp_path / which / variant / "metrics.jsonl")[-1]["kl_last"] for which in ("one", "two")]
    assert kl[0] == pytest.approx(kl[1], rel=1e-3)


def test_a_loss_that_is_not_finite_stops_and_names_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    real = step_losses.phase1_loss

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        terms = real(*args, **kwargs)
        return replace(terms, input_loss=terms.input_loss * (math.nan if calls > 5 else 1.0))

    monkeypatch.setattr(step_losses, "phase1_loss", broken)
    with pytest.raises(NonFiniteLossError, match=r"step \d+ of epoch \d+, examples \["):
        train("mean_kl_last", tmp_path)
    saved = files.read_tensors(tmp_path / "mean_kl_last" / "checkpoint.safetensors")
    assert torch.isfinite(saved["weights/input_rows"]).all()
    assert not (tmp_path / "mean_kl_last" / "provenance.json").exists()


def test_a_row_that_should_have_moved_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B42: an optimiser that forgets one row."""
    monkeypatch.setattr(phase1.Phase1Training, "step", lambda self, indices: torch.zeros(2, dtype=torch.float64))
    with pytest.raises(RowsNotTrainedError, match="did not change"):
        train("mean_kl_last", tmp_path)


def test_steps_without_new_tokens_are_skipped_and_counted(tmp_path: Path) -> None:
    """B47: such a step changes nothing, is no NaN, and is counted."""
    base = tiny_model()
    data = phase1_data(base, tmp_path / "teacher")
    plain = whole_texts([align_ids(tokenizers(), [65 + k] * 5, [65 + k] * 5) for k in range(8)], V, N)
    both = AlignedSet(data.train.examples[:8] + plain.examples, vocab_size=V, n_new=N)
    data = replace(data, train=both, train_teacher=teacher_cache(base, both, tmp_path / "t", tell=lambda _: None))
    result = train_variant("mean_kl_last", base, new_tokens(), data, settings(batch_size=1), tmp_path / "v")
    assert result.skipped_steps == 2 * 8
    losses = files.read_jsonl(tmp_path / "v" / "steps.jsonl")
    assert sum(row["input_loss"] == 0 for row in losses) >= 16
    assert all(math.isfinite(value) for row in losses for value in row.values())


def test_without_new_tokens_kl_is_zero_and_ce_is_the_base_models(tmp_path: Path) -> None:
    """B28: student and teacher read the same ids, so a shift by one would show here."""
    base = tiny_model()
    ids = [tokenizers().original.encode(text, add_special_tokens=False) for text in ("import numpy", "return mean x")]
    examples = whole_texts([align_ids(tokenizers(), i, i) for i in ids], V, N)
    # compare everything, as if the divergence came first
    everything = [
        replace(e, pairs={a: np.stack([np.arange(len(e.ids))] * 2, 1) for a in e.pairs}, prefix_pairs=0,
                merged={a: np.zeros(len(e.ids), bool) for a in e.pairs})
        for e in examples.examples
    ]  # fmt: skip
    examples = AlignedSet(tuple(everything), vocab_size=V, n_new=0)
    cache = teacher_cache(base, examples, tmp_path, likelihood=True, tell=lambda _: None)
    none = torch.zeros(0, base.width)
    scores, _ = evaluate(Student(base.model, base.vocab_size, none, none), examples, cache)
    assert abs(scores["kl_identical"]) < 1e-6
    assert scores["n_identical"] == sum(map(len, ids))
    assert scores["ce"] * scores["n_old_targets"] == pytest.approx(cache.base_nats, rel=1e-5)


def test_validation_equals_a_plain_computation(tmp_path: Path) -> None:
    """Every number of a validation, from whole float64 logits, text by text."""
    base, examples = tiny_model(), example_set(16, 24)
    cache = teacher_cache(base, examples, tmp_path, tell=lambda _: None)
    generator = torch.Generator().manual_seed(0)
    model = Student(
        base.model, base.vocab_size, *(0.2 * torch.randn(N, base.width, generator=generator) for _ in range(2))
    )
    scores, tokens = evaluate(model, examples, cache, token_budget=60)
    sums: dict[str, list[float]] = {name: [] for name in ("old", "new", "identical", "last", "first")}
    per_token = torch.zeros(N, dtype=torch.float64)
    for e in examples.examples:
        with torch.no_grad():
            student = model.logits(torch.from_numpy(e.ids)[None])[0].double()
            teacher = base.model(input_ids=torch.from_numpy(e.original_ids)[None]).logits[0, :, :V].double()
        log_all = torch.log_softmax(student, -1)
        p, q = torch.log_softmax(teacher, -1), torch.log_softmax(student[:, :V], -1)
        for at, target in enumerate(e.ids[1:]):
            sums["new" if target >= V else "old"].append(-float(log_all[at, target]))
        for anchor in ("last", "first"):
            for (i, j), merged in zip(e.pairs[anchor], e.merged[anchor], strict=True):
                kl = float((p[i].exp() * (p[i] - q[j])).sum())
                if merged:
                    sums[anchor].append(kl)
                    if anchor == "last" and e.ids[j] >= V:
                        per_token[e.ids[j] - V] += kl
                elif anchor == "last":
                    sums["identical"].append(kl)
    for ours, name in (
        ("ce_old", "old"),
        ("ce_new", "new"),
        ("kl_identical", "identical"),
        ("kl_last", "last"),
        ("kl_first", "first"),
    ):
        assert scores[ours] == pytest.approx(np.mean(sums[name]), rel=1e-4), ours
    nats = sum(sums["old"]) + sum(sums["new"])
    assert scores["bpb"] == pytest.approx(nats / math.log(2) / sum(e.n_bytes for e in examples.examples), rel=1e-4)
    torch.testing.assert_close(tokens["kl"], per_token, rtol=1e-4, atol=1e-6)
    assert float(tokens["ce"].sum()) == pytest.approx(sum(sums["new"]), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "key"),
    [("mean_kl_first", "kl_pooled"), ("mean_kl_last", "kl_pooled_last"), ("mean_kl_none_ce0.3", "kl_identical")],
)
def test_training_kl_is_the_same_mean_as_that_of_the_validation(tmp_path: Path, name: str, key: str) -> None:
    """Validated on the training texts, with a rate at which rows hardly move, both have to agree."""
    base = tiny_model()
    data = phase1_data(base, tmp_path / "teacher")
    teacher = ask_teacher(base, data.train, likelihood=True)
    data = replace(data, validation=data.train, validation_teacher=teacher)
    quiet = settings(epochs=1, learning_rate=1e-6)
    start, end = train_variant(name, base, new_tokens(), data, quiet, tmp_path / name).metrics
    assert end[f"train_{key}"] == pytest.approx(end[key], rel=1e-3)
    assert f"train_{key}" not in start


@pytest.mark.parametrize("name", ["mean", "median_ce", "mean_kl", "kl_last", "mean_"])
def test_bad_variant_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        parse_variant(name)


def test_schedule_rises_falls_and_starts_again() -> None:
    factors = [learning_rate(step, [20, 10], 0.1) for step in range(30)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert all(a > b for a, b in pairwise(factors[2:20]))
    assert factors[20] == 1.0 and factors[29] == pytest.approx(1 / 9)
    assert min(factors) > 0
    with pytest.raises(ValueError):
        learning_rate(30, [20, 10])


def test_the_texts_hold_what_the_tests_need() -> None:
    assert len(aligned()) == 24 and example_set().counts().sum() > 100

"""The model card of an export."""

from __future__ import annotations

from dataclasses import replace

from tiny import chat_base
from training.test_export import with_rows

from vocabx_utils.fetch import DEFAULT_MODEL
from vocabx_utils.training import card
from vocabx_utils.training.export import export_model


def test_the_card_names_base_and_licence(tmp_path):
    base = chat_base()
    for name, text in (("packaged", DEFAULT_MODEL), ("folder", str(tmp_path / "own"))):
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "README.md").write_text("---\nlanguage: en\nlicense: Apache-2.0\n---\n# Mine\n")
        export_model(with_rows(replace(base, name=text)), tmp_path / name)
        readme = (tmp_path / name / "README.md").read_text()
        assert "license: apache-2.0\n" in readme and f"derived from `{text}`" in readme
    assert card.licence_of(str(tmp_path)) is None and card.licence_of("") is None

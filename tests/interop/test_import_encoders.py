"""Test imported Hugging Face encoders with heads: classes and masked words equal those of transformers."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceTrainer

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.exchange.import_folder import import_model_folder
from transduce.inference.classifier import Classifier, load_classifier
from transduce.inference.embedder import load_embedder
from transduce.inference.mask_filler import Filler, load_filler
from transduce.inference.tagger import load_tagger
from transduce.interop.hugging_face.import_tokenizer import ModelIds, TokenizerFiles, import_tokenizer
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer, ImportedVocabulary
from transduce.tasks.train import train

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
DISTILBERT_SIZES = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
WORD_PIECE_FAMILIES = ("Bert", "DistilBert", "Electra", "MPNet")
FAMILIES = [*WORD_PIECE_FAMILIES, "Roberta", "Albert"]
PROJECTIONS = ("embeddings_project.weight", "embedding_hidden_mapping_in.weight")
LABELS = {0: "Not So Good", 1: "Müde", 2: "très 好"}
TEXTS = ["I like tea.", "the fish is big", "", "nobody eats 42 fish, nobody"]
MakeFolder = Callable[..., Path]


def peers() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")


@pytest.fixture
def make_folder(toy_corpus: Path, tmp_path: Path) -> MakeFolder:
    """Return a function that writes an encoder of transformers with random weights and a trained tokenizer."""

    def make(architecture: str, **settings: Any) -> Path:
        transformers, tokenizers = peers(), pytest.importorskip("tokenizers")
        folder = tmp_path / architecture
        folder.mkdir()
        lines = (toy_corpus / "train.en").read_text("utf-8").split("\n")
        if architecture.startswith(WORD_PIECE_FAMILIES):
            trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
            special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", "[CLS]", "[SEP]"]
            special = special if architecture.startswith("MPNet") else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            trained.train_from_iterator(lines, vocab_size=200, special_tokens=special, show_progress=False)
            more: dict[str, Any] = {"embedding_size": 8} if architecture.startswith("Electra") else {}
        elif architecture.startswith("Albert"):
            trained = tokenizers.SentencePieceUnigramTokenizer()
            special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
            options = {"special_tokens": special, "unk_token": "<unk>", "show_progress": False}
            trained.train_from_iterator([line.lower() for line in lines], vocab_size=150, **options)
            more = {"embedding_size": 8}
        else:
            trained = tokenizers.ByteLevelBPETokenizer()
            special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
            trained.train_from_iterator(lines, vocab_size=400, special_tokens=special, show_progress=False)
            more = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
        kind = getattr(transformers, architecture)
        if architecture.startswith("Albert"):
            vocabulary = [tuple(each) for each in json.loads(trained.to_str())["model"]["vocab"]]
            transformers.AlbertTokenizer(vocab=vocabulary).save_pretrained(folder)
        else:
            trained.save_model(str(folder))
            tokenizer = "BertTokenizer" if architecture.startswith(WORD_PIECE_FAMILIES) else "RobertaTokenizer"
            tokenizer = "MPNetTokenizer" if architecture.startswith("MPNet") else tokenizer
            getattr(transformers, tokenizer).from_pretrained(folder).save_pretrained(folder)
        torch.manual_seed(1)
        size = trained.get_vocab_size() + 3  # some ids have no token
        sizes = DISTILBERT_SIZES if architecture.startswith("DistilBert") else SIZES
        settings = sizes | more | settings | {"vocab_size": size, "max_position_embeddings": 40}
        model = kind._from_config(kind.config_class(**settings))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Projected embeddings keep a variance near 1, as nothing normalizes them before attention.
                parameter.add_(torch.randn_like(parameter), alpha=0.08 if name.endswith(PROJECTIONS) else 0.3)
        model.eval().save_pretrained(folder)
        return folder

    return make


def opened_by_transformers(folder: Path, task: str) -> Any:
    return peers().pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_are_named_as_transformers_names_them(
    family: str, make_folder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(f"{family}ForSequenceClassification", id2label=LABELS)
    expected = opened_by_transformers(folder, "text-classification")(TEXTS, top_k=None)
    import_model_folder(folder, tmp_path / "ours")
    for place in (folder, tmp_path / "ours"):
        found = load_classifier(place, precision="fp32", device="cpu", threads=1)(TEXTS)
        for one, ranked in zip(found, expected, strict=True):
            assert list(one.probabilities) == [each["label"] for each in ranked]
            assert list(one.probabilities.values()) == pytest.approx([each["score"] for each in ranked], abs=1e-6)
    assert isinstance(transduce.load(folder, device="cpu", threads=1), Classifier)
    lines = tmp_path / "texts"
    lines.write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    assert main(["classify", str(tmp_path / "ours"), str(lines), "--threads", "1"]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == [ranked[0]["label"] for ranked in expected]
    kept = json.loads((tmp_path / "ours" / "config.json").read_text("utf-8"))
    if family != "Electra":  # which have a class of theirs for our own folder
        assert kept["id2label"] == {str(number): name for number, name in LABELS.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_tagged_as_transformers_tags_their_first_tokens(
    family: str, make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(f"{family}ForTokenClassification", id2label=LABELS)
    import_model_folder(folder, tmp_path / "ours")
    options = {"add_prefix_space": True} if family == "Roberta" else {}
    tokenizer = peers().AutoTokenizer.from_pretrained(folder, **options)
    theirs = peers().AutoModelForTokenClassification.from_pretrained(folder).eval()
    sentences = [["I", "like", "tea."], ["nobody", "unlikeliest", "fish,", "(42)"], ["Tea"]]
    for place in (folder, tmp_path / "ours"):
        taggings = load_tagger(place, precision="fp32", device="cpu", threads=1).tag(sentences)
        for words, tagging in zip(sentences, taggings, strict=True):
            inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
            with torch.inference_mode():
                probabilities = theirs(**inputs).logits[0].softmax(-1)
            firsts = [inputs.word_ids().index(word) for word in range(len(words))]
            assert tagging.tags == tuple(LABELS[int(probabilities[first].argmax())] for first in firsts)
            assert tagging.probabilities == pytest.approx([float(probabilities[f].max()) for f in firsts], abs=1e-5)
    with pytest.raises(TransduceError, match=r"Classifying needs a model .* is for `tagging`"):
        load_classifier(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_words_are_predicted_as_by_transformers(
    family: str, make_folder: MakeFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(f"{family}ForMaskedLM")
    import_model_folder(folder, tmp_path / "ours")
    filler = load_filler(folder, precision="fp32", device="cpu", threads=1)
    mask = "<mask>" if family in ("Roberta", "MPNet") else "[MASK]"
    assert filler.mask == mask
    text = f"I {mask} tea."
    expected = opened_by_transformers(folder, "fill-mask")(text, top_k=60)
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<unk>", "<mask>", ""}
    words = [each["token_str"].strip() for each in expected if each["token_str"] not in special][:5]
    for place in (folder, tmp_path / "ours"):
        (found,) = load_filler(place, precision="fp32", device="cpu", threads=1)(text).masks
        assert [candidate.text.strip() for candidate in found] == words
    assert main(["fill-mask", str(tmp_path / "ours"), text, "--threads", "1", "--precision", "fp32"]) == 0
    shown = [each.rsplit(" ", 1)[0] for each in capsys.readouterr().out.split("\n")[1].strip().split("  ")]
    assert [word in (each, "\ufffd") for word, each in zip(words, shown, strict=True)] == [True] * 5
    with pytest.raises(TransduceError, match=f"nothing to fill in .*: put .{mask[1:]} where a token is"):
        filler("I like tea.")


def make_sentence_transformer(folder: Path, pooling: str, **files: Any) -> None:
    """Write the files that sentence-transformers adds to a folder of a BERT."""
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"path": f"{n}_{kind}" * bool(n), "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    modes = {
        f"pooling_mode_{each}": each == pooling for each in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    contents: dict[str, Any] = {
        "modules": modules,
        "1_Pooling/config": {"word_embedding_dimension": 64} | modes,
        "sentence_bert_config": {"max_seq_length": 9, "do_lower_case": False},
        "config_sentence_transformers": {"prompts": {}, "default_prompt_name": None},
    }
    for name, content in (contents | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        ("Bert", "mean_tokens"),
        ("Bert", "cls_token"),
        ("Roberta", "max_tokens"),
        ("MPNet", "mean_tokens"),
        ("Albert", "mean_tokens"),
        ("Electra", "cls_token"),
    ],
)
def test_sentence_vectors_are_those_of_sentence_transformers(
    family: str, pooling: str, make_folder: MakeFolder, tmp_path: Path
) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 128}
    wide |= {"embedding_size": 128} if family in ("Albert", "Electra") else {}
    folder = make_folder(f"{family}Model", **wide)
    make_sentence_transformer(folder, pooling)
    tokenizer, model = (getattr(peers(), kind).from_pretrained(folder) for kind in ("AutoTokenizer", "AutoModel"))
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=9, return_tensors="pt")
    mask = encoded["attention_mask"][..., None].bool()
    with torch.inference_mode():
        states = model(**encoded).last_hidden_state
    vectors = {
        "mean_tokens": (states * mask).sum(1) / mask.sum(1),
        "cls_token": states[:, 0],
        "max_tokens": states.masked_fill(~mask, -1e9).amax(1),
    }[pooling]
    expected = torch.nn.functional.normalize(vectors)
    import_model_folder(folder, tmp_path / "ours")
    for place in (folder, tmp_path / "ours"):
        embedder = transduce.load(place, precision="fp32", device="cpu", threads=1)
        assert isinstance(embedder, transduce.Embedder)
        assert torch.allclose(embedder(TEXTS), expected, atol=1e-5)
        assert torch.equal(embedder(TEXTS[1]), embedder(TEXTS)[1])
        for found, row, own in zip(embedder.token_states(TEXTS), states, mask[..., 0], strict=True):
            assert torch.allclose(found.states, row[own], atol=1e-4)
            assert len(found.tokens) == len(found.states)
    rounded = transduce.load(tmp_path / "ours", precision="int8", device="cpu", threads=1, task="embedding")
    assert torch.cosine_similarity(rounded(TEXTS), expected).min() > 0.995


@pytest.mark.parametrize(
    "files",
    [
        {"sentence_bert_config": {}, "tokenizer_config": {"model_max_length": 9}},
        {"sentence_bert_config": {"max_seq_length": 9}, "tokenizer_config": {"model_max_length": 20}},
        {"sentence_bert_config": {"processor_kwargs": {"model_max_length": 9}, "max_seq_length": 20}},
        {
            "sentence_bert_config": {
                "tokenizer_args": {"use_fast": True, "trust_remote_code": False},
                "max_seq_length": 9,
            }
        },
        {"sentence_bert_config": {}, "sentence_roberta_config": {"max_seq_length": 9, "do_lower_case": False}},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [{"pooling_mode": "cls"}, {"pooling_mode": ["cls"], "pooling_mode_max_tokens": True}])
def test_settings_of_sentence_transformers_6_and_of_its_old_files_are_read(
    mode: dict[str, Any], files: dict[str, Any], make_folder: MakeFolder
) -> None:
    """Version 6 stores the maximum length with the tokenizer, and the pooling by name."""
    folder = make_folder("RobertaModel")
    own = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    files = {name: (own if name == "tokenizer_config" else {}) | content for name, content in files.items()}
    make_sentence_transformer(folder, "", **files, **{"1_Pooling/config": mode | {"embedding_dimension": 16}})
    embedder = transduce.load(folder, device="cpu", threads=1)
    assert isinstance(embedder, transduce.Embedder)
    assert (embedder.pooling, embedder.length, embedder.normalizes) == ("first", 9, True)


def test_an_encoder_without_pooling_settings_embeds_by_mean_pooling(make_folder: MakeFolder) -> None:
    folder = make_folder("BertForMaskedLM")
    embedder = transduce.load(folder, task="embedding", device="cpu", threads=1)
    assert (embedder.pooling, embedder.normalizes, embedder.length) == ("mean", False, 40)
    assert embedder(TEXTS).shape == (len(TEXTS), SIZES["hidden_size"])
    assert embedder([]).shape == (0, SIZES["hidden_size"])
    with pytest.raises(TransduceError, match="`pooling` must be one of mean, first, max, but is `median`"):
        load_embedder(folder, device="cpu", threads=1, pooling="median")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": [{"type": "sentence_transformers.models.Dense"}]}, "must consist of Transformer, Pooling.*Dense"),
        (
            {"1_Pooling/config": {"pooling_mode_lasttoken": True}},
            "pooling must be one of mean, cls, max, but is lasttoken",
        ),
        ({"1_Pooling/config": {"pooling_mode": ["mean", "cls"]}}, "pooling must be one of .* but is mean, cls"),
        ({"1_Pooling/config": {}}, "pooling must be one of .* but is none"),
        ({"sentence_bert_config": {"processor_kwargs": {"padding_side": "left"}}}, "`processor_kwargs` is {'padding_s"),
        (
            {"sentence_bert_config": {"tokenizer_args": {"use_fast": True, "padding_side": "left"}}},
            "`tokenizer_args` is {'padding_side': 'left'}",
        ),
        ({"sentence_bert_config": {"do_lower_case": True}}, "`do_lower_case` is True, which changes texts"),
        ({"config_sentence_transformers": {"default_prompt_name": "query"}}, "`default_prompt_name` is 'query'"),
    ],
    ids=str,
)
def test_sentence_transformers_with_other_parts_are_refused(
    files: dict[str, Any], message: str, make_folder: MakeFolder
) -> None:
    folder = make_folder("BertModel")
    make_sentence_transformer(folder, "mean_tokens", **files)
    with pytest.raises(TransduceError, match=message):
        transduce.load(folder, device="cpu", threads=1)


def test_masked_language_pretraining_from_a_model_without_a_head_is_refused(
    make_folder: MakeFolder, toy_corpus: Path, tmp_path: Path
) -> None:
    import_model_folder(make_folder("BertModel"), tmp_path / "ours")
    settings = {"task.kind": "masked-language-model", "init_from": str(tmp_path / "ours"), "training.steps": 1}
    with pytest.raises(TransduceError, match="needs a head for masked tokens, but the base model has none"):
        train(source=toy_corpus / "train.en", out=tmp_path / "run", settings=settings, device="cpu", threads=1)
    assert not (tmp_path / "run").exists()


def test_labels_that_a_configuration_does_not_name_have_numbers(make_folder: MakeFolder) -> None:
    folder = make_folder("BertForSequenceClassification", num_labels=2)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for names in (None, {"0": "one"}, {"0": "same", "1": "same"}, {"0": "LABEL_1", "1": "LABEL_1"}, "names"):
        (folder / "config.json").write_text(json.dumps(config | {"id2label": names}), "utf-8")
        expected = {"LABEL_0", "LABEL_1"} if names != {"0": "one"} else {"one", "LABEL_1"}
        assert set(load_classifier(folder, device="cpu", threads=1).labels) == expected


def test_labels_of_the_same_name_are_numbered_with_a_note(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder("BertForSequenceClassification", num_labels=3)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    names = {"id2label": {"0": "same", "1": "same", "2": "other"}}
    (folder / "config.json").write_text(json.dumps(config | names), "utf-8")
    report = import_model_folder(folder, tmp_path / "ours")
    for place in (folder, tmp_path / "ours"):
        assert load_classifier(place, device="cpu", threads=1).labels == ("LABEL_0", "LABEL_1", "other")
    assert "have the same name, so they are numbered: same → LABEL_0, same → LABEL_1." in str(report)


@pytest.mark.parametrize(
    ("architecture", "settings", "purpose"),
    [
        ("BertForSequenceClassification", {"num_labels": 1}, "predicts a number"),
        ("BertForSequenceClassification", {"problem_type": "regression", "num_labels": 3}, "predicts a number"),
        (
            "BertForSequenceClassification",
            {"problem_type": "multi_label_classification", "num_labels": 3},
            "assigns several labels at once",
        ),
        ("BertForNextSentencePrediction", {}, "predicts whether one text follows another"),
    ],
)
def test_models_with_heads_that_no_task_uses_are_refused_as_classifiers(
    architecture: str, settings: dict[str, Any], purpose: str, make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(architecture, **settings)
    report = import_model_folder(folder, tmp_path / "ours")  # its weights are had nevertheless
    assert f"{folder} {purpose}, which no task here uses" in str(report)
    message = "needs a model that was trained with `--task classification`, but the one in .* is for "
    with pytest.raises(TransduceError, match=f"{message}none of our tasks, as its head {purpose}: name another"):
        load_classifier(folder, device="cpu", threads=1)
    unknown = "another task" if "Next" in architecture else "none of our tasks, as its head predicts a number or"
    with pytest.raises(TransduceError, match=message + unknown):
        load_classifier(tmp_path / "ours", device="cpu", threads=1)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    "architecture",
    [
        *("BertForSequenceClassification", "BertForMaskedLM", "DistilBertForSequenceClassification"),
        *("DistilBertForMaskedLM", "DistilBertForTokenClassification"),
        *("RobertaForSequenceClassification", "RobertaForMaskedLM", "RobertaForTokenClassification"),
        *("AlbertForSequenceClassification", "AlbertForMaskedLM", "AlbertForTokenClassification"),
        *("MPNetForSequenceClassification", "MPNetForMaskedLM", "MPNetForTokenClassification"),
    ],
)
def test_imported_encoders_are_exported_to_hugging_face_with_their_task(
    architecture: str, direct: bool, make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(architecture, id2label=LABELS)
    import_model_folder(folder, tmp_path / "ours")
    place = folder if direct else tmp_path / "ours"
    transduce.export(place, tmp_path / "out", to="huggingface", sources=TEXTS[:2], threads=1)
    assert (tmp_path / "out" / "task.json").read_bytes() == (tmp_path / "ours" / "task.json").read_bytes()
    if "SequenceClassification" in architecture:
        ours = opened_by_transformers(tmp_path / "out", "text-classification")(TEXTS, top_k=None)
        expected = opened_by_transformers(folder, "text-classification")(TEXTS, top_k=None)
        assert [[each["label"] for each in row] for row in ours] == [
            [each["label"] for each in row] for row in expected
        ]


@pytest.mark.parametrize(
    "architecture",
    [
        *("RobertaForSequenceClassification", "RobertaForMaskedLM"),
        *("AlbertForMaskedLM", "ElectraForTokenClassification", "MPNetForSequenceClassification"),
    ],
)
def test_imported_encoders_are_exported_to_onnx(architecture: str, make_folder: MakeFolder, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'transduce[export]'")
    folder = make_folder(architecture)
    transduce.export(folder, tmp_path / "out", to="onnx", sources=TEXTS[:2], threads=1)
    around = "<s> and </s>" if architecture.startswith(("Roberta", "MPNet")) else "[CLS] and [SEP]"
    assert f"tokens between {around}" in (tmp_path / "out" / "README.md").read_text("utf-8")
    assert (tmp_path / "out" / "task.json").is_file()


@pytest.mark.parametrize("task", ["classification", "masked-language-model"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Albert", "MPNet"])
def test_an_exported_encoder_that_transformers_trained_further_comes_back(
    family: str, task: str, make_folder: MakeFolder, toy_corpus: Path, tmp_path: Path
) -> None:
    """A classifier of a base model with a bias on its logits keeps the bias, which their class drops."""
    texts, labels = tmp_path / "texts", tmp_path / "labels"
    texts.write_text("".join(f"{line}\n" for line in (toy_corpus / "train.en").read_text("utf-8").split("\n")[:60]))
    labels.write_text("yes\nno\n" * 30, "utf-8")
    settings = {"task.kind": task, "task.context": 20, "training.steps": 1, "training.precision": "fp32"}
    files = {"source": str(texts)} | ({"target": str(labels)} if task == "classification" else {})
    base = make_folder(f"{family}ForMaskedLM")
    train(out=tmp_path / "run", init_from=base, settings=settings, device="cpu", threads=1, **files)  # type: ignore[arg-type]
    transduce.export(tmp_path / "run", tmp_path / "out", to="huggingface", sources=TEXTS[:2], threads=1)
    kind = "AutoModelForSequenceClassification" if task == "classification" else "AutoModelForMaskedLM"
    theirs = getattr(peers(), kind).from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(1.0 + 0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path / "out")
    import_model_folder(tmp_path / "out", tmp_path / "back")
    opened = transduce.load(tmp_path / "back", device="cpu", threads=1, precision="fp32")
    if isinstance(opened, Classifier):
        with torch.inference_mode():
            expected = theirs(torch.tensor(opened.encode(TEXTS[:1]))).logits.softmax(-1)
        assert torch.allclose(opened.probabilities(TEXTS[:1]), expected, atol=1e-6)
    else:
        assert isinstance(opened, Filler)
        mask = "[MASK]" if family in ("Bert", "Albert") else "<mask>"
        size = opened.model.config.source_vocabulary_size
        best = opened_by_transformers(tmp_path / "out", "fill-mask")(f"I {mask} tea.", top_k=size)
        scores = {each["token"]: each["score"] for each in best if each["token"] in opened.text_tokens}
        (candidates,) = opened(f"I {mask} tea.").masks
        expected = sorted((score / sum(scores.values()) for score in scores.values()), reverse=True)[:5]
        assert [candidate.probability for candidate in candidates] == pytest.approx(expected, rel=1e-4)
    transduce.export(tmp_path / "back", tmp_path / "again", to="huggingface", sources=TEXTS[:2], threads=1)


def test_an_imported_encoder_without_a_class_for_export_is_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder("ElectraForSequenceClassification")
    with pytest.raises(TransduceError, match=r"`model\.pooler_activation` = gelu: export it to onnx instead\.$"):
        transduce.export(folder, tmp_path / "out", to="huggingface", sources=TEXTS[:2], threads=1)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            "BertForMultipleChoice",
            "BertForMultipleChoice chooses among several texts, and a model with this head",
        ),
        (
            "RobertaForQuestionAnswering",
            "RobertaForQuestionAnswering finds answers in a text, and a model with this head",
        ),
    ],
)
def test_unsupported_heads_are_refused_by_name(
    architecture: str, message: str, make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(architecture)
    for read in (load_classifier, lambda place: import_model_folder(place, tmp_path / "ours")):
        with pytest.raises(TransduceError, match=rf"config\.json: {message}"):
            read(folder)


def test_a_byt5_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4, "vocab_size": 384}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "eos_token_id": 1} | sizes), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', "utf-8")
    with pytest.raises(TransduceError, match="has the tokenizer ByT5Tokenizer, which writes every text as its bytes"):
        import_model_folder(tmp_path, tmp_path / "ours")


@pytest.mark.parametrize("kind", ["classification", "masked-language-model"])
def test_training_starts_from_an_imported_roberta(
    kind: str, make_folder: MakeFolder, toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transduce.tasks.train import train

    folder, lines = make_folder("RobertaForMaskedLM"), (toy_corpus / "train.en").read_text("utf-8").split("\n")[:60]
    texts, labels = tmp_path / "texts", tmp_path / "labels"
    texts.write_text("\n".join(lines) + "\n", "utf-8")
    labels.write_text("".join(f"{'fish' if 'fish' in line else 'none'}\n" for line in lines), "utf-8")
    settings = {"task.kind": kind, "task.context": 20, "training.steps": 2, "training.precision": "fp32"}
    files: dict[str, Any] = {"source": str(texts)} | ({"target": str(labels)} if kind == "classification" else {})
    train(out=tmp_path / "run", init_from=folder, settings=settings, device="cpu", threads=1, **files)
    if kind != "classification":
        card = (tmp_path / "run" / "README.md").read_text("utf-8")
        assert 'transduce fill-mask THIS_FOLDER "a text with a <mask> in it"' in card
        assert capsys.readouterr().err.endswith('"a text with a <mask> in it"\n')
    opened = transduce.load(tmp_path / "run", device="cpu", threads=1)
    if isinstance(opened, Classifier):
        assert opened.encode(["I like tea."])[0][:: len(opened.encode(["I like tea."])[0]) - 1] == [0, 2]
        assert set(opened("I like tea.").probabilities) == {"fish", "none"}
    else:
        assert load_filler(tmp_path / "run", device="cpu", threads=1)("I <mask> tea.").masks


# --- tokenizers of MPNet and ALBERT ---


def own_ids(folder: Path, model_type: str, lines: list[str]) -> list[list[int]]:
    files = TokenizerFiles(lambda name: (folder / name).read_bytes() if (folder / name).exists() else None, str(folder))
    known = ModelIds(model_type=model_type, sizes=(4000, 4000), pad_id=1 if model_type == "mpnet" else 0, eos_id=None)
    vocabulary = ImportedTokenizer(import_tokenizer(files, known)).source
    assert isinstance(vocabulary, ImportedVocabulary)
    return [list(vocabulary.with_special_tokens(ids)) for ids in vocabulary.encode_batch(lines)]


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"sep_token": "[SEP]"}])
def test_a_folder_of_mpnet_is_read_as_by_transformers(settings: dict[str, Any], name: str, tmp_path: Path) -> None:
    """Its text stands between <s> and </s>, although the vocabulary has [CLS] and [SEP] too."""
    words = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "<mask>",
        *"hHab我",
        "##e",
        "##l",
        "##é",
    ]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}', "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    theirs = peers().MPNetTokenizer.from_pretrained(tmp_path)
    if name == "tokenizer.json":
        theirs.save_pretrained(tmp_path)
        (tmp_path / "vocab.txt").unlink()
    lines = ["Hell hell", "helé HELL", "我 a", "a <mask>b", "x [CLS]"]
    assert own_ids(tmp_path, "mpnet", lines) == theirs(lines)["input_ids"]


@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": False}, {"keep_accents": True}, {"tokenizer_class": "PreTrainedTokenizerFast"}]
)
def test_a_folder_of_albert_is_read_as_by_transformers(
    settings: dict[str, Any], data_folder: Path, tmp_path: Path
) -> None:
    """The class builds all steps but the table of characters anew, whatever tokenizer.json has."""
    training, lines = list[str](), ["", "``a'' [MASK] b", "①  ﬁ É"]
    for name in ("zh-en/train.zh", "de-en/train.de", "de-en/train.en"):
        if not (path := data_folder / f"tatoeba-{name}.gz").is_file():
            pytest.skip(f"{path} is missing")
        content = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
        training, lines = training + content[:1000], lines + content[20_000:21_000]
    model = io.BytesIO()
    options: dict[str, Any] = {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
    }
    options |= {"model_type": "unigram", "vocab_size": 2200, "character_coverage": 0.99, "minloglevel": 2}
    SentencePieceTrainer.train(sentence_iterator=iter(training), model_writer=model, **options)
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    (tmp_path / "config.json").write_text('{"model_type": "albert"}', "utf-8")
    with pytest.raises(TransduceError, match=r"must hold a tokenizer\.json for a model of the type albert"):
        own_ids(tmp_path, "albert", lines)
    peers().AlbertTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    (tmp_path / "spiece.model").unlink()
    stored = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    stored["normalizer"]["normalizers"].append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored), "utf-8")
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "<unk>"}
    settings = names | {"pad_token": "<pad>"} | settings
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    assert own_ids(tmp_path, "albert", lines) == peers().AutoTokenizer.from_pretrained(tmp_path)(lines)["input_ids"]

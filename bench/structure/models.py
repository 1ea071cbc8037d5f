"""Models whose structure is known, and what a person who knows them would say.

`MODELS[name]` is (make, mode, person, branches): what exports it, the mode, a sentence, and what `espalier inspect` must
show of it: for each section with several branches the words that must be among their names, in order. Numbered layers
are one section; what is side by side inside them is not a branch of the model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ESPALIER = Path(os.environ.get("ESPALIER_BUILD", ROOT / "build" / "release")) / "espalier"
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench" / "models"), str(ROOT / "examples" / "models")]

import espalier_export  # noqa: E402
import torch  # noqa: E402
import zoo  # noqa: E402


def example(name, size="tiny"):
    """A model of examples/models."""

    def make(path, mode):
        import export

        export.export_model(name, path, batch=4, size=size, mode=mode)

    return make


def of_zoo(make_model):
    def make(path, mode):
        torch.manual_seed(0)
        model, inputs, targets, loss = make_model()
        espalier_export.export(model, inputs, path, targets=targets, loss=loss, mode=mode)

    return make


def transformer(name):
    return of_zoo(zoo.TRANSFORMERS[name])


IMAGE = {k: v for k, v in zoo.IMAGE.items() if k != "num_labels"}
IMAGE_TOKEN = 63


def picture_and_words():
    """Four words that stand for the four patches of the picture, and eight others."""
    words = zoo.tokens()
    words[:, :4] = IMAGE_TOKEN
    words[:, 4:] = words[:, 4:] % 60
    return {"input_ids": words, "pixel_values": zoo.pixels(16), "labels": zoo.tokens() % 60}


llava = zoo.transformer(
    "llava", "AutoModelForImageTextToText", picture_and_words,
    dict(text_config={**zoo.TEXT, "model_type": "llama", "num_key_value_heads": 2},
         vision_config={**IMAGE, "model_type": "clip_vision_model", "image_size": 16},
         image_token_index=IMAGE_TOKEN, vision_feature_select_strategy="default"))  # fmt: skip

# So wide that the table of relative positions weighs as little as it does in models that people train.
t5 = zoo.transformer("t5", zoo.TRANSLATE, zoo.words, dict(
    d_model=128, d_kv=32, d_ff=512, num_layers=3, num_heads=4, vocab_size=zoo.WORDS, decoder_start_token_id=0,
    use_cache=False))  # fmt: skip

EXAMPLES = {
    "two_tower": (example("two_tower"), "train", "an image tower beside a text tower, then their similarity", [("image", "text")]),
    "three_branch": (example("three_branch"), "train", "three branches side by side, then a head", [("image", "sequence", "numbers")]),
    "gpt": (example("gpt"), "train", "a chain of layers", []),
    "resnet": (example("resnet"), "train", "a chain of residual blocks; a convolution on some shortcuts", []),
    "dlrm": (example("dlrm"), "train", "embedding tables beside a network for the numbers, then the top network",
             [("bottom", "tables.0", "tables.1", "tables.2")]),
    "unet": (example("unet"), "train", "a chain; the way down reaches the way up by skips, which are carried", []),
    "gpt2": (example("gpt2"), "train", "a chain of layers", []),
    "llama": (example("llama"), "train", "a chain of layers", []),
}  # fmt: skip

ENCODER_DECODER = "the encoder beside the decoder's embedding and first self-attention; then the decoder's layers, a chain"
TRANSFORMERS = {
    "CLIP": (transformer("CLIP"), "eval", "a vision tower beside a text tower", [("vision", "text")]),
    "SigLIP": (transformer("SigLIP"), "eval", "a vision tower beside a text tower", [("vision", "text")]),
    "T5": (of_zoo(t5), "eval", ENCODER_DECODER, [("encoder", "decoder")]),
    "BART": (transformer("BART"), "eval", ENCODER_DECODER, [("encoder", "decoder")]),
    "Marian": (transformer("Marian"), "eval", ENCODER_DECODER, [("encoder", "decoder")]),
    "Whisper": (transformer("Whisper"), "eval", ENCODER_DECODER, [("encoder", "decoder")]),
    "LLaVA": (of_zoo(llava), "eval", "the vision tower, then the language model; the word embeddings beside it weigh little", []),
    "BERT": (transformer("BERT"), "eval", "a chain of layers", []),
    "DeBERTa-v2": (transformer("DeBERTa-v2"), "eval", "a chain of layers; position terms beside the content inside them", []),
    "ALBERT": (transformer("ALBERT"), "eval", "one layer again and again", []),
    "GPT-2": (transformer("GPT-2"), "eval", "a chain of layers", []),
    "GPT-J": (transformer("GPT-J"), "eval", "a chain of layers, attention beside the feed-forward part in each", []),
    "Llama": (transformer("Llama"), "eval", "a chain of layers", []),
    "Mixtral": (transformer("Mixtral"), "eval", "a chain of layers; the experts of a layer are one operator", []),
    "Qwen2-MoE": (transformer("Qwen2-MoE"), "eval", "a chain of layers, a shared expert beside the others in each", []),
    "Mamba": (transformer("Mamba"), "eval", "a chain of layers", []),
    "ViT": (transformer("ViT"), "eval", "a chain of layers", []),
    "Swin": (transformer("Swin"), "eval", "a chain of stages", []),
    "SegFormer": (transformer("SegFormer"), "eval", "a chain of stages; each stage's result goes to the decoder by a small layer of its own", []),
    "wav2vec 2": (transformer("wav2vec 2"), "eval", "a chain: convolutions, then layers; the weight of the position convolution is computed beside", [("feature", "pos_conv")]),
}  # fmt: skip


def zoo_model(name, *settings):
    """As `espalier zoo` writes it: shapes alone, so at its published size where no setting is named."""

    def make(path, mode):
        subprocess.run([ESPALIER, "zoo", name, *settings, "-o", path], check=True, stdout=subprocess.DEVNULL)

    return make


def branches(*names):
    return [names]


LITTLE_BESIDE = "the encoder, then the decoder's layers; what may run beside the encoder is less than 4 % of the time"
ZOO = {
    "zoo: mmt": (zoo_model("mmt"), "four branches, then a head", branches(*(f"branches.{i}" for i in range(4)))),
    "zoo: case-study": (zoo_model("case-study"), "two branches, then a head", branches("branches.0", "branches.1")),
    "zoo: sequential": (zoo_model("sequential"), "a chain of layers", []),
    "zoo: dlrm": (zoo_model("dlrm"), "seven dense branches beside seven tables, then the top network",
                  branches(*(f"dense.{i}" for i in range(7)), *(f"sparse.{i}" for i in range(7)))),
    "zoo: candle-uno": (zoo_model("candle-uno"), "seven towers, then a head", branches(*(f"towers.{i}" for i in range(7)))),
    "zoo: candle-uno-flexflow": (zoo_model("candle-uno-flexflow"), "five towers, then a head",
                                 branches(*(f"towers.{i}" for i in range(5)))),
    "zoo: gpt": (zoo_model("gpt"), "a chain of layers", []),
    "zoo: bert": (zoo_model("bert"), "a chain of layers", []),
    "zoo: llama": (zoo_model("llama"), "a chain of layers", []),
    "zoo: mixture-of-experts": (zoo_model("mixture-of-experts"), "a chain of layers, experts side by side in each", []),
    "zoo: transformer-xl": (zoo_model("transformer-xl"), "a chain of layers", []),
    "zoo: t5": (zoo_model("t5"), LITTLE_BESIDE, []),
    "zoo: whisper": (zoo_model("whisper"), LITTLE_BESIDE, []),
    "zoo: vit": (zoo_model("vit"), "a chain of layers", []),
    "zoo: clip": (zoo_model("clip"), "a tower for images beside one for captions", branches("image", "text")),
    "zoo: vision-language, 2 encoders, 4 layers": (zoo_model("vision-language", "--encoders", "2", "--layers", "4"),
                             "two encoders, then the language model", branches("encoders.0", "encoders.1")),
    "zoo: resnet": (zoo_model("resnet"), "a chain of residual blocks; a convolution on some shortcuts", []),
    "zoo: u-net": (zoo_model("u-net"), "a chain; the way down reaches the way up by skips, which are carried", []),
    "zoo: inception-v3": (zoo_model("inception-v3"), "a chain of blocks, three or four branches in each", []),
    "zoo: nasnet": (zoo_model("nasnet"), "a chain of cells; each reads the two before it", []),
    "zoo: amoebanet": (zoo_model("amoebanet"), "a chain of cells; each reads the two before it", []),
    "zoo: co-attention": (zoo_model("co-attention"), "layers of words; then layers in which words and regions ask each other; at the end either stream by itself",
                          branches("words", "regions")),
    "zoo: rnnlm": (zoo_model("rnnlm"), "a grid of layers and steps in time", []),
    "zoo: gnn": (zoo_model("gnn"), "a grid of layers and chunks, which are side by side only in the last layer",
                 branches(*(f"chunks.{i}" for i in range(8)))),
    "zoo: wavenet": (zoo_model("wavenet"), "a chain of layers; the sum that all send to is carried", []),
}  # fmt: skip
ZOO = {name: (make, "train", person, expected) for name, (make, person, expected) in ZOO.items()}
MODELS = {**EXAMPLES, **TRANSFORMERS, **ZOO}

"""Models of transformers and torchvision as people have them, small and with random weights: nothing is downloaded.

`MODELS[name]()` gives (model, inputs, targets, loss), what `espalier_export.export` takes. Model code is the packages' own;
only sizes are set: two layers, a width of 32, images of 32 to 96 pixels.
"""

from __future__ import annotations

import importlib.util

import torch

BATCH, LENGTH, WORDS = 4, 12, 64

TEXT = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=WORDS,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False,
)  # fmt: skip
SEQ2SEQ = dict(
    d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=WORDS, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2, use_cache=False,
)  # fmt: skip
IMAGE = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
    num_labels=5,
)  # fmt: skip


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (BATCH, length))


def pixels(size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size)


def classes(count: int = 5) -> torch.Tensor:
    return torch.randint(count, (BATCH,))


def words() -> dict:
    return {"input_ids": tokens(), "labels": tokens()}


def masked() -> dict:
    return {"input_ids": tokens(), "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long), "labels": tokens()}


def image() -> dict:
    return {"pixel_values": pixels(), "labels": classes()}


def pair() -> dict:
    return {"input_ids": tokens(), "pixel_values": pixels(), "return_loss": True}


def transformer(kind: str, task: str, inputs, base: dict | None = None, **settings):
    """A model of the transformers package: its kind of configuration, its Auto class, what makes its inputs."""

    def make():
        if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
            import_torchvision()
        import transformers

        config = transformers.AutoConfig.for_model(kind, **{**(TEXT if base is None else base), **settings})
        model = getattr(transformers, task).from_config(config)
        return model, inputs(), {}, None

    return make


CAUSAL, MASKED, TRANSLATE = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
PICTURES, LABELS = "AutoModelForImageClassification", "AutoModelForSequenceClassification"

TRANSFORMERS = {
    # Decoders.
    "GPT-2": transformer("gpt2", CAUSAL, words),
    "GPT-Neo": transformer("gpt_neo", CAUSAL, words, attention_types=[[["global", "local"], 1]], num_layers=2),
    "GPT-NeoX": transformer("gpt_neox", CAUSAL, words),
    "GPT-J": transformer("gptj", CAUSAL, words, rotary_dim=4),
    "OPT": transformer("opt", CAUSAL, words, ffn_dim=64, word_embed_proj_dim=32, layerdrop=0.1),
    "BLOOM": transformer("bloom", CAUSAL, words),
    "Falcon": transformer("falcon", CAUSAL, words),
    "Llama": transformer("llama", CAUSAL, words, num_key_value_heads=2),
    "Mistral": transformer("mistral", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "Mixtral": transformer("mixtral", CAUSAL, words, num_key_value_heads=2, num_local_experts=4, head_dim=8),
    "Qwen2": transformer("qwen2", CAUSAL, words, num_key_value_heads=2),
    "Qwen2-MoE": transformer("qwen2_moe", CAUSAL, words, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2,
                             moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "Qwen3": transformer("qwen3", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "Gemma": transformer("gemma", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "Gemma 2": transformer("gemma2", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "Phi": transformer("phi", CAUSAL, words),
    "Phi-3": transformer("phi3", CAUSAL, words, num_key_value_heads=2),
    "StableLM": transformer("stablelm", CAUSAL, words, num_key_value_heads=2),
    "OLMo": transformer("olmo", CAUSAL, words, num_key_value_heads=2),
    "Mamba": transformer("mamba", CAUSAL, words, state_size=4, conv_kernel=4, time_step_rank=4),
    "Mamba-2": transformer("mamba2", CAUSAL, words, state_size=4, num_heads=8, head_dim=8, n_groups=1, chunk_size=4),
    "RWKV": transformer("rwkv", CAUSAL, words, attention_hidden_size=32),
    # Encoders.
    "BERT": transformer("bert", MASKED, masked),
    "RoBERTa": transformer("roberta", MASKED, masked),
    "DistilBERT": transformer("distilbert", MASKED, masked, dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "ALBERT": transformer("albert", MASKED, masked, embedding_size=16),
    "ELECTRA": transformer("electra", MASKED, masked, embedding_size=16),
    "DeBERTa-v2": transformer("deberta-v2", MASKED, masked, relative_attention=True, pos_att_type=["p2c", "c2p"],
                              position_buckets=8),
    "MPNet": transformer("mpnet", MASKED, masked),
    "Longformer": transformer("longformer", MASKED, masked, attention_window=4),
    "ModernBERT": transformer("modernbert", MASKED, masked, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2),
    "XLNet": transformer("xlnet", LABELS, lambda: {"input_ids": tokens(), "labels": classes(2)},
                         dict(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=WORDS, pad_token_id=0)),
    "FNet": transformer("fnet", MASKED, words),
    "LayoutLM": transformer(
        "layoutlm", MASKED, lambda: {**words(), "bbox": torch.randint(0, 20, (BATCH, LENGTH, 4)).sort(-1).values}),
    # Encoder and decoder.
    "BART": transformer("bart", TRANSLATE, words, SEQ2SEQ, encoder_layerdrop=0.1, decoder_layerdrop=0.1),
    "mBART": transformer("mbart", TRANSLATE, words, SEQ2SEQ),
    "Marian": transformer("marian", TRANSLATE, words, SEQ2SEQ, encoder_layerdrop=0.1),
    "Pegasus": transformer("pegasus", TRANSLATE, words, SEQ2SEQ),
    "T5": transformer("t5", TRANSLATE, words, dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS,
                                                  decoder_start_token_id=0, use_cache=False)),
    # Sound.
    "Whisper": transformer(
        "whisper", "AutoModelForSpeechSeq2Seq", lambda: {"input_features": torch.randn(BATCH, 8, 40), "labels": tokens()},
        SEQ2SEQ, num_mel_bins=8, max_source_positions=20, max_target_positions=64, encoder_layerdrop=0.1,
        decoder_layerdrop=0.1, suppress_tokens=[], begin_suppress_tokens=[]),
    "wav2vec 2": transformer(
        "wav2vec2", "AutoModelForAudioClassification",
        lambda: {"input_values": torch.randn(BATCH, 400), "labels": classes()}, num_labels=5,
        conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, layerdrop=0.1,
        classifier_proj_size=16),
    "HuBERT": transformer(
        "hubert", "AutoModelForAudioClassification",
        lambda: {"input_values": torch.randn(BATCH, 400), "labels": classes()}, num_labels=5,
        conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, layerdrop=0.1,
        classifier_proj_size=16),
    # Pictures.
    "ViT": transformer("vit", PICTURES, image, IMAGE),
    "DeiT": transformer("deit", PICTURES, image, IMAGE, architectures=["DeiTForImageClassification"]),
    "BEiT": transformer("beit", PICTURES, image, IMAGE),
    "DINOv2": transformer("dinov2", PICTURES, image, IMAGE),
    "Swin": transformer("swin", PICTURES, image, dict(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5)),
    "ConvNeXt": transformer("convnext", PICTURES, image, dict(
        hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, num_labels=5, drop_path_rate=0.1)),
    "ResNet": transformer("resnet", PICTURES, image, dict(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=5)),
    "SegFormer": transformer(
        "segformer", "AutoModelForSemanticSegmentation",
        lambda: {"pixel_values": pixels(), "labels": torch.randint(5, (BATCH, 32, 32))}, dict(
            num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[16, 32], num_attention_heads=[1, 2], sr_ratios=[2, 1],
            patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, num_labels=5)),
    # Two encoders.
    "CLIP": transformer("clip", "AutoModel", pair, dict(
        projection_dim=16, text_config=TEXT, vision_config={k: v for k, v in IMAGE.items() if k != "num_labels"})),
    "SigLIP": transformer("siglip", "AutoModel", pair, dict(
        text_config=TEXT, vision_config={k: v for k, v in IMAGE.items() if k != "num_labels"})),
}


def vision(name: str, size: int = 32, **settings):
    """A model of the torchvision package."""

    def make():
        import_torchvision()
        import torchvision

        model = torchvision.models.get_model(name, weights=None, num_classes=5, **settings)
        return model, {"x": pixels(size)}, {"labels": classes()}, "cross_entropy"

    return make


def vit_b_16():
    """Two of its twelve layers."""
    model, inputs, targets, loss = vision("vit_b_16", image_size=32)()
    model.encoder.layers = model.encoder.layers[:2]
    return model, inputs, targets, loss


def vgg16():
    """The two hidden layers of the classifier have a width of 64, not 4096."""
    model, inputs, targets, loss = vision("vgg16")()
    linear = torch.nn.Linear
    model.classifier[0], model.classifier[3], model.classifier[6] = linear(512 * 49, 64), linear(64, 64), linear(64, 5)
    return model, inputs, targets, loss


TORCHVISION = {
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v2": vision("mobilenet_v2"),
    "mobilenet_v3_small": vision("mobilenet_v3_small"),
    "vgg16": vgg16,
    "densenet121": vision("densenet121"),
    "efficientnet_b0": vision("efficientnet_b0"),
    "convnext_tiny": vision("convnext_tiny"),
    "vit_b_16": vit_b_16,
    "swin_t": vision("swin_t"),
    "regnet_y_400mf": vision("regnet_y_400mf"),
    "inception_v3": vision("inception_v3", 75, aux_logits=False, init_weights=False),
}

MODELS = {**TRANSFORMERS, **TORCHVISION}
OWN_DATA = {"LayoutLM"}  # its boxes must be boxes; the others are verified with made-up data
_library = None


def import_torchvision() -> None:
    """torchvision beside a torch for CPUs: its compiled kernels may be CUDA's and not load. No classifier uses them, but the
    import asks for their names."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        for operator in (name, f"_{name}_backward"):
            if not hasattr(torch.ops.torchvision, operator):
                _library.define(f"{operator}(Tensor x) -> Tensor")

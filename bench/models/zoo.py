"""Models of transformers and torchvision as people have them, small and with random weights: nothing is downloaded.

`TRANSFORMERS[name]()` and `TORCHVISION[name]()` give (model, inputs, targets, loss), what `espalier_export.export` takes. Model code is the packages' own;
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


def image_words() -> dict:
    return {"input_ids": tokens(), "pixel_values": pixels(), "labels": tokens()}


def image_in_words(places: int = 16, length: int = 32) -> dict:
    """Words among which an image stands, in so many places."""
    ids = torch.randint(3, WORDS - 1, (BATCH, length))
    ids[:, 1 : 1 + places] = WORDS - 1
    return {"input_ids": ids, "pixel_values": pixels(), "labels": tokens(length)}


def sound() -> dict:
    return {"input_values": torch.randn(BATCH, 400), "labels": classes()}


def frames() -> dict:
    return {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": classes()}


def series() -> dict:
    return {"past_values": torch.randn(BATCH, 16, 3), "future_values": torch.randn(BATCH, 4, 3)}


def transformer(kind: str, task: str, inputs, base: dict | None = None, **settings):
    """A model of the transformers package: its kind of configuration, its Auto class, what makes its inputs."""

    def make():
        if importlib.util.find_spec("torchvision"):  # transformers imports it where it is
            import_torchvision()
        import transformers

        config = transformers.AutoConfig.for_model(kind, **{**(TEXT if base is None else base), **settings})
        build = getattr(transformers, task)
        model = build.from_config(config) if task.startswith("Auto") else build(config)
        return model, inputs(), {}, None

    return make


VISION = {k: v for k, v in IMAGE.items() if k != "num_labels"}
HEADS = {**TEXT, "num_key_value_heads": 2}
WAVES = dict(
    num_labels=5, conv_dim=[16, 16], conv_stride=[5, 4], conv_kernel=[10, 4], num_feat_extract_layers=2,
    num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, classifier_proj_size=16,
)  # fmt: skip
LATENT = dict(
    num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, topk_group=1, kv_lora_rank=16, q_lora_rank=16,
    qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, moe_intermediate_size=32, first_k_dense_replace=1,
    n_shared_experts=1,
)  # fmt: skip
ASK = "AutoModelForImageTextToText"
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
    "GPT-BigCode": transformer("gpt_bigcode", CAUSAL, words),
    "CodeGen": transformer("codegen", CAUSAL, words, rotary_dim=4),
    "BioGPT": transformer("biogpt", CAUSAL, words),
    "XGLM": transformer("xglm", CAUSAL, words, dict(
        vocab_size=WORDS, max_position_embeddings=64, d_model=32, ffn_dim=64, num_layers=2, attention_heads=4, use_cache=False)),
    "MPT": transformer("mpt", CAUSAL, words, dict(
        d_model=32, n_heads=4, n_layers=2, max_seq_len=64, vocab_size=WORDS, use_cache=False, expansion_ratio=2)),
    "Cohere": transformer("cohere", CAUSAL, words, num_key_value_heads=2),
    "Granite": transformer("granite", CAUSAL, words, num_key_value_heads=2),
    "Granite-MoE": transformer("granitemoe", CAUSAL, words, num_key_value_heads=2, num_local_experts=4),
    "Nemotron": transformer("nemotron", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "StarCoder2": transformer("starcoder2", CAUSAL, words, num_key_value_heads=2),
    "OLMo 2": transformer("olmo2", CAUSAL, words, num_key_value_heads=2),
    "OLMoE": transformer("olmoe", CAUSAL, words, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2),
    "DeepSeek-V2": transformer("deepseek_v2", CAUSAL, words, n_group=1, **LATENT),
    "DeepSeek-V3": transformer("deepseek_v3", CAUSAL, words, n_group=2, **LATENT),
    "Qwen3-MoE": transformer("qwen3_moe", CAUSAL, words, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
                             moe_intermediate_size=32),
    "Qwen3-Next": transformer(
        "qwen3_next", CAUSAL, words, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=8),
    "GPT-OSS": transformer("gpt_oss", CAUSAL, words, num_key_value_heads=2, head_dim=8, num_local_experts=4,
                           num_experts_per_tok=2, sliding_window=4),
    "Gemma 3": transformer("gemma3_text", CAUSAL, words, num_key_value_heads=2, head_dim=8, sliding_window=4),
    "GLM-4": transformer("glm4", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "SmolLM3": transformer("smollm3", CAUSAL, words, num_key_value_heads=2),
    "Phi-MoE": transformer("phimoe", CAUSAL, words, num_key_value_heads=2, num_local_experts=4),
    "Llama 4": transformer("llama4_text", CAUSAL, words, num_key_value_heads=2, head_dim=8, num_local_experts=2,
                           intermediate_size_mlp=64, attention_chunk_size=8),
    "MiniMax": transformer("minimax", CAUSAL, words, num_key_value_heads=2, head_dim=8, num_local_experts=4, block_size=4),
    "Ernie 4.5 MoE": transformer("ernie4_5_moe", CAUSAL, words, num_key_value_heads=2, moe_num_experts=4, moe_k=2,
                                 moe_intermediate_size=32, moe_num_shared_experts=1),
    "Hunyuan": transformer("hunyuan_v1_dense", CAUSAL, words, num_key_value_heads=2, head_dim=8),
    "Jamba": transformer("jamba", CAUSAL, words, num_key_value_heads=2, num_experts=2, mamba_d_state=4, mamba_dt_rank=4,
                         attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False),
    "Falcon-H1": transformer("falcon_h1", CAUSAL, words, num_key_value_heads=2, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8,
                             mamba_d_state=4, mamba_chunk_size=4),
    "RecurrentGemma": transformer("recurrent_gemma", CAUSAL, words, num_hidden_layers=3, num_key_value_heads=2, lru_width=32,
                                  attention_window_size=8),
    "LFM2": transformer("lfm2", CAUSAL, words, num_key_value_heads=2, layer_types=["conv", "full_attention"]),
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
    "BigBird": transformer("big_bird", MASKED, masked, attention_type="original_full"),
    "ConvBERT": transformer("convbert", MASKED, masked, embedding_size=32, conv_kernel_size=3),
    "SqueezeBERT": transformer("squeezebert", MASKED, masked, embedding_size=32),
    "MobileBERT": transformer("mobilebert", MASKED, masked, embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "Funnel": transformer("funnel", MASKED, masked, dict(
        vocab_size=WORDS, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=64)),
    "CANINE": transformer("canine", LABELS, lambda: {"input_ids": torch.randint(1, 50, (BATCH, 32)), "labels": classes(2)},
                          num_hash_buckets=64, local_transformer_stride=16, downsampling_rate=4, upsampling_kernel_size=4),
    "Reformer": transformer("reformer", MASKED, masked, dict(
        vocab_size=WORDS, hidden_size=32, attention_head_size=8, num_attention_heads=4, feed_forward_size=64,
        attn_layers=["local", "local"], local_attn_chunk_length=4, axial_pos_embds=False, max_position_embeddings=64,
        is_decoder=False)),
    "Perceiver": transformer(
        "perceiver", MASKED, lambda: {"inputs": tokens(), "attention_mask": torch.ones(BATCH, LENGTH), "labels": tokens()}, dict(
            num_latents=4, d_latents=32, d_model=32, num_blocks=1, num_self_attends_per_block=1, num_self_attention_heads=2,
            num_cross_attention_heads=2, vocab_size=WORDS, max_position_embeddings=LENGTH)),
    "ESM": transformer("esm", MASKED, masked, mask_token_id=3),
    # Encoder and decoder.
    "BART": transformer("bart", TRANSLATE, words, SEQ2SEQ, encoder_layerdrop=0.1, decoder_layerdrop=0.1),
    "mBART": transformer("mbart", TRANSLATE, words, SEQ2SEQ),
    "Marian": transformer("marian", TRANSLATE, words, SEQ2SEQ, encoder_layerdrop=0.1),
    "Pegasus": transformer("pegasus", TRANSLATE, words, SEQ2SEQ),
    "T5": transformer("t5", TRANSLATE, words, dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS,
                                                  decoder_start_token_id=0, use_cache=False)),
    "LongT5": transformer("longt5", TRANSLATE, masked, dict(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0, use_cache=False,
        local_radius=4)),
    "UMT5": transformer("umt5", TRANSLATE, words, dict(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0, use_cache=False)),
    "Switch Transformers": transformer("switch_transformers", TRANSLATE, masked, dict(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0, use_cache=False,
        num_experts=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)),
    "ProphetNet": transformer("prophetnet", TRANSLATE, words, dict(
        vocab_size=WORDS, hidden_size=32, encoder_ffn_dim=64, num_encoder_layers=2, num_encoder_attention_heads=4,
        decoder_ffn_dim=64, num_decoder_layers=2, num_decoder_attention_heads=4, max_position_embeddings=64, use_cache=False)),
    "M2M-100": transformer("m2m_100", TRANSLATE, words, SEQ2SEQ),
    # Sound.
    "WavLM": transformer("wavlm", "AutoModelForAudioClassification", sound, num_buckets=8, max_bucket_distance=16, **WAVES),
    "SEW": transformer("sew", "AutoModelForAudioClassification", sound, squeeze_factor=2, **WAVES),
    "wav2vec 2 Conformer": transformer("wav2vec2-conformer", "AutoModelForAudioClassification", sound,
                                       conv_depthwise_kernel_size=3, **WAVES),
    "Data2Vec audio": transformer("data2vec-audio", "AutoModelForAudioClassification", sound, conv_pos_kernel_size=3, **WAVES),
    "AST": transformer(
        "audio-spectrogram-transformer", "AutoModelForAudioClassification",
        lambda: {"input_values": torch.randn(BATCH, 32, 16), "labels": classes()}, num_labels=5, patch_size=8,
        frequency_stride=8, time_stride=8, max_length=32, num_mel_bins=16),
    "Speech2Text": transformer(
        "speech_to_text", "AutoModelForSpeechSeq2Seq", lambda: {"input_features": torch.randn(BATCH, 40, 8), "labels": tokens()},
        SEQ2SEQ, input_feat_per_channel=8, max_source_positions=64, max_target_positions=64, conv_channels=16, num_conv_layers=2,
        conv_kernel_sizes=[3, 3]),
    "SpeechT5": transformer(
        "speecht5", "SpeechT5ForSpeechToText", lambda: {"input_values": torch.randn(BATCH, 400), "labels": tokens()},
        {**TEXT, **WAVES}, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64),
    "Moonshine": transformer(
        "moonshine", "AutoModelForSpeechSeq2Seq", lambda: {"input_values": torch.randn(BATCH, 2000), "labels": tokens()}, dict(
            vocab_size=WORDS, hidden_size=32, intermediate_size=64, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
            encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64, use_cache=False,
            decoder_start_token_id=1, pad_token_id=0)),
    "Whisper": transformer(
        "whisper", "AutoModelForSpeechSeq2Seq", lambda: {"input_features": torch.randn(BATCH, 8, 40), "labels": tokens()},
        SEQ2SEQ, num_mel_bins=8, max_source_positions=20, max_target_positions=64, encoder_layerdrop=0.1,
        decoder_layerdrop=0.1, suppress_tokens=[], begin_suppress_tokens=[]),
    "wav2vec 2, CTC": transformer(
        "wav2vec2", "AutoModelForCTC",
        lambda: {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(1, WORDS, (BATCH, 5))},
        conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
    ),  # fmt: skip
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
    "Swin V2": transformer("swinv2", PICTURES, image, dict(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5)),
    "ConvNeXt V2": transformer("convnextv2", PICTURES, image, dict(hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, num_labels=5)),
    "PoolFormer": transformer("poolformer", PICTURES, image, dict(
        hidden_sizes=[16, 32], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
        num_labels=5)),
    "MobileViT": transformer(
        "mobilevit", PICTURES, lambda: {"pixel_values": pixels(64), "labels": classes()}, dict(
            image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], num_labels=5,
            num_attention_heads=4)),
    "MobileNet V2": transformer("mobilenet_v2", PICTURES, image, dict(image_size=32, depth_multiplier=0.35, num_labels=5)),
    "FocalNet": transformer("focalnet", PICTURES, image, dict(
        image_size=32, patch_size=4, embed_dim=16, hidden_sizes=[16, 32], depths=[1, 1], focal_levels=[2, 2],
        focal_windows=[3, 3], num_labels=5)),
    "Hiera": transformer("hiera", PICTURES, image, dict(
        image_size=[32, 32], patch_kernel=[7, 7], patch_stride=[4, 4], patch_padding=[3, 3], embed_dim=16, depths=[1, 1],
        num_heads=[1, 2], mask_unit_size=[4, 4], query_stride=[2, 2], num_query_pool=1, masked_unit_attention=[True, False],
        embed_dim_multiplier=2.0, num_labels=5)),
    "ViT-MAE": transformer("vit_mae", "ViTMAEForPreTraining", lambda: {"pixel_values": pixels()}, {
        **VISION, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 32}),
    # Films.
    "VideoMAE": transformer("videomae", "AutoModelForVideoClassification", frames, IMAGE, num_frames=4, tubelet_size=2),
    "TimeSformer": transformer("timesformer", "AutoModelForVideoClassification", frames, IMAGE, num_frames=4),
    "ViViT": transformer("vivit", "AutoModelForVideoClassification", frames, IMAGE, num_frames=4, tubelet_size=[2, 8, 8]),
    # Series.
    "PatchTST": transformer("patchtst", "PatchTSTForPrediction", series, dict(
        num_input_channels=3, context_length=16, prediction_length=4, patch_length=4, patch_stride=4, num_hidden_layers=2,
        d_model=16, num_attention_heads=2, ffn_dim=32)),
    "PatchTSMixer": transformer("patchtsmixer", "PatchTSMixerForPrediction", series, dict(
        num_input_channels=3, context_length=16, prediction_length=4, patch_length=4, patch_stride=4, num_layers=2, d_model=16)),
    # Two encoders.
    "CLIP": transformer("clip", "AutoModel", pair, dict(
        projection_dim=16, text_config=TEXT, vision_config={k: v for k, v in IMAGE.items() if k != "num_labels"})),
    "SigLIP": transformer("siglip", "AutoModel", pair, dict(
        text_config=TEXT, vision_config={k: v for k, v in IMAGE.items() if k != "num_labels"})),
    "AltCLIP": transformer("altclip", "AutoModel", pair, dict(
        projection_dim=16, text_config={**TEXT, "project_dim": 16}, vision_config=VISION)),
    "Chinese-CLIP": transformer("chinese_clip", "AutoModel", pair, dict(
        projection_dim=16, text_config=TEXT, vision_config=VISION)),
    "OWL-ViT": transformer("owlvit", "AutoModel", pair, dict(projection_dim=16, text_config=TEXT, vision_config=VISION)),
    "GroupViT": transformer("groupvit", "AutoModel", pair, dict(
        projection_dim=16, projection_intermediate_dim=32, text_config=TEXT, vision_config=dict(
            hidden_size=32, intermediate_size=64, depths=[1, 1, 1], num_group_tokens=[8, 4, 0], num_output_groups=[8, 4, 0],
            num_attention_heads=4, image_size=32, patch_size=8))),
    "CLIPSeg": transformer(
        "clipseg", "CLIPSegForImageSegmentation",
        lambda: {"input_ids": tokens(), "pixel_values": pixels(), "labels": torch.rand(BATCH, 32, 32).round()}, dict(
            projection_dim=32, text_config=TEXT, vision_config={**VISION, "num_hidden_layers": 3}, extract_layers=[0, 1],
            reduce_dim=16, decoder_num_attention_heads=2, decoder_intermediate_size=32)),
    "LXMERT": transformer(
        "lxmert", "LxmertForQuestionAnswering",
        lambda: {"input_ids": tokens(), "visual_feats": torch.randn(BATCH, 6, 16), "visual_pos": torch.rand(BATCH, 6, 4),
                 "labels": classes()}, dict(
            vocab_size=WORDS, hidden_size=32, num_attention_heads=4, intermediate_size=64, l_layers=1, x_layers=1, r_layers=1,
            visual_feat_dim=16, num_qa_labels=5)),
    # Language models that see.
    "BLIP": transformer("blip", ASK, image_words, dict(
        text_config={**TEXT, "encoder_hidden_size": 32}, vision_config=VISION, projection_dim=16)),
    "BLIP-2": transformer("blip-2", "Blip2ForConditionalGeneration", lambda: image_in_words(4, 16), dict(
        vision_config=VISION, qformer_config={**TEXT, "encoder_hidden_size": 32},
        text_config={**TEXT, "model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32}, num_query_tokens=4,
        image_token_index=WORDS - 1, image_text_hidden_size=16)),
    "GIT": transformer("git", CAUSAL, image_words, {**TEXT, "vision_config": VISION}),
    "LLaVA": transformer("llava", ASK, image_in_words, dict(
        text_config={**HEADS, "model_type": "llama"}, vision_config={**VISION, "model_type": "clip_vision_model"},
        image_token_index=WORDS - 1, vision_feature_layer=-1, image_seq_length=16)),
    "PaliGemma": transformer(
        "paligemma", ASK,
        lambda: {**image_in_words(), "token_type_ids": torch.ones(BATCH, 32, dtype=torch.long),
                 "attention_mask": torch.ones(BATCH, 32, dtype=torch.long)}, dict(
            text_config={**TEXT, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 8},
            vision_config={**VISION, "model_type": "siglip_vision_model", "projection_dim": 32},
            image_token_index=WORDS - 1, projection_dim=32, hidden_size=32)),
    "Gemma 3 with images": transformer(
        "gemma3", ASK, lambda: {**image_in_words(), "token_type_ids": torch.zeros(BATCH, 32, dtype=torch.long)}, dict(
            text_config={**HEADS, "head_dim": 8, "sliding_window": 8},
            vision_config={**VISION, "model_type": "siglip_vision_model"}, mm_tokens_per_image=16,
            image_token_index=WORDS - 1, image_token_id=WORDS - 1, boi_token_index=61, eoi_token_index=62)),
    "InternVL": transformer("internvl", ASK, lambda: image_in_words(4), dict(
        text_config={**HEADS, "model_type": "qwen2"},
        vision_config={**VISION, "model_type": "internvl_vision", "image_size": [32, 32], "patch_size": [8, 8]},
        image_token_id=WORDS - 1, image_seq_length=4, downsample_ratio=0.5)),
    "Florence-2": transformer("florence2", ASK, lambda: image_in_words(17), dict(
        text_config={**SEQ2SEQ, "model_type": "bart"}, vision_config=dict(
            embed_dim=[16, 32], depths=[1, 1], patch_size=[7, 3], patch_stride=[4, 2], patch_padding=[3, 1],
            patch_prenorm=[False, True], num_heads=[2, 4], num_groups=[2, 4], window_size=4, projection_dim=32,
            max_position_embeddings=16), image_token_id=WORDS - 1)),
    "SmolVLM": transformer(
        "smolvlm", ASK, lambda: {**image_in_words(4), "pixel_values": torch.randn(BATCH, 1, 3, 32, 32)}, dict(
            text_config={**HEADS, "model_type": "llama"}, vision_config=VISION, image_token_id=WORDS - 1, scale_factor=2)),
    "Qwen2-VL": transformer(
        "qwen2_vl", ASK,
        lambda: {"input_ids": image_in_words(4)["input_ids"], "labels": tokens(32),
                 "pixel_values": torch.randn(BATCH * 16, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH)}, dict(
            text_config={**HEADS, "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}, vision_config=dict(
                depth=2, embed_dim=32, hidden_size=32, num_heads=4, mlp_ratio=2, patch_size=8), image_token_id=WORDS - 1,
            vision_start_token_id=61, vision_end_token_id=62)),
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

# LayoutLM's boxes must be boxes, and an image needs its places among the words; the others are verified with made-up data.
OWN_DATA = {
    "LayoutLM", "BLIP-2", "LLaVA", "PaliGemma", "Gemma 3 with images", "InternVL", "Florence-2", "SmolVLM",
}  # fmt: skip
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

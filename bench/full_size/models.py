"""Models of transformers, diffusers and peft at their full size, without their weights: parameters stand on PyTorch's meta device.

`MODELS[name]()` gives (model, inputs, targets, loss), what `espalier_export.export` takes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BATCH = 2


def samples(*size: int) -> torch.Tensor:
    return torch.randn(BATCH, *size, dtype=torch.bfloat16)


def language(make, length: int, words: int = 32_000):
    """A causal language model in bf16 and the words that it reads."""
    with torch.device("meta"):
        model = make()
    tokens = torch.randint(3, words, (BATCH, length))
    return model.to(torch.bfloat16), {"input_ids": tokens, "labels": tokens.clone()}, {}, None


def llama(**sizes):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(use_cache=False, **sizes))


def with_adapters(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def llama_7b_lora():
    return language(lambda: with_adapters(llama()), 2048)


def llama_70b_lora():
    sizes = dict(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256,
    )  # fmt: skip
    return language(lambda: with_adapters(llama(**sizes)), 2048)


def mixtral_8x7b():
    from transformers import MixtralConfig, MixtralForCausalLM

    return language(lambda: MixtralForCausalLM(MixtralConfig(use_cache=False)), 1024)


def whisper_large():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=1280, encoder_layers=32, decoder_layers=32, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=128, vocab_size=51866, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(BATCH, 128, 3000), "labels": torch.randint(3, 51_000, (BATCH, 128))}, {}, None


class NoiseOfStableDiffusionXL(torch.nn.Module):
    """One training step of the U-Net: what it makes of a noisy latent, beside the noise."""

    def __init__(self):
        from diffusers import UNet2DConditionModel

        super().__init__()
        self.unet = UNet2DConditionModel(
            sample_size=128, in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280), layers_per_block=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=2048,
            attention_head_dim=[5, 10, 20], transformer_layers_per_block=[1, 2, 10], addition_embed_type="text_time",
            addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816, use_linear_projection=True,
        )  # fmt: skip

    def forward(self, latent, timestep, words, pooled, sizes, noise):
        added = {"text_embeds": pooled, "time_ids": sizes}
        found = self.unet(latent, timestep, words, added_cond_kwargs=added, return_dict=False)[0]
        return F.mse_loss(found.float(), noise.float())


def stable_diffusion_xl():
    with torch.device("meta"):
        model = NoiseOfStableDiffusionXL()
    inputs = {
        "latent": samples(4, 128, 128), "timestep": torch.randint(0, 1000, (BATCH,)), "words": samples(77, 2048),
        "pooled": samples(1280), "sizes": samples(6), "noise": samples(4, 128, 128),
    }  # fmt: skip
    return model.to(torch.bfloat16), inputs, {}, None


class FlowOfFlux(torch.nn.Module):
    """One training step by flow matching, 1024 x 1024 pixels."""

    def __init__(self):
        from diffusers import FluxTransformer2DModel

        super().__init__()
        self.flow = FluxTransformer2DModel(guidance_embeds=True)
        self.register_buffer("places", torch.zeros(4096, 3))
        self.register_buffer("places_of_words", torch.zeros(512, 3))

    def forward(self, latent, words, pooled, time, guidance, noise):
        found = self.flow(
            latent, encoder_hidden_states=words, pooled_projections=pooled, timestep=time, guidance=guidance,
            img_ids=self.places, txt_ids=self.places_of_words, return_dict=False,
        )[0]  # fmt: skip
        return F.mse_loss(found.float(), (noise - latent).float())


def flux():
    with torch.device("meta"):
        model = FlowOfFlux()
    inputs = {
        "latent": samples(4096, 64), "words": samples(512, 4096), "pooled": samples(768),
        "time": torch.rand(BATCH, dtype=torch.bfloat16), "guidance": torch.rand(BATCH, dtype=torch.bfloat16),
        "noise": samples(4096, 64),
    }  # fmt: skip
    return model.to(torch.bfloat16), inputs, {}, None


MODELS = {
    "stable-diffusion-xl": stable_diffusion_xl,
    "flux": flux,
    "llama-7b-lora": llama_7b_lora,
    "llama-70b-lora": llama_70b_lora,
    "mixtral-8x7b": mixtral_8x7b,
    "whisper-large-v3": whisper_large,
}

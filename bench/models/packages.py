"""Models of other packages, small and with random weights, and habits of people who write PyTorch by themselves.

As zoo.py: each gives (model, inputs, targets, loss). The packages are those of requirements.txt.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from zoo import BATCH, classes, import_torchvision, pixels, tokens

if importlib.util.find_spec("torchvision"):  # the others import it where it is
    import_torchvision()

LENGTH, CLASSES = 8, 5


def rows(*sizes: int) -> torch.Tensor:
    return torch.randn(BATCH, *sizes)


def steps() -> torch.Tensor:
    return torch.randint(1000, (BATCH,))


def classified(model: nn.Module, value: torch.Tensor, loss="cross_entropy"):
    """A model of one input, whose classes the loss compares."""
    written = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    return model, {next(iter(inspect.signature(written.forward).parameters)): value}, {"labels": classes(CLASSES)}, loss


def made(path: str, value: Callable, **settings) -> Callable:
    """`package.module:Class` with its settings, as a classifier of one input."""

    def make():
        module, _, name = path.partition(":")
        return classified(getattr(importlib.import_module(module), name)(**settings), value())

    return make


# -- diffusers: a denoiser and the noise that it must find -----------------------------------------------------------------


def denoiser(name: str, sample: tuple, extra: Callable, **settings) -> Callable:
    def make():
        import diffusers

        model = getattr(diffusers, name)(**settings)
        first = next(iter(inspect.signature(model.forward).parameters))
        return model, {first: rows(*sample), **extra()}, {"noise": rows(*sample)}, "mse_loss"

    return make


def with_text(width: int, **more) -> Callable:
    return lambda: {"timestep": steps(), "encoder_hidden_states": rows(7, width), **{n: v() for n, v in more.items()}}


UNET = dict(sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8)
TEXT_UNET = UNET | dict(
    in_channels=4, out_channels=4, cross_attention_dim=32, attention_head_dim=8,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip


class ControlNet(nn.Module):
    """A frozen network whose inner states a trained copy of its encoder moves."""

    def __init__(self):
        import diffusers

        super().__init__()
        self.unet = diffusers.UNet2DConditionModel(**TEXT_UNET)
        self.control = diffusers.ControlNetModel.from_unet(self.unet, conditioning_embedding_out_channels=(16, 32))
        self.unet.requires_grad_(False)

    def forward(self, sample, timestep, text, picture, noise):
        down, middle = self.control(
            sample, timestep, encoder_hidden_states=text, controlnet_cond=picture, return_dict=False
        )
        states = dict(down_block_additional_residuals=down, mid_block_additional_residual=middle)
        return F.mse_loss(self.unet(sample, timestep, text, return_dict=False, **states)[0], noise)


def control_net():
    inputs = {"sample": rows(4, 16, 16), "timestep": steps(), "text": rows(7, 32), "picture": pixels(), "noise": rows(4, 16, 16)}
    return ControlNet(), inputs, {}, None


class Autoencoder(nn.Module):
    def __init__(self):
        import diffusers

        super().__init__()
        self.vae = diffusers.AutoencoderKL(
            block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8,
        )  # fmt: skip

    def forward(self, x):
        coded = self.vae.encode(x).latent_dist
        return F.mse_loss(self.vae.decode(coded.sample()).sample, x) + 1e-6 * coded.kl().mean()


class Flux(nn.Module):
    def __init__(self):
        import diffusers

        super().__init__()
        self.transformer = diffusers.FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
        )  # fmt: skip
        self.register_buffer("image_places", torch.randint(4, (16, 3)).float())
        self.register_buffer("text_places", torch.zeros(7, 3))

    def forward(self, x, text, pooled, timestep, noise):
        out = self.transformer(
            x, encoder_hidden_states=text, pooled_projections=pooled, timestep=timestep, img_ids=self.image_places,
            txt_ids=self.text_places, return_dict=False,
        )  # fmt: skip
        return F.mse_loss(out[0], noise - x)


def flux():
    inputs = {"x": rows(16, 4), "text": rows(7, 32), "pooled": rows(32), "timestep": torch.rand(BATCH), "noise": rows(16, 4)}
    return Flux(), inputs, {}, None


DIFFUSERS = {
    "UNet2D": denoiser(
        "UNet2DModel", (3, 16, 16), lambda: {"timestep": steps()}, **UNET, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "UNet2D with text": denoiser("UNet2DConditionModel", (4, 16, 16), with_text(32), **TEXT_UNET),
    "ControlNet": control_net,
    "AutoencoderKL": lambda: (Autoencoder(), {"x": pixels()}, {}, None),
    "DiT": denoiser(
        "DiTTransformer2DModel", (4, 8, 8), lambda: {"timestep": steps(), "class_labels": classes(CLASSES)},
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10,
    ),
    "Flux": flux,
    "Stable Diffusion 3": denoiser(
        "SD3Transformer2DModel", (4, 8, 8), with_text(32, pooled_projections=lambda: rows(64)), sample_size=8, in_channels=4,
        num_layers=2, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32,
        pooled_projection_dim=64, out_channels=4, pos_embed_max_size=16,
    ),
    "CogVideoX": denoiser(
        "CogVideoXTransformer3DModel", (3, 4, 4, 4), with_text(16), num_attention_heads=2, attention_head_dim=16, in_channels=4,
        out_channels=4, time_embed_dim=8, text_embed_dim=16, num_layers=2, sample_width=4, sample_height=4, sample_frames=9,
        max_text_seq_length=7,
    ),
    "Wan": denoiser(
        "WanTransformer3DModel", (4, 2, 8, 8), with_text(16), num_attention_heads=2, attention_head_dim=16, in_channels=4,
        out_channels=4, text_dim=16, freq_dim=32, ffn_dim=64, num_layers=2, rope_max_seq_len=32,
    ),
    "Sana": denoiser(
        "SanaTransformer2DModel", (4, 8, 8), with_text(16), in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32,
        caption_channels=16, sample_size=8,
    ),
}  # fmt: skip


# -- timm ------------------------------------------------------------------------------------------------------------------


def timm_model(name: str, size: int, **settings) -> Callable:
    def make():
        import timm

        return classified(timm.create_model(name, num_classes=CLASSES, **settings), pixels(size))

    return make


SIZES = {
    "resnet18d": 64, "hrnet_w18_small": 64, "dla34": 64, "res2net50_14w_8s": 64, "resnest14d": 64, "mobilenetv4_conv_small": 64,
    "efficientnetv2_rw_t": 64, "ghostnetv2_100": 64, "convnextv2_atto": 64, "levit_128s": 224, "efficientformerv2_s0": 224,
    "maxvit_rmlp_pico_rw_256": 256, "coatnet_0_rw_224": 224, "crossvit_9_240": 240, "twins_pcpvt_small": 64,
    "xcit_nano_12_p16_224": 64, "edgenext_xx_small": 64, "fastvit_t8": 64, "mixer_s32_224": 224, "eva02_tiny_patch14_224": 224,
    "swinv2_cr_tiny_ns_224": 224, "pvt_v2_b0": 64, "mvitv2_tiny": 224, "cait_xxs24_224": 224, "nasnetalarge": 96,
    "pnasnet5large": 96, "inception_resnet_v2": 96, "davit_tiny": 224, "mambaout_femto": 64,
}  # fmt: skip
TIMM = {name: timm_model(name, size) for name, size in SIZES.items()}
TIMM["vit_tiny_patch16_224, drop path"] = timm_model("vit_tiny_patch16_224", 224, depth=2, drop_path_rate=0.1, drop_rate=0.1)


# -- segmentation, medical images, adapters, others ------------------------------------------------------------------------


def segmenter(name: str, encoder: str = "resnet18", loss: str | None = None) -> Callable:
    def make():
        import segmentation_models_pytorch as smp

        model = getattr(smp, name)(encoder_name=encoder, encoder_weights=None, classes=3)
        dice = getattr(smp.losses, loss)("multiclass") if loss else "cross_entropy"
        return model, {"x": pixels(64)}, {"labels": torch.randint(3, (BATCH, 64, 64))}, dice

    return make


def volume(name: str, size: int, **settings) -> Callable:
    def make():
        import monai

        model = getattr(monai.networks.nets, name)(in_channels=1, out_channels=2, **settings)
        first = next(iter(inspect.signature(model.forward).parameters))
        return model, {first: rows(1, size, size, size)}, {"labels": torch.randint(2, (BATCH, size, size, size))}, "cross_entropy"

    return make


def monai_unet():
    import monai

    model = monai.networks.nets.UNet(
        spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2
    )
    loss = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
    return model, {"x": rows(1, 32, 32)}, {"labels": torch.randint(2, (BATCH, 1, 32, 32))}, loss


def adapted(config: str, **settings) -> Callable:
    """A language model of which only what peft adds is trained."""

    def make():
        import peft
        import transformers

        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=64)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, use_cache=False))
        model = peft.get_peft_model(model, getattr(peft, config)(task_type="CAUSAL_LM", **settings))
        return model, {"input_ids": tokens(), "labels": tokens()}, {}, None

    return make


class OpenClip(nn.Module):
    def __init__(self):
        from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

        super().__init__()
        image = CLIPVisionCfg(layers=2, width=64, head_width=32, patch_size=8, image_size=32)
        self.clip = CLIP(32, image, CLIPTextCfg(context_length=12, vocab_size=64, width=32, heads=2, layers=2))

    def forward(self, image, text):
        pictures, texts, scale = self.clip(image, text)
        logits, own = scale * pictures @ texts.T, torch.arange(image.shape[0])
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def x_decoder(**settings) -> Callable:
    def make():
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        layers = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **settings)
        return AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)), {"x": tokens(17)}, {}, None

    return make


VIT = dict(image_size=32, patch_size=8, num_classes=CLASSES, dim=32, depth=2, heads=4, mlp_dim=64)
LORA = dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
OTHERS = {
    "smp Unet": segmenter("Unet"),
    "smp UnetPlusPlus, Dice": segmenter("UnetPlusPlus", loss="DiceLoss"),
    "smp FPN": segmenter("FPN"),
    "smp DeepLabV3Plus": segmenter("DeepLabV3Plus"),
    "smp MAnet": segmenter("MAnet"),
    "smp UPerNet": segmenter("UPerNet"),
    "smp Segformer": segmenter("Segformer", "mit_b0"),
    "MONAI UNet, Dice": monai_unet,
    "MONAI UNETR": volume("UNETR", 32, img_size=(32, 32, 32), feature_size=8, hidden_size=32, mlp_dim=64, num_heads=4),
    "MONAI SegResNet": volume("SegResNet", 16, spatial_dims=3, init_filters=8),
    "peft LoRA": adapted("LoraConfig", **LORA, lora_dropout=0.1),
    "peft DoRA": adapted("LoraConfig", **LORA, use_dora=True),
    "peft prompt tuning": adapted("PromptTuningConfig", num_virtual_tokens=4),
    "open_clip CLIP": lambda: (OpenClip(), {"image": pixels(), "text": tokens()}, {}, None),
    "x-transformers decoder": x_decoder(rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True),
    "x-transformers ALiBi": x_decoder(alibi_pos_bias=True),
    "vit-pytorch SimpleViT": made("vit_pytorch:SimpleViT", pixels, **VIT),
    "vit-pytorch CCT": made(
        "vit_pytorch.cct:CCT", pixels, img_size=32, embedding_dim=32, n_conv_layers=1, kernel_size=3, stride=1, padding=1,
        num_layers=2, num_heads=4, mlp_ratio=2.0, num_classes=CLASSES,
    ),
}  # fmt: skip


# -- Habits ----------------------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """Something in front of a linear layer to five classes."""

    def __init__(self, before: Callable | nn.Module, width: int, **parts):
        super().__init__()
        self.before = before
        self.head = nn.Linear(width, CLASSES)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.head(self.before(x) if isinstance(self.before, nn.Module) else self.before(self, x))


def head(before: Callable, width: int, value: Callable = lambda: rows(LENGTH), **parts: Callable) -> Callable:
    return lambda: classified(Head(before, width, **{name: part() for name, part in parts.items()}), value())


class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.layers = kind(16, 16, 2, batch_first=True, dropout=0.1, **settings)
        self.head = nn.LazyLinear(64)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0]).flatten(0, 1)


def recurrent(kind, **settings) -> Callable:
    def make():
        model = Recurrent(kind, **settings)
        model(tokens())  # gives the lazy layer its size
        return model, {"x": tokens()}, {"labels": tokens()}, lambda out, labels: F.cross_entropy(out, labels.flatten())

    return make


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.transformer = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 64)

    def forward(self, source, target):
        later = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        padding = source == 0
        out = self.transformer(
            self.embedding(source), self.embedding(target), tgt_mask=later, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.head(out).transpose(1, 2)


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return {"picture": self.decoder(code).sigmoid(), "mean": mean, "log_variance": log_variance}


def variational_loss(out, target):
    divergence = -0.5 * (1 + out["log_variance"] - out["mean"] ** 2 - out["log_variance"].exp()).mean()
    return F.binary_cross_entropy(out["picture"], target) + divergence


class Triplets(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, 4))

    def forward(self, anchor, positive, negative):
        return self.body(anchor), self.body(positive), self.body(negative)


class Buckets(nn.Module):
    """A list of columns, as recommenders have it."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10, 8) for _ in range(3))
        self.head = nn.Linear(24, 1)

    def forward(self, columns):
        read = [table(column) for table, column in zip(self.tables, columns, strict=True)]
        return self.head(torch.cat(read, -1)).sigmoid().squeeze(-1)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


def checkpointed(self, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y: self.two(F.gelu(self.one(y))), x, use_reentrant=False)


def transformed(self, x):
    moved = F.affine_grid(self.where(x.flatten(1)).view(-1, 2, 3), x.size(), align_corners=False)
    return F.grid_sample(x, moved, align_corners=False).mean((2, 3))


def mixed(self, x):
    weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
    return sum(expert(x) * ((chosen == i) * weight).sum(-1, keepdim=True) for i, expert in enumerate(self.experts))


def stepwise(self, x):
    hidden, cell = x.new_zeros(x.shape[0], 16), x.new_zeros(x.shape[0], 16)
    for i in range(x.shape[1]):
        hidden, cell = self.cell(x[:, i], (hidden, cell))
    return hidden


def watched(self, x):
    y = self.one(x)
    print("mean", y.mean().item())
    assert not torch.isnan(y).any()
    self.seen += 1
    y[:, 0] = 0
    return y


def packed(self, x):
    lengths = (x[:, :, 0] > -1).sum(1).clamp(min=1)
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return self.layers(rows)[1][0][-1]


def chosen_experts(self, x):
    chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
    for i, expert in enumerate(self.experts):
        mine = chosen == i
        if mine.any():
            out[mine] = expert(x[mine])
    return out


def in_half(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.one(x).relu().float()


def speech(out, labels):
    full = torch.full((labels.shape[0],), out.shape[1]), torch.full((labels.shape[0],), labels.shape[1])
    return F.ctc_loss(out.log_softmax(-1).transpose(0, 1), labels, *full)


def weighted():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, CLASSES))
    return classified(model, rows(8), nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.arange(1.0, CLASSES + 1)))


def frozen():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))
    model[0].requires_grad_(False)
    return classified(model, rows(8))


def ctc():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
    return model, {"input": rows(20, 8)}, {"labels": torch.randint(1, 6, (BATCH, 5))}, speech


def four_experts() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


HABITS = {
    "LSTM": recurrent(nn.LSTM),
    "LSTM both ways": recurrent(nn.LSTM, bidirectional=True),
    "GRU": recurrent(nn.GRU),
    "LSTMCell in a loop": head(stepwise, 16, lambda: rows(6, 8), cell=lambda: nn.LSTMCell(8, 16)),
    "nn.Transformer": lambda: (Translator(), {"source": tokens(9), "target": tokens(7)}, {"labels": tokens(7)}, "cross_entropy"),
    "torch.utils.checkpoint": head(checkpointed, 8, one=lambda: nn.Linear(8, 16), two=lambda: nn.Linear(16, 8)),
    "weight_norm, spectral_norm": head(
        lambda self, x: self.two(self.one(x).relu()), 8,
        one=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)),
        two=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8)),
    ),
    "loss of a dict of outputs": lambda: (Variational(), {"x": torch.rand(BATCH, 12)}, {"target": torch.rand(BATCH, 12)}, variational_loss),
    "triplets": lambda: (Triplets(), {n: rows(8) for n in ("anchor", "positive", "negative")}, {}, lambda out: F.triplet_margin_loss(*out)),
    "list of inputs": lambda: (Buckets(), {"columns": [classes(10) for _ in range(3)]}, {"y": torch.rand(BATCH)}, "binary_cross_entropy"),
    "CTC": ctc,
    "weighted classes, smoothed": weighted,
    "autograd.Function": head(lambda self, x: Square.apply(x), 8),
    "FFT": head(lambda self, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter.weight, n=8, dim=1), 8, filter=lambda: nn.Embedding(1, 5)),
    "EmbeddingBag": head(nn.EmbeddingBag(64, 8), 8, tokens),
    "autocast": head(in_half, 16, one=lambda: nn.Linear(8, 16)),
    "grid_sample": head(transformed, 3, pixels, where=lambda: nn.Linear(3 * 32 * 32, 6)),
    "experts, all computed": head(mixed, 8, gate=lambda: nn.Linear(8, 4), experts=four_experts),
    "vmap": head(lambda self, x: torch.vmap(lambda row: (row[None] * row[:, None]).sum(0))(x), 8),
    "print, assert, counters, writes": head(watched, 8, one=lambda: nn.Linear(8, 8), seen=lambda: nn.Buffer(torch.zeros(()))),
    "frozen layers": frozen,
    "torch.compile": lambda: classified(torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES))), rows(8)),
    "DataParallel": lambda: (
        nn.DataParallel(nn.Linear(8, CLASSES)), {"input": rows(8)}, {"labels": classes(CLASSES)}, "cross_entropy",
    ),
    "packed sequences": head(packed, 16, lambda: rows(6, 8), layers=lambda: nn.LSTM(8, 16, batch_first=True)),
    "experts, chosen by data": head(chosen_experts, 8, gate=lambda: nn.Linear(8, 4), experts=four_experts),
}  # fmt: skip
PACKAGES = {
    "diffusers": DIFFUSERS,
    "timm": TIMM,
    "Other packages": OTHERS,
    "Plain PyTorch": HABITS,
}

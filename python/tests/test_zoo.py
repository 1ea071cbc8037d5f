"""The zoo's graphs hold the parameters and the matrix work of the models that they are named after.

PyTorch's own counter (torch.utils.flop_counter) counts a forward pass of each model, small and without weights: of the
transformers package where it has the model, else of some lines of torch below. `espalier inspect --json` says what the
zoo's graph of the same sizes asks for.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parents[2]
BINARIES = [os.environ.get("ESPALIER_BINARY"), ROOT / "build/release/espalier", ROOT / "build/notorch/espalier"]
BINARY = next((Path(b) for b in BINARIES if b and Path(b).exists()), None)
MATRIX = {"linear", "mm", "bmm", "matmul", "addmm", "conv1d", "conv2d", "conv_transpose2d", "scaled_dot_product_attention"}
BATCH = 4

transformers = pytest.importorskip("transformers")


def told(folder, model, **settings):
    """Trained parameters, and the forward flops of matrix work for a batch."""
    if BINARY is None:
        pytest.skip("espalier is not built")
    path = folder / "model.json"
    flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    subprocess.run([BINARY, "zoo", model, *flags, "-o", path], check=True, capture_output=True)
    done = subprocess.run([BINARY, "inspect", path, "-c", "1xA100-80GB", "-b", str(BATCH), "--micro-batch", str(BATCH), "--json"],
                          check=True, capture_output=True, text=True)  # fmt: skip
    said = json.loads(done.stdout)
    assert said["micro_batch"] == BATCH
    return said["parameters"], sum(
        kind["forward_flops"] for kind in said["kinds"] if kind["operator"].split(".")[0] in MATRIX)  # fmt: skip


def counted(run):
    """The flops that PyTorch counts. Attention's fused kernels for a CPU have no formula there; its plain form has."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def of_package(make, inputs, device="meta"):
    """Parameters and flops of a model of the transformers package, as a rule on the device without memory."""
    with torch.device(device):
        model = make().eval()
        tensors = {name: torch.zeros(sizes, dtype=kind) for name, (kind, *sizes) in inputs.items()}
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return parameters, counted(lambda: model(**tensors))


WORDS = (torch.long, BATCH)
NUMBERS = (torch.float32, BATCH)
PLAIN = {"attn_implementation": "eager"}


def gpt():
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=8, vocab_size=50, **PLAIN)
    return (dict(layers=2, hidden=32, heads=4, positions=8, vocabulary=50), lambda: transformers.GPT2LMHeadModel(config),
            {"input_ids": (*WORDS, 8)})  # fmt: skip


def bert():
    config = transformers.BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48,
                                     max_position_embeddings=8, vocab_size=50, **PLAIN)  # fmt: skip
    return (dict(layers=2, hidden=32, heads=4, feed_forward=48, positions=8, vocabulary=50),
            lambda: transformers.BertForPreTraining(config), {"input_ids": (*WORDS, 8)})  # fmt: skip


def llama():
    config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                                      intermediate_size=48, vocab_size=50, **PLAIN)  # fmt: skip
    return (dict(layers=2, hidden=32, heads=4, key_value_heads=2, feed_forward=48, positions=8, vocabulary=50),
            lambda: transformers.LlamaForCausalLM(config), {"input_ids": (*WORDS, 8)})  # fmt: skip


def t5():
    config = transformers.T5Config(num_layers=2, d_model=32, num_heads=4, d_kv=6, d_ff=48, vocab_size=50, **PLAIN)
    return (dict(layers=2, hidden=32, heads=4, head_width=6, feed_forward=48, source=9, target=7, vocabulary=50),
            lambda: transformers.T5ForConditionalGeneration(config),
            {"input_ids": (*WORDS, 9), "decoder_input_ids": (*WORDS, 7)})  # fmt: skip


def whisper():
    config = transformers.WhisperConfig(
        encoder_layers=2, decoder_layers=2, d_model=32, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=6, max_source_positions=9, max_target_positions=7,
        vocab_size=50, pad_token_id=0, **PLAIN)  # fmt: skip
    return (dict(layers=2, hidden=32, heads=4, feed_forward=48, mels=6, source=9, target=7, vocabulary=50),
            lambda: transformers.WhisperForConditionalGeneration(config),
            {"input_features": (*NUMBERS, 6, 18), "decoder_input_ids": (*WORDS, 7)})  # fmt: skip


def vit():
    config = transformers.ViTConfig(image_size=12, patch_size=4, num_hidden_layers=2, hidden_size=32,
                                    num_attention_heads=4, intermediate_size=48, num_labels=5, **PLAIN)  # fmt: skip
    return (dict(image=12, patch=4, layers=2, hidden=32, heads=4, feed_forward=48, classes=5),
            lambda: transformers.ViTForImageClassification(config), {"pixel_values": (*NUMBERS, 3, 12, 12)})  # fmt: skip


def clip():
    text = dict(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24,
                max_position_embeddings=6, vocab_size=50)  # fmt: skip
    vision = dict(image_size=12, patch_size=4, num_hidden_layers=3, hidden_size=32, num_attention_heads=4,
                  intermediate_size=48)  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=10, **PLAIN)
    return (dict(image=12, patch=4, layers=3, hidden=32, heads=4, feed_forward=48, text_layers=2, text_hidden=16,
                 text_heads=2, text_feed_forward=24, positions=6, vocabulary=50, embedding=10),
            lambda: transformers.CLIPModel(config),
            {"input_ids": (*WORDS, 6), "pixel_values": (*NUMBERS, 3, 12, 12)})  # fmt: skip


def resnet():
    config = transformers.ResNetConfig(num_labels=7)
    return (dict(depth=50, image=64, classes=7), lambda: transformers.ResNetForImageClassification(config),
            {"pixel_values": (*NUMBERS, 3, 64, 64)})  # fmt: skip


def small_resnet():
    config = transformers.ResNetConfig(num_labels=7, layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])
    return (dict(depth=18, image=64, classes=7), lambda: transformers.ResNetForImageClassification(config),
            {"pixel_values": (*NUMBERS, 3, 64, 64)})  # fmt: skip


PACKAGE = {"gpt": gpt, "bert": bert, "llama": llama, "t5": t5, "whisper": whisper, "vit": vit, "clip": clip,
           "resnet": resnet, "resnet 18": small_resnet}  # fmt: skip


@pytest.mark.parametrize("name", PACKAGE)
def test_as_the_transformers_package_has_it(name, tmp_path):
    settings, make, inputs = PACKAGE[name]()
    assert told(tmp_path, name.split()[0], **settings) == of_package(make, inputs)


def test_as_the_transformers_package_has_llava(tmp_path):
    """Two towers of its parts: CLIP's images in front, Llama behind. It compares token ids, so it needs memory."""
    vision = dict(model_type="clip_vision_model", image_size=12, patch_size=4, num_hidden_layers=2, hidden_size=16,
                  num_attention_heads=2, intermediate_size=24)  # fmt: skip
    text = dict(model_type="llama", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=48, vocab_size=50)  # fmt: skip
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=49,
                                      vision_feature_layer=-1, **PLAIN)  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config).eval()
    patches, words = 9, 8
    ids = torch.cat([torch.full((BATCH, patches), 49), torch.zeros(BATCH, words, dtype=torch.long)], 1)
    flops = counted(lambda: model(input_ids=ids, pixel_values=torch.zeros(BATCH, 3, 12, 12), logits_to_keep=words))
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    settings = dict(layers=2, hidden=32, heads=4, key_value_heads=2, feed_forward=48, positions=words, vocabulary=50, image=12,
                    patch=4, encoder_layers=2, encoder_hidden=16, encoder_heads=2, encoder_feed_forward=24)  # fmt: skip
    assert told(tmp_path, "vision-language", **settings) == (parameters, flops)


class Net:
    """Layers without weights that count their parameters. What a model is stands in one function below."""

    def __init__(self):
        self.parameters = 0

    def weight(self, *sizes):
        made = torch.empty(sizes, device="meta")
        self.parameters += made.numel()
        return made

    def linear(self, x, to, bias=True):
        return F.linear(x, self.weight(to, x.shape[-1]), self.weight(to) if bias else None)

    def conv(self, x, to, kernel=1, stride=1, padding=0, bias=False, groups=1, dilation=1):
        kernel = kernel if isinstance(kernel, tuple) else (kernel,) * (x.dim() - 2)
        operator = F.conv1d if x.dim() == 3 else F.conv2d
        return operator(x, self.weight(to, x.shape[1] // groups, *kernel), self.weight(to) if bias else None, stride,
                        padding, dilation, groups)  # fmt: skip

    def conv_norm_relu(self, x, to, *where, **how):
        x = self.conv(x, to, *where, **how)
        return F.relu(F.batch_norm(x, None, None, self.weight(to), self.weight(to), training=True))


def numbers(*sizes):
    return torch.empty(BATCH, *sizes, device="meta")


def mmt(net):
    ends = []
    for _ in range(3):
        x = numbers(8, 32)
        for _ in range(2):
            q, k, v = (net.linear(x, 32, False).view(BATCH, 8, 4, 8).transpose(1, 2) for _ in range(3))
            read = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(BATCH, 8, 32)
            x = x + net.linear(read, 32, False)
            x = x + net.linear(F.relu(net.linear(x, 48, False)), 32, False)
        ends.append(x)
    return torch.cat(ends, -1)


def dlrm(net):
    ends = []
    for _ in range(2):
        x = numbers(16)
        for _ in range(3):
            x = F.relu(net.linear(x, 16))
        ends.append(x)
    for _ in range(3):
        ends.append(F.embedding_bag(numbers(5).long(), net.weight(20, 4), mode="sum"))
    x = torch.cat(ends, 1)
    for _ in range(2):
        x = F.relu(net.linear(x, 16))
    return net.linear(x, 1)


def candle_uno(net):
    ends = []
    for features in (942, 5270, 2048, 5270, 2048):
        x = numbers(features)
        for _ in range(3):
            x = F.relu(net.linear(x, 16, False))
        ends.append(x)
    x = torch.cat([*ends, numbers(1), numbers(1)], 1)
    for _ in range(2):
        x = F.relu(net.linear(x, 16, False))
    return net.linear(x, 1, False)


def u_net(net):
    def twice(x, to):
        return F.relu(net.conv(F.relu(net.conv(x, to, 3, 1, 1, True)), to, 3, 1, 1, True))

    skips, x = [], numbers(3, 16, 16)
    for width in (4, 8):
        skips.append(twice(x, width))
        x = F.max_pool2d(skips[-1], 2)
    x = twice(x, 16)
    for width in (8, 4):
        wide = F.conv_transpose2d(x, net.weight(2 * width, width, 2, 2), net.weight(width), stride=2)
        x = twice(torch.cat([skips.pop(), wide], 1), width)
    return net.conv(x, 5, bias=True)


def wavenet(net):
    x = F.embedding(numbers(20).long(), net.weight(8, 4)).transpose(1, 2)
    read = 0
    for layer in range(6):
        dilation = 2 ** (layer % 3)
        padded = F.pad(x, (dilation, 0))
        filtered, gate = (net.conv(padded, 4, 2, bias=True, dilation=dilation) for _ in range(2))
        gated = torch.tanh(filtered) * torch.sigmoid(gate)
        read = read + net.conv(gated, 6, bias=True)
        if layer < 5:
            x = x + net.conv(gated, 4, bias=True)
    return net.conv(F.relu(net.conv(F.relu(read), 6, bias=True)), 8, bias=True)


def inception(net):
    conv = net.conv_norm_relu

    def pooled(x, to):
        return conv(F.avg_pool2d(x, 3, 1, 1), to)

    def row(x, *steps):
        for to, *how in steps:
            x = conv(x, to, *how)
        return x

    wide, high = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    x = row(numbers(3, 107, 107), (32, 3, 2), (32, 3), (64, 3, 1, 1))
    x = F.max_pool2d(row(F.max_pool2d(x, 3, 2), (80,), (192, 3)), 3, 2)
    for to in (32, 64, 64):
        x = torch.cat([conv(x, 64), row(x, (48,), (64, 5, 1, 2)), row(x, (64,), (96, 3, 1, 1), (96, 3, 1, 1)), pooled(x, to)], 1)
    x = torch.cat([conv(x, 384, 3, 2), row(x, (64,), (96, 3, 1, 1), (96, 3, 2)), F.max_pool2d(x, 3, 2)], 1)
    for c in (128, 160, 160, 192):
        x = torch.cat([conv(x, 192), row(x, (c,), (c, *wide), (192, *high)),
                       row(x, (c,), (c, *high), (c, *wide), (c, *high), (192, *wide)), pooled(x, 192)], 1)  # fmt: skip
    x = torch.cat([row(x, (192,), (320, 3, 2)), row(x, (192,), (192, *wide), (192, *high), (192, 3, 2)), F.max_pool2d(x, 3, 2)], 1)
    for _ in range(2):
        ends = [conv(x, 320), pooled(x, 192)]
        for start in (conv(x, 384), row(x, (448,), (384, 3, 1, 1))):
            ends += [conv(start, 384, (1, 3), 1, (0, 1)), conv(start, 384, (3, 1), 1, (1, 0))]
        x = torch.cat(ends, 1)
    return net.linear(x.mean((2, 3)), 5)


def rnnlm(net):
    table = net.weight(16, 8)
    cells = [(net.weight(16, 32), net.weight(32)) for _ in range(2)]
    weight, bias = net.weight(8, 16), net.weight(16)
    states = [(numbers(8), numbers(8))] * 2
    for _ in range(3):
        x = F.embedding(numbers().long(), table)
        for layer, (w, b) in enumerate(cells):
            c, h = states[layer]
            i, j, f, o = (torch.cat([x, h], 1) @ w + b).chunk(4, 1)
            c = c * torch.sigmoid(f + 1) + torch.sigmoid(i) * torch.tanh(j)
            x = torch.sigmoid(o) * torch.tanh(c)
            states[layer] = c, x
        logits = x @ weight + bias
    return logits


def gnn(net):
    chunks = [torch.empty(BATCH * 5, 6, device="meta") for _ in range(3)]
    ends = torch.empty(BATCH * 12, dtype=torch.long, device="meta")
    for _ in range(2):
        weight, bias = net.weight(8, chunks[0].shape[1]), net.weight(8)
        below, chunks = chunks, []
        for chunk in below:
            read = torch.cat(below).index_select(0, ends) * torch.empty(BATCH * 12, 1, device="meta")
            chunks.append(F.relu(F.linear(torch.zeros_like(chunk).index_add(0, ends, read), weight, bias)))
    weight, bias = net.weight(4, 8), net.weight(4)
    return [F.linear(chunk, weight, bias) for chunk in chunks]


def mixture_of_experts(net):
    """One layer; six of twelve tokens for each of four experts."""
    x = F.embedding(numbers(12).long(), net.weight(50, 32))
    rotations = torch.empty(1, 4, 1, device="meta") @ torch.empty(1, 1, 12, device="meta")
    net.weight(32), net.weight(32), net.weight(32)  # norms
    q, k, v = (net.linear(x, to, False).view(BATCH, 12, -1, 8).transpose(1, 2) for to in (32, 16, 16))
    read = F.scaled_dot_product_attention(q + rotations.sum(), k, v, enable_gqa=True)
    x = x + net.linear(read.transpose(1, 2).reshape(BATCH, 12, 32), 32, False)
    gates, places = net.linear(x, 4, False).softmax(-1).transpose(1, 2).topk(6)
    out = torch.zeros_like(x)
    for expert in range(4):
        where = places[:, expert, :, None].expand(-1, -1, 32)
        tokens = x.gather(1, where)
        made = net.linear(F.silu(net.linear(tokens, 48, False)) * net.linear(tokens, 48, False), 32, False)
        out = out.scatter_add(1, where, made * gates[:, expert, :, None])
    return net.linear(x + out, 50, False)


def transformer_xl(net):
    table = net.weight(50, 32)
    x, memory = F.embedding(numbers(5).long(), table), [numbers(5, 32) for _ in range(2)]
    u, v, distances = net.weight(4, 1, 8), net.weight(4, 1, 8), torch.empty(10, 32, device="meta")
    for before in memory:
        q, k, values = net.linear(torch.cat([before, x], 1), 96, False).view(BATCH, 10, 3, 4, 8).permute(2, 0, 3, 1, 4)
        q, r = q[:, :, 5:], net.linear(distances, 32, False).view(10, 4, 8).permute(1, 2, 0)
        shifted = F.pad((q + v) @ r, (1, 0)).view(BATCH, 4, 11, 5)[:, :, 1:].reshape(BATCH, 4, 5, 10)
        read = ((q + u) @ k.transpose(2, 3) + shifted).softmax(-1) @ values
        x = F.layer_norm(x + net.linear(read.transpose(1, 2).reshape(BATCH, 5, 32), 32, False), (32,), net.weight(32), net.weight(32))
        x = F.layer_norm(x + net.linear(F.relu(net.linear(x, 48)), 32), (32,), net.weight(32), net.weight(32))
    return F.linear(x, table, net.weight(50))


MMT = dict(branches=3, layers=2, positions=8, hidden=32, heads=4, feed_forward=48)
OWN = {
    "mmt": (mmt, MMT),
    "dlrm": (dlrm, dict(dense=2, sparse=3, layers=3, width=16, rows=20, embedding=4, bag=5, top=2)),
    "candle-uno-flexflow": (candle_uno, dict(layers=3, width=16, head=2)),
    "u-net": (u_net, dict(width=4, levels=2, image=16, channels=3, classes=5)),
    "wavenet": (wavenet, dict(stacks=2, layers=6, channels=4, skip=6, classes=8, length=20)),
    "rnnlm": (rnnlm, dict(layers=2, hidden=8, vocabulary=16, length=3)),
    "gnn": (gnn, dict(chunks=3, layers=2, vertices=5, edges=12, features=6, hidden=8, classes=4)),
    "mixture-of-experts": (mixture_of_experts, dict(
        layers=1, hidden=32, heads=4, key_value_heads=2, feed_forward=48, positions=12, vocabulary=50, experts=4)),
    "transformer-xl": (transformer_xl, dict(layers=2, hidden=32, heads=4, feed_forward=48, positions=5, vocabulary=50)),
    "inception-v3": (inception, dict(image=107, classes=5, auxiliary=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_as_torch_counts_it(name, tmp_path):
    model, settings = OWN[name]
    net = Net()
    flops = counted(lambda: model(net))
    assert told(tmp_path, name, **settings) == (net.parameters, flops)


def test_a_wrong_size_is_found(tmp_path):
    net = Net()
    flops = counted(lambda: mmt(net))
    parameters, work = told(tmp_path, "mmt", **{**MMT, "feed_forward": 49})
    assert parameters != net.parameters
    assert work != flops

"""The zoo: small configurations of models of torchvision, timm and transformers, and a few of our own, with their data and
loss.

Nothing is downloaded: all weights are random. Inputs are sized so that one step is quick and its batch can still judge it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ZOO", "Entry"]

CLASSES = 10
VOCABULARY = 512
Data = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One model.

    Args:
        make: builds it, in training mode, on the CPU.
        data: makes a batch on a device.
        loss: of a model and a batch: FP32, as correct code computes it.
    """

    make: Callable[[], nn.Module]
    data: Callable[[str], Data]
    loss: Callable[[nn.Module, Data], Tensor]


def _images(batch: int, size: int, frames: int = 0) -> Callable[[str], Data]:
    shape = (batch, 3, frames, size, size) if frames else (batch, 3, size, size)
    return lambda device: {"x": torch.randn(shape, device=device), "y": torch.randint(0, CLASSES, (batch,), device=device)}


def _first(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


def _classify(model: nn.Module, data: Data) -> Tensor:
    return F.cross_entropy(_first(model(data["x"])).float(), data["y"])


def _segment(model: nn.Module, data: Data) -> Tensor:
    logits = _first(model(data["x"])).float()
    return F.cross_entropy(logits, data["y"][:, None, None].expand(-1, *logits.shape[2:]))


def _detect(model: nn.Module, data: Data) -> Tensor:
    losses: list[Tensor] = [loss.float() for loss in model(list(data["x"]), data["targets"]).values()]
    return torch.stack(losses).sum()


def _boxes(batch: int, size: int) -> Callable[[str], Data]:
    def make(device: str) -> Data:
        corner = torch.rand(batch, 3, 2, device=device) * size / 2
        boxes = torch.cat([corner, corner + size / 4 + torch.rand(batch, 3, 2, device=device) * size / 4], -1)
        labels = torch.randint(1, CLASSES, (batch, 3), device=device)
        targets = [{"boxes": b, "labels": one} for b, one in zip(boxes, labels, strict=True)]
        return {"x": torch.rand(batch, 3, size, size, device=device), "targets": targets}

    return make


def _tokens(batch: int = 8, length: int = 32, **more: Callable[[str], Any]) -> Callable[[str], Data]:
    def make(device: str) -> Data:
        ids = torch.randint(3, VOCABULARY, (batch, length), device=device)
        return {"input_ids": ids, "labels": ids.clone()} | {name: value(device) for name, value in more.items()}

    return make


def _own_loss(model: nn.Module, data: Data) -> Tensor:
    loss: Tensor = model(**data).loss
    return loss.float()


# -- torchvision ----------------------------------------------------------------------------------------------------


def _torchvision() -> dict[str, Entry]:
    models: Any = importlib.import_module("torchvision.models")

    def vision(name: str, size: int = 64, batch: int = 16, **how: Any) -> Entry:
        return Entry(lambda: getattr(models, name)(num_classes=CLASSES, **how), _images(batch, size), _classify)

    def detector(name: str, **how: Any) -> Entry:
        make = getattr(models.detection, name)
        return Entry(lambda: make(weights=None, weights_backbone=None, num_classes=CLASSES, **how), _boxes(4, 128), _detect)

    def segmenter(name: str) -> Entry:
        make = getattr(models.segmentation, name)
        return Entry(lambda: make(weights=None, weights_backbone=None, num_classes=CLASSES), _images(8, 64), _segment)

    small: tuple[str, ...] = (
        "resnet18",
        "resnet50",
        "resnext50_32x4d",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "efficientnet_b0",
        "efficientnet_v2_s",
    )
    small += (
        "convnext_tiny",
        "swin_t",
        "densenet121",
        "vgg11_bn",
        "shufflenet_v2_x1_0",
        "regnet_y_400mf",
        "squeezenet1_1",
        "mnasnet1_0",
    )
    found = {name: vision(name) for name in small}
    found["googlenet"] = vision("googlenet", aux_logits=False, init_weights=False)
    found["vit_b_32"] = vision("vit_b_32", size=224, batch=8)
    # windows of 8 have to divide every level: keys of padded tokens are zero, and the gradient of their norm overflows float16
    found["swin_v2_t"] = vision("swin_v2_t", size=256, batch=4)
    found["maxvit_t"] = vision("maxvit_t", size=224, batch=4)
    found |= {name: segmenter(name) for name in ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")}
    found |= {
        name: detector(name)
        for name in ("retinanet_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large")
    }
    found["r3d_18"] = Entry(lambda: models.video.r3d_18(num_classes=CLASSES), _images(4, 32, frames=8), _classify)
    return found


# -- timm -----------------------------------------------------------------------------------------------------------


def _timm() -> dict[str, Entry]:
    timm: Any = importlib.import_module("timm")

    def vision(name: str, size: int, batch: int) -> Entry:
        return Entry(lambda: timm.create_model(name, pretrained=False, num_classes=CLASSES), _images(batch, size), _classify)

    names = {
        **dict.fromkeys(
            ("resnet26d", "efficientvit_b0", "hrnet_w18_small", "repvgg_a0", "tf_efficientnet_lite0", "ghostnet_100"), (96, 16)
        ),
        **dict.fromkeys(
            ("mixer_s32_224", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "cait_xxs24_224", "coat_tiny"), (224, 8)
        ),
        **dict.fromkeys(
            ("beit_base_patch16_224", "levit_128s", "pit_ti_224", "xcit_nano_12_p16_224", "poolformer_s12"), (224, 8)
        ),
        **dict.fromkeys(("swinv2_tiny_window8_256", "mobilevit_s"), (256, 4)),
        "convmixer_768_32": (96, 8),
        "nfnet_f0": (128, 8),
    }
    return {name: vision(name, *how) for name, how in names.items()}


# -- transformers ---------------------------------------------------------------------------------------------------


def _transformers() -> dict[str, Entry]:
    t: Any = importlib.import_module("transformers")

    wide = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    base = {**wide, "intermediate_size": 256}
    grouped = {**base, "num_key_value_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

    def text(model: str, config: str, **how: Any) -> Entry:
        return Entry(lambda: getattr(t, model)(getattr(t, config)(**how)), _tokens(), _own_loss)

    gpt = {"vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 3, "n_head": 4}
    seq = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    feed = {"encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    t5 = {
        "vocab_size": VOCABULARY,
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 256,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    }
    found = {
        "gpt2": text("GPT2LMHeadModel", "GPT2Config", **gpt),
        "gpt_neox": text("GPTNeoXForCausalLM", "GPTNeoXConfig", **base),
        "llama": text("LlamaForCausalLM", "LlamaConfig", **grouped),
        "mistral": text("MistralForCausalLM", "MistralConfig", **grouped),
        "qwen2": text("Qwen2ForCausalLM", "Qwen2Config", **grouped),
        "gemma": text("GemmaForCausalLM", "GemmaConfig", **grouped, head_dim=32),
        "phi": text("PhiForCausalLM", "PhiConfig", **base),
        "opt": text("OPTForCausalLM", "OPTConfig", **wide, ffn_dim=256, word_embed_proj_dim=128),
        "bloom": text("BloomForCausalLM", "BloomConfig", vocab_size=VOCABULARY, hidden_size=128, n_layer=3, n_head=4),
        "falcon": text("FalconForCausalLM", "FalconConfig", **wide),
        "mixtral": text("MixtralForCausalLM", "MixtralConfig", **grouped, num_local_experts=4),
        "bert": text("BertForMaskedLM", "BertConfig", **base),
        "roberta": text("RobertaForMaskedLM", "RobertaConfig", **base),
        "electra": text("ElectraForMaskedLM", "ElectraConfig", **base, embedding_size=64),
        "albert": text("AlbertForMaskedLM", "AlbertConfig", **base, embedding_size=64),
        "deberta_v2": text("DebertaV2ForMaskedLM", "DebertaV2Config", **base),
        "distilbert": text(
            "DistilBertForMaskedLM", "DistilBertConfig", vocab_size=VOCABULARY, dim=128, n_layers=3, n_heads=4, hidden_dim=256
        ),
        "t5": text("T5ForConditionalGeneration", "T5Config", **t5),
        "switch_transformers": text(
            "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", **t5, num_experts=4
        ),
        "bart": text(
            "BartForConditionalGeneration",
            "BartConfig",
            vocab_size=VOCABULARY,
            **seq,
            **feed,
            **special,
            decoder_start_token_id=2,
        ),
        "mamba": text(
            "MambaForCausalLM", "MambaConfig", vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, state_size=8
        ),
    }
    heard = {"num_mel_bins": 16, "max_source_positions": 50, "decoder_start_token_id": 1}

    def speech(device: str) -> Data:
        features, labels = torch.randn(8, 16, 100, device=device), torch.randint(3, VOCABULARY, (8, 12), device=device)
        return {"input_features": features, "labels": labels}

    config = {"vocab_size": VOCABULARY, **heard, **seq, **feed, **special}
    found["whisper"] = Entry(lambda: t.WhisperForConditionalGeneration(t.WhisperConfig(**config)), speech, _own_loss)
    found["vit"] = Entry(
        lambda: t.ViTForImageClassification(
            t.ViTConfig(
                hidden_size=128,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=256,
                image_size=64,
                num_labels=CLASSES,
            )
        ),
        lambda device: {
            "pixel_values": torch.randn(16, 3, 64, 64, device=device),
            "y": torch.randint(0, CLASSES, (16,), device=device),
        },
        lambda model, data: F.cross_entropy(model(pixel_values=data["pixel_values"]).logits.float(), data["y"]),
    )
    return found


# -- our own --------------------------------------------------------------------------------------------------------


class _Tagger(nn.Module):
    """A recurrent tagger: token ids `(batch, length)` to logits `(batch, length, 10)`."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.rnn = cell(64, 64, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.rnn(self.embed(x))[0])
        return logits


class _UNet(nn.Module):
    """Two levels with GroupNorm: pictures to pictures of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = self._block(3, 32), self._block(32, 64), self._block(96, 32)
        self.head = nn.Conv2d(32, CLASSES, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = F.interpolate(self.mid(F.avg_pool2d(high, 2)), scale_factor=2.0)
        logits: Tensor = self.head(self.up(torch.cat([high, low], 1)))
        return logits


def _own() -> dict[str, Entry]:
    def tagged(device: str) -> Data:
        return {
            "x": torch.randint(0, VOCABULARY, (16, 24), device=device),
            "y": torch.randint(0, CLASSES, (16, 24), device=device),
        }

    def tags(model: nn.Module, data: Data) -> Tensor:
        return F.cross_entropy(model(data["x"]).float().flatten(0, 1), data["y"].flatten())

    def encoder() -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(VOCABULARY, 64), layers, nn.Linear(64, CLASSES))

    return {
        "lstm": Entry(lambda: _Tagger(nn.LSTM), tagged, tags),
        "gru": Entry(lambda: _Tagger(nn.GRU), tagged, tags),
        "encoder": Entry(encoder, tagged, tags),
        "unet": Entry(_UNet, _images(8, 32), _segment),
    }


#: Library -> how its part of the zoo is made.
ZOO: dict[str, Callable[[], dict[str, Entry]]] = {
    "own": _own,
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}

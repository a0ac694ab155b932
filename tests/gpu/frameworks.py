"""Training loops of the frameworks themselves, right and with the mistakes that their users make."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import ampcheck


def data(n: int = 32, width: int = 64, classes: int = 10) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(
        torch.randn(n, width, generator=generator), torch.randint(0, classes, (n,), generator=generator)
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))


# -- accelerate -----------------------------------------------------------------------------------------------------


def accelerate_loop(mistake: str = "") -> ampcheck.Training:
    """fp16, two micro-batches a step, clipping.

    Mistakes: "clip" (torch's clip on scaled gradients instead of the accelerator's), "step" (the inner optimizer is stepped).
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model: Any = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    batches = torch.utils.data.DataLoader(data(), batch_size=8)

    def train() -> None:
        for x, y in [batch for _ in range(3) for batch in batches]:
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if mistake == "clip":
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    else:
                        accelerator.clip_grad_norm_(model.parameters(), 0.1)
                if mistake == "step":
                    if accelerator.sync_gradients:
                        optimizer.optimizer.step()
                else:
                    optimizer.step()
                optimizer.zero_grad()

    return ampcheck.Training(train, calls=1)


# -- Lightning ------------------------------------------------------------------------------------------------------


def lightning_fit(mistake: str = "") -> ampcheck.Training:
    """`Trainer(precision="16-mixed", gradient_clip_val=...)`.

    Mistakes: "clip" (a callback clips after backward), "step" (the module steps the torch optimizer itself).
    """
    import lightning.pytorch as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    class Stepping(Classifier):
        def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Callable[[], Any]) -> None:
            closure()
            optimizer.optimizer.step()

    class Clip(L.Callback):  # type: ignore[misc]
        def on_after_backward(self, trainer: Any, module: Any) -> None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)

    def fit() -> None:
        trainer = L.Trainer(
            max_steps=5, precision="16-mixed", accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=0.1,
            callbacks=[Clip()] if mistake == "clip" else [],
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, torch.utils.data.DataLoader(data(64), batch_size=8))

    module = Stepping() if mistake == "step" else Classifier()
    return ampcheck.Training(fit, calls=1, model=module)


# -- the Hugging Face Trainer ---------------------------------------------------------------------------------------


def trainer_fit(mistake: str = "") -> ampcheck.Training:
    """`TrainingArguments(fp16=True, max_grad_norm=...)` on a small GPT-2.

    Mistakes: "clip" (training_step is overridden and clips), "step" (a callback steps the torch optimizer).
    """
    import transformers
    from accelerate.state import AcceleratorState, GradientState

    transformers.logging.set_verbosity_error()
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    config = transformers.GPT2Config(
        vocab_size=200, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    rows = [{"input_ids": t, "labels": t} for t in torch.randint(0, 200, (32, 16), generator=generator)]

    class Clipping(transformers.Trainer):  # type: ignore[misc]
        def training_step(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(module, *args, **kwargs)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            return loss

    class Step(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["optimizer"].optimizer.step()

    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), fp16=True, max_steps=5, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
        save_strategy="no", logging_strategy="no", max_grad_norm=0.5,
    )  # fmt: skip
    kind = Clipping if mistake == "clip" else transformers.Trainer
    trainer = kind(model=model, args=arguments, train_dataset=rows, callbacks=[Step()] if mistake == "step" else [])
    return ampcheck.Training(lambda: trainer.train() and None, calls=1, model=model)


LOOPS: dict[str, Callable[[str], ampcheck.Training]] = {
    "accelerate": accelerate_loop,
    "lightning": lightning_fit,
    "transformers": trainer_fit,
}

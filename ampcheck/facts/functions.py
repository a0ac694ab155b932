"""The functions and norms that an autocast table has a row for, each as the smallest call that training code makes.

A recipe takes its tensors from an `Inputs`, which decides their dtypes; values lie in (0.1, 0.9), where every function
here is defined. Shapes are in the conventions of each function; none matters to the dtypes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["EVALUATING", "FUNCTIONS", "NORMS", "Inputs", "NormRecipe"]


class Inputs:
    """Makes the tensors of one call.

    Args:
        device: device type.
        given: dtype of activations.
        other: dtype of the second activation of functions that take two, `given` unless mixed.
        weight: dtype of weight, bias and running statistics of a norm; `None` for no weights (buffers are then float32).
    """

    def __init__(
        self, device: str, given: torch.dtype, other: torch.dtype | None = None, weight: torch.dtype | None = torch.float32
    ) -> None:
        self.device, self.given, self.other, self.weight = device, given, other or given, weight
        #: Whether the function took a second activation.
        self.took_other = False
        #: The bias of a norm, for its gradient.
        self.shift: Tensor | None = None

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return (torch.rand(shape, device=self.device) * 0.8 + 0.1).to(dtype).requires_grad_()

    def x(self, *shape: int) -> Tensor:
        return self._new(shape or (8, 8), self.given)

    def y(self, *shape: int) -> Tensor:
        self.took_other = True
        return self._new(shape or (8, 8), self.other)

    def p(self, *shape: int) -> Tensor:
        """A float32 parameter."""
        return self._new(shape, torch.float32)

    def w(self, *shape: int) -> Tensor | None:
        return None if self.weight is None else self._new(shape, self.weight)

    def bias(self, *shape: int) -> Tensor | None:
        self.shift = self.w(*shape)
        return self.shift

    def buffer(self, *shape: int) -> Tensor:
        return self._new(shape, self.weight or torch.float32).detach()

    def target(self, *shape: int) -> Tensor:
        return self.y(*shape).detach()

    def labels(self, *shape: int) -> Tensor:
        return torch.zeros(shape or (8,), dtype=torch.long, device=self.device)

    def signs(self) -> Tensor:
        return torch.ones(8, device=self.device)

    def module(self, module: nn.Module) -> nn.Module:
        return module.to(self.device).train()


def _first(out: object) -> Tensor:
    while isinstance(out, (tuple, list)):
        out = out[0]
    assert isinstance(out, Tensor)
    return out


FUNCTIONS: dict[str, Callable[[Inputs], Tensor]] = {
    # Matmul class.
    "linear": lambda i: F.linear(i.x(), i.p(8, 8), i.p(8)),
    "bilinear": lambda i: F.bilinear(i.x(), i.y(), i.p(4, 8, 8)),
    "matmul": lambda i: torch.matmul(i.x(), i.y()),
    "mm": lambda i: torch.mm(i.x(), i.y()),
    "bmm": lambda i: torch.bmm(i.x(2, 8, 8), i.y(2, 8, 8)),
    "baddbmm": lambda i: torch.baddbmm(i.x(2, 8, 8), i.y(2, 8, 8), i.x(2, 8, 8)),
    "addmm": lambda i: torch.addmm(i.x(), i.y(), i.x()),
    "mv": lambda i: torch.mv(i.x(), i.y(8)),
    "dot": lambda i: torch.dot(i.x(8), i.y(8)),
    "outer": lambda i: torch.outer(i.x(8), i.y(8)),
    "einsum": lambda i: torch.einsum("ij,jk->ik", i.x(), i.y()),
    "tensordot": lambda i: torch.tensordot(i.x(), i.y(), 1),
    "conv1d": lambda i: F.conv1d(i.x(1, 2, 8), i.p(4, 2, 3), i.p(4)),
    "conv2d": lambda i: F.conv2d(i.x(1, 2, 8, 8), i.p(4, 2, 3, 3), i.p(4)),
    "conv3d": lambda i: F.conv3d(i.x(1, 2, 4, 4, 4), i.p(4, 2, 3, 3, 3), i.p(4)),
    "conv_transpose1d": lambda i: F.conv_transpose1d(i.x(1, 2, 8), i.p(2, 4, 3)),
    "conv_transpose2d": lambda i: F.conv_transpose2d(i.x(1, 2, 8, 8), i.p(2, 4, 3, 3)),
    "conv_transpose3d": lambda i: F.conv_transpose3d(i.x(1, 2, 4, 4, 4), i.p(2, 4, 3, 3, 3)),
    "scaled_dot_product_attention": lambda i: F.scaled_dot_product_attention(i.x(1, 2, 8, 8), i.x(1, 2, 8, 8), i.x(1, 2, 8, 8)),
    "multi_head_attention": lambda i: _first(i.module(nn.MultiheadAttention(8, 2))(*[i.x(8, 1, 8)] * 3)),
    "lstm": lambda i: _first(i.module(nn.LSTM(8, 8))(i.x(8, 1, 8))),
    "gru": lambda i: _first(i.module(nn.GRU(8, 8))(i.x(8, 1, 8))),
    "rnn": lambda i: _first(i.module(nn.RNN(8, 8))(i.x(8, 1, 8))),
    "lstm_cell": lambda i: _first(i.module(nn.LSTMCell(8, 8))(i.x())),
    "gru_cell": lambda i: _first(i.module(nn.GRUCell(8, 8))(i.x())),
    "embedding": lambda i: F.embedding(i.labels(), i.p(8, 8)),
    "embedding_bag": lambda i: F.embedding_bag(i.labels(2, 4), i.p(8, 8)),
    # Norms that have no saved statistics.
    "local_response_norm": lambda i: F.local_response_norm(i.x(1, 4, 8), 2),
    "normalize": lambda i: F.normalize(i.x()),
    "weight_norm": lambda i: torch._weight_norm(i.p(8, 8), i.p(8, 1)),
    # Activations.
    "relu": lambda i: F.relu(i.x()),
    "gelu": lambda i: F.gelu(i.x()),
    "silu": lambda i: F.silu(i.x()),
    "mish": lambda i: F.mish(i.x()),
    "elu": lambda i: F.elu(i.x()),
    "glu": lambda i: F.glu(i.x()),
    "hardswish": lambda i: F.hardswish(i.x()),
    "leaky_relu": lambda i: F.leaky_relu(i.x()),
    "logsigmoid": lambda i: F.logsigmoid(i.x()),
    "prelu": lambda i: F.prelu(i.x(), i.p(1)),
    "sigmoid": lambda i: torch.sigmoid(i.x()),
    "softplus": lambda i: F.softplus(i.x()),
    "tanh": lambda i: torch.tanh(i.x()),
    "dropout": lambda i: F.dropout(i.x(), 0.5),
    # Sensitive functions.
    "softmax": lambda i: F.softmax(i.x(), -1),
    "log_softmax": lambda i: F.log_softmax(i.x(), -1),
    "gumbel_softmax": lambda i: F.gumbel_softmax(i.x()),
    "logsumexp": lambda i: torch.logsumexp(i.x(), -1),
    "logcumsumexp": lambda i: torch.logcumsumexp(i.x(), -1),
    "exp": lambda i: torch.exp(i.x()),
    "expm1": lambda i: torch.expm1(i.x()),
    "log": lambda i: torch.log(i.x()),
    "log1p": lambda i: torch.log1p(i.x()),
    "log2": lambda i: torch.log2(i.x()),
    "erf": lambda i: torch.erf(i.x()),
    "sin": lambda i: torch.sin(i.x()),
    "acos": lambda i: torch.acos(i.x()),
    "atan2": lambda i: torch.atan2(i.x(), i.y()),
    "pow": lambda i: i.x().pow(2),
    "pow_tensor": lambda i: i.x().pow(i.y()),
    "square": lambda i: torch.square(i.x()),
    "sqrt": lambda i: torch.sqrt(i.x()),
    "rsqrt": lambda i: torch.rsqrt(i.x()),
    "reciprocal": lambda i: torch.reciprocal(i.x()),
    # Reductions.
    "sum": lambda i: i.x().sum(),
    "sum_dim": lambda i: i.x().sum(-1),
    "mean": lambda i: i.x().mean(),
    "mean_dim": lambda i: i.x().mean(-1),
    "var": lambda i: i.x().var(-1),
    "std": lambda i: i.x().std(-1),
    "var_mean": lambda i: torch.var_mean(i.x(), -1)[0],
    "amax": lambda i: i.x().amax(-1),
    "prod": lambda i: i.x().prod(-1),
    "cumsum": lambda i: i.x().cumsum(-1),
    "cumprod": lambda i: i.x().cumprod(-1),
    "norm": lambda i: torch.norm(i.x()),
    "vector_norm": lambda i: torch.linalg.vector_norm(i.x()),
    "matrix_norm": lambda i: torch.linalg.matrix_norm(i.x()),
    "dist": lambda i: torch.dist(i.x(), i.y()),
    "cdist": lambda i: torch.cdist(i.x(), i.y()),
    "cosine_similarity": lambda i: F.cosine_similarity(i.x(), i.y()),
    "pairwise_distance": lambda i: F.pairwise_distance(i.x(), i.y()),
    "det": lambda i: torch.linalg.det(i.x()),
    "inverse": lambda i: torch.linalg.inv(i.x()),
    "solve": lambda i: torch.linalg.solve(i.x(), i.y()),
    "rfft_abs": lambda i: torch.fft.rfft(i.x()).abs(),
    # Losses; targets of regression losses have the dtype of the second activation.
    "cross_entropy": lambda i: F.cross_entropy(i.x(), i.labels()),
    "cross_entropy_soft": lambda i: F.cross_entropy(i.x(), i.target()),
    "cross_entropy_smooth": lambda i: F.cross_entropy(i.x(), i.labels(), label_smoothing=0.1),
    "nll_loss": lambda i: F.nll_loss(i.x(), i.labels()),
    "binary_cross_entropy": lambda i: F.binary_cross_entropy(i.x(), i.target()),
    "binary_cross_entropy_with_logits": lambda i: F.binary_cross_entropy_with_logits(i.x(), i.target()),
    "mse_loss": lambda i: F.mse_loss(i.x(), i.target()),
    "l1_loss": lambda i: F.l1_loss(i.x(), i.target()),
    "smooth_l1_loss": lambda i: F.smooth_l1_loss(i.x(), i.target()),
    "huber_loss": lambda i: F.huber_loss(i.x(), i.target()),
    "kl_div": lambda i: F.kl_div(i.x(), i.target(), reduction="batchmean"),
    "gaussian_nll_loss": lambda i: F.gaussian_nll_loss(i.x(), i.target(), i.x()),
    "poisson_nll_loss": lambda i: F.poisson_nll_loss(i.x(), i.target()),
    "soft_margin_loss": lambda i: F.soft_margin_loss(i.x(), i.target()),
    "hinge_embedding_loss": lambda i: F.hinge_embedding_loss(i.x(8), i.signs()),
    "margin_ranking_loss": lambda i: F.margin_ranking_loss(i.x(8), i.y(8), i.signs()),
    "cosine_embedding_loss": lambda i: F.cosine_embedding_loss(i.x(), i.y(), i.signs()),
    "triplet_margin_loss": lambda i: F.triplet_margin_loss(i.x(), i.y(), i.x()),
    "multi_margin_loss": lambda i: F.multi_margin_loss(i.x(), i.labels()),
    "ctc_loss": lambda i: F.ctc_loss(i.x(8, 1, 8), i.labels(1, 4) + 1, i.labels(1) + 8, i.labels(1) + 4),
    # Joining, indexing and plain arithmetic.
    "add": lambda i: i.x() + i.y(),
    "mul": lambda i: i.x() * i.y(),
    "div": lambda i: i.x() / i.y(),
    "cat": lambda i: torch.cat([i.x(), i.y()]),
    "stack": lambda i: torch.stack([i.x(), i.y()]),
    "where": lambda i: torch.where(i.x() > 0.5, i.x(), i.y()),
    "lerp": lambda i: torch.lerp(i.x(), i.y(), 0.5),
    "addcmul": lambda i: torch.addcmul(i.x(), i.y(), i.x()),
    "addcdiv": lambda i: torch.addcdiv(i.x(), i.y(), i.x()),
    "index_put": lambda i: torch.index_put(i.x(), (i.labels(),), i.y(8, 8)),
    "index_add": lambda i: i.x().index_add(0, i.labels(), i.y()),
    "scatter_add": lambda i: i.x().scatter_add(0, i.labels(8, 8), i.y()),
    "index_copy": lambda i: i.x().index_copy(0, i.labels(1), i.y(1, 8)),
    # Spatial.
    "interpolate_nearest": lambda i: F.interpolate(i.x(1, 1, 8, 8), scale_factor=2),
    "interpolate_bilinear": lambda i: F.interpolate(i.x(1, 1, 8, 8), scale_factor=2, mode="bilinear"),
    "grid_sample": lambda i: F.grid_sample(i.x(1, 1, 8, 8), i.y(1, 4, 4, 2), align_corners=False),
    "avg_pool2d": lambda i: F.avg_pool2d(i.x(1, 1, 8, 8), 2),
    "adaptive_avg_pool2d": lambda i: F.adaptive_avg_pool2d(i.x(1, 1, 8, 8), 1),
    "max_pool2d": lambda i: F.max_pool2d(i.x(1, 1, 8, 8), 2),
    "pad_reflect": lambda i: F.pad(i.x(1, 1, 8, 8), (1, 1, 1, 1), mode="reflect"),
}

#: Rows of the batch of a norm: long enough that a bias gradient summed in 16 bits shows.
ROWS = 2048


def _batch_norm(i: Inputs, training: bool) -> Tensor:
    return F.batch_norm(i.x(ROWS // 64, 8, 8, 8), i.buffer(8), i.buffer(8), i.w(8), i.bias(8), training)


def _batch_norm_1d(i: Inputs, training: bool) -> Tensor:
    """Features without positions, for which CUDA takes another kernel."""
    return F.batch_norm(i.x(ROWS, 8), i.buffer(8), i.buffer(8), i.w(8), i.bias(8), training)


def _instance_norm(i: Inputs, training: bool) -> Tensor:
    if training:
        return F.instance_norm(i.x(ROWS // 8, 8, 8), None, None, i.w(8), i.bias(8), True)
    return F.instance_norm(i.x(ROWS // 8, 8, 8), i.buffer(8), i.buffer(8), i.w(8), i.bias(8), False)


def _sync_batch_norm(i: Inputs, training: bool) -> Tensor:
    """The two kernels of `nn.SyncBatchNorm`, without the exchange between ranks that lies between them (CUDA only)."""
    if not training:
        return _batch_norm(i, False)
    x = i.x(ROWS, 8)
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    return torch.batch_norm_elemt(x, i.w(8), i.bias(8), mean, invstd, 1e-5)


#: Norms that do something else in evaluation.
EVALUATING = {"batch_norm", "batch_norm_1d", "instance_norm", "sync_batch_norm"}
#: Takes the inputs and whether batch statistics are used; norms that know no evaluation ignore it.
NormRecipe = Callable[[Inputs, bool], Tensor]
NORMS: dict[str, NormRecipe] = {
    "batch_norm": _batch_norm,
    "batch_norm_1d": _batch_norm_1d,
    "layer_norm": lambda i, training: F.layer_norm(i.x(ROWS, 8), (8,), i.w(8), i.bias(8)),
    "group_norm": lambda i, training: F.group_norm(i.x(ROWS, 8), 2, i.w(8), i.bias(8)),
    "instance_norm": _instance_norm,
    "sync_batch_norm": _sync_batch_norm,
    "rms_norm": lambda i, training: F.rms_norm(i.x(ROWS, 8), (8,), i.w(8)),
}

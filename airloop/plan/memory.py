"""How much memory each part of a run takes on one GPU. Every constant that is estimated rather than counted is here,
with its reason; `bench/plan.py` prints plan against measurement, part by part, to correct them by.

Four moments can be the peak: sampling; a micro-batch's log-probs, when every block has left what it keeps; the
backward pass of one block; the optimiser's step. All numbers are what torch's allocator hands out
(torch.cuda.max_memory_allocated), except `outside`, which it never sees.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from airloop.config import Config
from airloop.limits import CUDA_CHUNK_BYTES, CUDA_ROWS, RECOMPUTE_RATIO, STRETCH, graph_sizes, mlp_part, step_tokens
from airloop.plan.shape import Shape

MIB = 1 << 20
# Driver, kernels and libraries of a process on the GPU: 450 to 600 MiB on recent ones.
CUDA_CONTEXT = 600 * MIB
# A captured graph lives in the driver's memory: its kernels' arguments, a few hundred of them.
GRAPH_BASE = 32 * MIB
GRAPH_EACH = 8 * MIB
# cuBLAS takes 32 MiB a stream on Hopper, through torch: the default stream's and the engine's.
CUBLAS = 64 * MIB
# Fragments of the allocator's blocks: memory that is reserved, but that no request fits into.
SLACK = 0.04
# Bytes per logit while a token is drawn: the product in bf16, and float32 where a truncation sorts it.
DRAWING_BYTES = 6
# Bytes per logit of a chunk of log-probs when the head is trained: float32 logits, their gradient, and both once more
# in bf16. A frozen head's logits turn into their own gradient in place.
TRAINED_LOGIT_BYTES = 12
# Rows of the final hidden state while log-probs are computed: before the norm, gathered, and the gradient of these. In
# a block's backward pass two are left: the gradients of its output and of its input.
FINAL_ROWS = 4
LEFT_ROWS = 2
# Of the optimiser's step, for each weight of the stretch at work: as it was and as it is, in float32 (or, before it is
# moved, its float32 gradient, where that is a copy).
FOLLOW_BYTES = 8
GRADIENT_BYTES = 4
MASTER_BYTES = 4
ADAM_BYTES = 8  # two moments in float32


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at one moment."""

    weights: int = 0
    adapters: int = 0
    gradients: int = 0
    optimiser: int = 0  # moments and float32 masters
    reference: int = 0  # the starting policy's trainable weights, for a KL term
    activations: int = 0
    logits: int = 0
    key_values: int = 0
    workspace: int = 0  # cuBLAS, and the temporaries of the optimiser's step

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Sizes:
    """What a config and a shape say together, per GPU."""

    shape: Shape
    full: bool  # all weights are trained
    trainable: int  # parameters
    ranks: int
    item: int  # bytes of a weight and of an activation
    tokens: int  # of the largest micro-batch
    longest: int  # sequence
    checkpointed: int  # layers that keep their input only
    rank: int  # of the adapter; 0 without
    adapters: int  # modules of a block that have one
    own_forward: bool
    batch: int  # sequences decoded at once
    prefill: int
    offload: bool
    reference: bool
    base_shards: bool  # an adapter's base is in shards while training

    @property
    def sharded(self) -> bool:
        return self.full and self.ranks > 1

    @property
    def share(self) -> int:
        """Trainable parameters whose gradients and optimiser state are on this GPU."""
        return -(-self.trainable // self.ranks) if self.sharded else self.trainable


def read_sizes(config: Config, shape: Shape, ranks: int, base_shards: bool = False) -> Sizes:
    model, lora = config.trainer.model, config.trainer.model.lora
    full = model.train == "full"
    blocks = [name for name, _ in shape.linears if ".layers.0." in name or name.startswith("layers.0.")]
    batch = min(config.inference.max_batch, max(1, config.orchestrator.max_concurrent // ranks))
    # A sequence longer than the budget still goes, alone; a step may have fewer tokens than the budget.
    rows = -(-config.orchestrator.batch_size // ranks)
    tokens = min(max(config.trainer.token_budget, config.seq_len), rows * config.seq_len)
    own_forward = shape.own_forward and model.impl == "auto" and not (full and ranks > 1)  # FSDP runs modules
    # What is gathered lies elsewhere after each update: the engine's own pass and its graphs would not find it.
    step = step_tokens("cuda", shape.hidden, own_forward and not config.deterministic and not base_shards)
    return Sizes(
        shape=shape,
        full=full,
        trainable=shape.parameters if full else shape.adapter(lora.rank, lora.target_modules, lora.last_layers),
        ranks=ranks,
        item=4 if config.deterministic or config.model.dtype == "float32" else 2,
        tokens=tokens,
        longest=config.seq_len,
        checkpointed=-(-shape.layers // model.ac.freq) if model.ac else 0,
        rank=0 if full else lora.rank,
        adapters=0 if full else sum(name.rsplit(".", 1)[-1] in lora.target_modules for name in blocks),
        own_forward=own_forward,
        batch=batch,
        prefill=min(step, batch * config.seq_len),
        offload=config.trainer.optim.offload,
        reference=config.trainer.loss.kl_beta > 0,
        base_shards=base_shards,
    )


def sampling(s: Sizes) -> Memory:
    """Everything but the keys and values, while the engine computes prompts and tokens."""
    whole = s.shape.parameters * s.item
    shape = s.shape
    # One block's tensors of the largest step: residual, norm, the product before, the answer, the MLP's three.
    wide = 3 * shape.hidden + shape.heads * shape.dim + 3 * shape.inner
    return Memory(
        weights=whole + (_shard(s) if s.sharded else _base_share(s)),  # gathered, besides the shard
        adapters=_adapters(s),
        optimiser=_optimiser(s),
        reference=_reference(s),
        activations=s.prefill * wide * s.item,
        logits=s.batch * shape.vocabulary * DRAWING_BYTES,
        workspace=CUBLAS,
    )


def log_probs(s: Sizes) -> Memory:
    """Every block has left what it keeps; the head works on a chunk of rows."""
    made = _micro_batch(s, _kept(s) + FINAL_ROWS * s.shape.hidden * s.item, _logits(s))
    return replace(made, reference=2 * made.reference)  # the current ones are set aside meanwhile


def backward(s: Sizes) -> Memory:
    """Every block has left what it keeps, and the last one is at work."""
    again = _saved(s) if s.checkpointed else 0
    made = _micro_batch(s, _kept(s) + again + LEFT_ROWS * s.shape.hidden * s.item, 0)
    return replace(made, activations=made.activations + _block_backward(s))


def _micro_batch(s: Sizes, per_token: int, logits: int) -> Memory:
    return Memory(
        weights=_training_weights(s),
        adapters=_adapters(s),
        gradients=_backward_gradients(s),
        optimiser=_optimiser(s),
        reference=_reference(s),
        activations=s.tokens * (per_token + 8 * s.shape.dim),  # and the rotary angles, float32
        logits=logits,
        workspace=CUBLAS,
    )


def cpu_floor(config: Config, shape: Shape) -> int:
    """Bytes that a backward pass on a CPU holds at least: what a GPU keeps for its libraries and logits is left out."""
    made = backward(read_sizes(config, shape, config.ranks))
    return made.total - made.workspace


def update(s: Sizes) -> Memory:
    """The optimiser's step: no activations, but gradients and what one stretch of the weights needs."""
    return Memory(
        weights=_shard(s) if s.sharded else _training_weights(s),
        adapters=_adapters(s),
        gradients=_gradient_sums(s),
        optimiser=_optimiser(s),
        reference=_reference(s),
        workspace=CUBLAS + (0 if s.offload else _stretch(s) * FOLLOW_BYTES),
    )


def outside(graphs: int) -> int:
    """What is on the GPU without torch's knowledge."""
    return CUDA_CONTEXT + (GRAPH_BASE + graphs * GRAPH_EACH if graphs else 0)


def graph_count(batch: int) -> int:
    """Batch sizes that decoding is captured for, if all are met; one kind of sampling."""
    return len(graph_sizes(batch))


# --- parts ------------------------------------------------------------------------------------------------------


def _shard(s: Sizes) -> int:
    """float32: a shard is its own master."""
    return s.share * MASTER_BYTES


def _base_share(s: Sizes) -> int:
    """Of an adapter's base in shards: this rank's part of the blocks."""
    return -(-s.shape.layers * s.shape.block // s.ranks) * s.item if s.base_shards else 0


def _root(shape: Shape) -> int:
    """Parameters in no block: embeddings, head."""
    return shape.parameters - shape.layers * shape.block


def _stretch(s: Sizes) -> int:
    """Weights that the optimiser moves at once: a whole parameter at least, of which the embedding is the largest."""
    largest = s.shape.vocabulary * s.shape.hidden // (s.ranks if s.sharded else 1) if s.full else 0
    return min(s.share, max(STRETCH, largest))


def _training_weights(s: Sizes) -> int:
    """Sharded, a rank holds its share and gathers one block ahead of the one at work; what is in no block is gathered
    throughout."""
    if not s.sharded and not s.base_shards:
        return s.shape.parameters * s.item
    share = _shard(s) if s.sharded else _base_share(s)
    return share + (2 * s.shape.block + _root(s.shape)) * s.item


def _backward_gradients(s: Sizes) -> int:
    """Sharded, two blocks' whole gradients are on their way to the ranks, in both types, and those in no block."""
    if not s.full:
        return s.trainable * (GRADIENT_BYTES + s.item)  # adapters are float32, and were cast for the products
    if not s.sharded:  # beside it what the largest parameter's, the embedding's, is before it is added
        return _gradient_sums(s) + (s.shape.vocabulary * s.shape.hidden * s.item if s.item != 4 else 0)
    return s.share * GRADIENT_BYTES + (2 * s.shape.block + _root(s.shape)) * (s.item + GRADIENT_BYTES)


def host_bytes(s: Sizes) -> int:
    """What offload puts into the machine's own memory."""
    masters = s.ranks * s.share * (MASTER_BYTES + ADAM_BYTES) if s.offload else 0
    return masters + (s.share * GRADIENT_BYTES if s.offload and not _gradient_sums(s) else 0)


def _gradient_sums(s: Sizes) -> int:
    """float32; those of weights in few bits are where their masters are."""
    elsewhere = s.full and not s.sharded and s.offload and s.item != 4
    return 0 if elsewhere else s.share * GRADIENT_BYTES


def _adapters(s: Sizes) -> int:
    """float32, and two copies in the activations' type: the engine's, beside the frozen weights, and training's."""
    return 0 if s.full else s.trainable * (4 + 2 * s.item)


def _optimiser(s: Sizes) -> int:
    masters = MASTER_BYTES if s.full and s.item != 4 and not s.sharded else 0  # others are their own masters
    return 0 if s.offload else s.share * (ADAM_BYTES + masters)


def _reference(s: Sizes) -> int:
    """The weights that the run started from, of what is trained."""
    return s.share * (s.item if s.full and not s.sharded else MASTER_BYTES) if s.reference else 0


def _logits(s: Sizes) -> int:
    """One chunk, cut as airloop/learn/logprobs.py does on CUDA."""
    shape, frozen = s.shape, s.shape.own_forward and not s.full
    size = s.item if frozen else 4
    rows = min(CUDA_ROWS, CUDA_CHUNK_BYTES // (size * shape.vocabulary), s.tokens)
    # What autograd makes before it adds it to a trained head's gradient.
    gradient = shape.vocabulary * shape.hidden * s.item if s.full else 0
    return rows * shape.vocabulary * (size if frozen else TRAINED_LOGIT_BYTES) + gradient


def _kept(s: Sizes) -> int:
    """Bytes per token that all blocks together keep from the forward pass: every block's input, and the rest of the
    blocks that are not computed again; of those that are, the answer of attention where it is dear."""
    shape = s.shape
    again = s.checkpointed * (shape.heads * (shape.dim * s.item + 4) if _keeps_attention(s) else 0)
    return shape.layers * shape.hidden * s.item + again + (shape.layers - s.checkpointed) * _saved(s)


def _keeps_attention(s: Sizes) -> bool:
    """As airloop/learn/forward.py decides, for sequences that fill the context."""
    attention = 4 * s.longest / 2 * s.shape.heads * s.shape.dim
    return s.own_forward and attention > RECOMPUTE_RATIO * 2 * s.shape.block


def _saved(s: Sizes) -> int:
    """Bytes per token that one block keeps for its backward pass, besides its input.

    Ours: both norms' outputs and the residual between them; queries, keys and values after the rotation (and, where
    they are normed, before); the answer of attention and its log-sum-exp; the MLP's gate, up and their product; the
    adapters' inner values; each norm's scale.
    transformers' layers: besides, each norm's input in float32, and the activated gate.
    """
    shape = s.shape
    heads, keys = shape.heads * shape.dim, shape.kv_heads * shape.dim
    values = 3 * shape.hidden + (heads + 2 * keys) + heads + 3 * shape.inner + s.adapters * s.rank
    if _part(s) < s.tokens:  # the MLP keeps the residual only
        values -= shape.hidden + 3 * shape.inner
    if shape.qk_norm:
        values += heads + keys
    extra = 4 * shape.heads + 8
    if not s.own_forward:
        values += shape.inner
        extra += 4 * (2 * shape.hidden + (heads + keys if shape.qk_norm else 0))
    return values * s.item + extra


def _block_backward(s: Sizes) -> int:
    """Bytes of gradients at the widest point of a block's backward pass. In the MLP: of gate, up and their product. In
    attention, when gate and up are gone again but their product and its gradient are not: of the answer, queries, keys
    and values, the last two with as many heads as the first; flash attention's float32 sum of the queries' gradient;
    and the float32 sums over the parts of a tree. An MLP in parts has what it saves for one part only, and is over when
    attention begins."""
    shape = s.shape
    heads, keys = shape.heads * shape.dim, shape.kv_heads * shape.dim
    mlp = 3 * shape.inner if s.own_forward else 4 * shape.inner
    attention = 4 * heads * s.item + 4 * heads + 4 * (heads + 2 * keys)
    part = _part(s)
    if part < s.tokens:
        return max(part * (shape.hidden + 3 * shape.inner + mlp) * s.item, s.tokens * attention)
    return s.tokens * max(mlp * s.item, attention - shape.inner * s.item)


def _part(s: Sizes) -> int:
    """Tokens that an MLP is computed with at once: in parts by our own pass over blocks that are checkpointed."""
    cut = s.own_forward and not s.full and s.checkpointed == s.shape.layers
    return mlp_part(s.tokens) if cut else s.tokens

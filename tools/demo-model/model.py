"""The model: Qwen3's architecture in plain PyTorch, with Hugging Face tensor names."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    """Dimensions. Matrix rows are multiples of 256, the block size of the K-quants."""

    vocabulary: int = 2048
    hidden: int = 256
    inner: int = 768
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    context: int = 512
    theta: float = 10_000.0
    epsilon: float = 1e-6

    def hugging_face(self, end):
        """The config.json of this model, whose texts end with the token `end`."""
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.inner, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
                "max_position_embeddings": self.context,
                "rms_norm_eps": self.epsilon, "rope_theta": self.theta, "hidden_act": "silu",
                "attention_bias": False,
                "attention_dropout": 0.0, "tie_word_embeddings": True, "use_sliding_window": False,
                "initializer_range": 0.02,
                "bos_token_id": end, "eos_token_id": end, "torch_dtype": "float32", "use_cache": True}

    def as_dict(self):
        return asdict(self)


class RmsNorm(nn.Module):
    """`x / rms(x) * weight`, computed in f32."""

    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return (y * self.weight.float()).to(x.dtype)


def rope_table(config, length):
    """RoPE cosines and sines, [length, head_dim]; element i is rotated with element i + head_dim / 2."""
    half = config.head_dim // 2
    frequencies = config.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x, cos, sin):
    """x: [batch, heads, rows, head_dim]."""
    left, right = x.float().chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.q_norm = RmsNorm(c.head_dim, c.epsilon)
        self.k_norm = RmsNorm(c.head_dim, c.epsilon)

    def forward(self, x, cos, sin):
        c, (batch, rows, _) = self.c, x.shape
        q = self.q_norm(self.q_proj(x).view(batch, rows, c.heads, c.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, rows, c.kv_heads, c.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, rows, c.kv_heads, c.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, rows, c.heads * c.head_dim))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RmsNorm(c.hidden, c.epsilon)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RmsNorm(c.hidden, c.epsilon)
        self.mlp = FeedForward(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocabulary, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RmsNorm(c.hidden, c.epsilon)


class StoryModel(nn.Module):
    """Tokens [batch, rows] in, logits [batch, rows, vocabulary] out, with a tied embedding."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Stack(config)
        cos, sin = rope_table(config, config.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        deep = (2 * config.layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 if "embed" in name else weight.shape[1] ** -0.5
                                * (deep if out else 1.0))

    def forward(self, tokens):
        rows = tokens.shape[1]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, self.cos[:rows], self.sin[:rows])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def parameters_count(self):
        return sum(weight.numel() for weight in self.parameters())

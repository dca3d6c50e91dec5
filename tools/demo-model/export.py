"""Writes a Hugging Face folder: config.json, model.safetensors and the tokenizer files."""

import json
import shutil
import struct

import numpy as np
import torch

NAMES = {torch.float32: "F32", torch.float16: "F16"}


def safetensors(path, tensors):
    """The file format: the length of the header, the header as JSON, the data."""
    header, at, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name, tensor in sorted(tensors.items()):
        data = np.ascontiguousarray(tensor.detach().cpu().numpy())
        parts.append(data.astype(data.dtype.newbyteorder("<")).tobytes())
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)


def folder(out, model, tokenizer, end):
    """Writes everything that is needed to load the model elsewhere."""
    out.mkdir(parents=True, exist_ok=True)
    safetensors(out / "model.safetensors", {name: w.float() for name, w in model.named_parameters()})
    text = "<|endoftext|>"
    for name, content in (
        ("config.json", model.config.hugging_face(end)),
        ("generation_config.json", {"bos_token_id": end, "eos_token_id": end, "do_sample": True,
                                    "temperature": 0.8, "top_k": 40,
                                    "top_p": 0.95}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True,
                                   "add_eos_token": False,
                                   "bos_token": text, "eos_token": text,
                                   "model_max_length": model.config.context}),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    shutil.copyfile(tokenizer, out / "tokenizer.json")


def load(path):
    """The tensors of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    out = {}
    for name, row in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in row["data_offsets"])
            kind = {"F32": "<f4", "F16": "<f2"}[row["dtype"]]
            out[name] = torch.from_numpy(np.frombuffer(raw[begin:end], kind).reshape(row["shape"]).copy())
    return out

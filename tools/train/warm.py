"""Compile the kernels for every stage once, in a second process, while the corpus is being tokenized.
"""

import os
import time
import torch
import common as M
STREAMS = os.environ.get('STREAMS', 'streams')
os.makedirs(STREAMS, exist_ok=True)
dev = 'cuda'
M.use_cudnn()
q, k, v = (torch.randn(2, 512, 8, d, device=dev, dtype=torch.bfloat16) for d in (128, 128, 64))
a = M.sdpa_dense(q, k, v).float()
f = lambda t: t.float().transpose(1, 2)
b = torch.nn.functional.scaled_dot_product_attention(
    f(q), f(k), f(v), is_causal=True, scale=M.SCALE
).transpose(1, 2).reshape(1024, -1)
print('cudnn vs float32:', ((a - b).norm() / b.norm()).item(), flush=True)
M.compile_all()
m = M.Model().to(dev)
T = 131072


def go(S, sparse, rows):
    t = time.time()
    ids = torch.randint(9, 4096, (T // S, S + 2), device=dev)
    wt = torch.ones(T // S, S + 2, device=dev)
    l = M.train_forward(m, ids, wt, sparse, rows)[0]
    l.backward()
    x = l.item()
    dt = time.time() - t
    for p in m.parameters():
        p.grad = None
    t = time.time()
    l = M.train_forward(m, ids, wt, sparse, rows)[0]
    l.backward()
    l.item()
    for p in m.parameters():
        p.grad = None
    print(
        f'warm S={S} sparse={sparse} first {dt:.1f}s second {time.time() - t:.3f}s loss {x:.3f}',
        flush=True,
    )
    torch.cuda.empty_cache()
    return dt


go(2048, False, 24)
# sparse path against the plain masked formulation
qs, ks, vs = (torch.randn(2, 1024, 8, d, device=dev, dtype=torch.bfloat16) for d in (128, 128, 64))
sel = M.select(
    torch.randn(2, 1024, 8, 128, device=dev, dtype=torch.bfloat16),
    torch.rand(2, 1024, 8, device=dev), torch.randn(2, 1024, 128, device=dev, dtype=torch.bfloat16),
)
y = M.sparse_attn(qs, ks, vs, sel).float()
s = torch.einsum('bihd,bjhd->bhij', qs.float(), ks.float()) * M.SCALE
r = torch.einsum(
    'bhij,bjhd->bihd', s.masked_fill(~sel[:, None], float('-inf')).softmax(-1), vs.float()
).reshape(2048, -1)
print(
    'flex sparse vs float32:', ((y - r).norm() / r.norm()).item(), 'selected at the last row',
    sel[:, -1].sum(-1).tolist(), 'row 100', sel[:, 100].sum(-1).tolist(), flush=True,
)
go(4096, True, 48)
go(65536, False, 192)
go(131072, False, 192)
dt = go(16384, True, 96)
open(STREAMS + '/warm16k', 'w').write(str(dt))

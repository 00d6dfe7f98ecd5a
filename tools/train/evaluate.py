"""usage: evaluate.py CKPT_DIR OUT_JSON [seconds]   (needs the token streams that train.py left in the folder that STREAMS names)
"""

import sys
import json
import time
import numpy as np
import torch
import traceback
import torch.nn.functional as F
import common as M
import data
import os
STREAMS = os.environ.get('STREAMS', 'streams')
CK, OUT = sys.argv[1:3]
T0 = time.time()
LIM = float(sys.argv[3]) if len(sys.argv) > 3 else 1000000000.0
dev = 'cuda' if torch.cuda.is_available() else 'cpu'
res = {}


def put(k, v):
    res[k] = v
    print(f'[{time.time() - T0:5.1f}] {k}: {json.dumps(v)}', flush=True)
    json.dump(res, open(OUT, 'w'), indent=1)


from tokenizers import Tokenizer
tok = Tokenizer.from_file(CK + '/tokenizer.json')
va, vch = (np.load(STREAMS + '/va.npy'), np.load(STREAMS + '/vch.npy'))
if dev == 'cuda':
    torch.backends.cuda.matmul.allow_tf32 = True
    M.use_cudnn()
m = M.Model()
m.load_hf({k: v.float() for k, v in M.load_ckpt(CK).items()})
m.to(dev).eval()
if dev == 'cpu':
    M.set_compute(torch.float32)
G = lambda x: torch.from_numpy(x.astype(np.int64)).to(dev)


def section(f):
    try:
        f()
    except Exception:
        traceback.print_exc()


@section
def val():
    bpt = len(tok.decode(va[:100000].tolist(), skip_special_tokens=False).encode()) / 100000
    for S, n in ((2048, 48), (8192, 8)):
        for sp in (False, True):
            rs, ms = ([], [])
            for i in range(n):
                x = G(va[i * S:(i + 1) * S + 2])
                if len(x) < S + 2:
                    break
                lg, mt = M.eval_forward(m, x[:S], sp, mtp=True)
                rs.append(F.cross_entropy(lg, x[1:S + 1]).item())
                ms.append(F.cross_entropy(mt[:-1], x[2:S + 1]).item())
            l = float(np.mean(rs))
            put(
                f"val_docs_{S}_{('sparse' if sp else 'dense')}",
                dict(
                    loss=l, ppl=float(np.exp(l)), bits_per_byte=l / np.log(2) / bpt,
                    mtp_loss=float(np.mean(ms)), tokens=len(rs) * S, bytes_per_token=bpt,
                ),
            )
    x = G(vch[:8192])
    lg = M.eval_forward(m, x, True)
    put('val_chat_sparse', dict(loss=F.cross_entropy(lg[:-1], x[1:]).item()))


def retr(S, nseq, nf, nq, kinds, seed=123):
    mk = data.Maker(tok, va, vch, seed)
    out = {}
    seqs = [
        mk.retrieval(
            S, nf=nf, nq=nq, kinds=kinds, style=('chat', 'qa')[i % 2], inter=False
        ) for i in range(nseq)
    ]
    for sp in (False, True):
        ok = tot = tk = tt = 0
        for x, w in seqs:
            pos = np.flatnonzero(w == 2)
            p = M.eval_forward(
                m, G(x), sp, want=torch.from_numpy(pos - 1).to(dev)
            ).argmax(-1).cpu().numpy()
            hit = p == x[pos]
            grp = np.split(hit, np.flatnonzero(np.diff(pos) > 1) + 1)
            ok += sum((g.all() for g in grp))
            tot += len(grp)
            tk += hit.sum()
            tt += len(hit)
        out['sparse' if sp else 'dense'] = dict(exact=ok / tot, token=tk / tt, n=tot)
        if dev == 'cuda':
            torch.cuda.empty_cache()
    return out


CODE = ['code', 'serial', 'phone', 'price', 'badge']
for S, ns in ((1024, 32), (4096, 16), (16384, 8), (65536, 4), (131072, 2)):
    for nm, kinds in (('numbers', CODE), ('mixed', None)):
        if time.time() - T0 > LIM:
            continue
        section(
            lambda: put(
                f'retrieval_{S}_{nm}',
                retr(S, ns, 8 if S <= 1024 else 16, 4 if S <= 1024 else 12, kinds),
            )
        )

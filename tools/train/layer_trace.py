"""Intermediate values of the training implementation (float32) for one prompt of golden.json, to locate a difference layer by layer.
usage: layer_trace.py CKPT_DIR GOLDEN_JSON OUT.safetensors [prompt name]

The implementation agrees with transformers to about 5e-7 relative in the logits (see golden.json), so these are usable references.
"""

import sys
import json
import torch
import torch.nn.functional as F
import common as M
from safetensors.torch import save_file
CK, GJ, OUT = sys.argv[1:4]
name = sys.argv[4] if len(sys.argv) > 4 else 'medium'
M.set_compute(torch.float32)
m = M.Model()
m.load_hf({k: v.float() for k, v in M.load_ckpt(CK).items()})
p = next((x for x in json.load(open(GJ))['prompts'] if x['name'] == name))
ids = torch.tensor(p['input_ids'])
S = len(ids)
pos = sorted({0, S // 2, S - 1})
cos, sin = M.rope_table(S, 'cpu')
t = {'input_ids': ids.int(), 'positions': torch.tensor(pos, dtype=torch.int32)}
sel = None


@torch.no_grad()
def block(b, x, tag):
    global sel
    h, qr, q, k, v = M.f_pre(x, b.ln1, b.qa, b.qaln, b.qb, b.kva, b.kvln, b.kvb, cos, sin)
    t[tag + '.attn_input'], t[tag + '.q_resid'] = (h[pos], qr[pos])
    causal = torch.arange(S)[None] <= torch.arange(S)[:, None]
    if b.full:
        ik = M.f_idx_k(h, b.iwk, b.ilw, b.ilb, cos, sin)
        iq, w = M.f_idx_q(h, qr, b.iwq, b.iwp, cos, sin)
        s = (
            torch.einsum('qhd,kd->qhk', iq, ik).relu() * w[..., None]
        ).sum(1).masked_fill(~causal, float('-inf'))
        t[tag + '.index_key'], t[tag + '.index_scores'] = (ik[pos], s[pos])
        n = min(M.TOPK, S)
        sel = torch.zeros(S, S, dtype=torch.bool).scatter_(1, s.topk(n, -1).indices, True) & causal
    a = torch.einsum('qhd,khd->hqk', q, k) * M.SCALE
    a = a.masked_fill(~sel[None], float('-inf')).softmax(-1)
    o = torch.einsum('hqk,khd->qhd', a, v).reshape(S, -1)
    t[tag + '.attn_heads_out'] = o[pos]
    y = M.lin(o, b.o)
    t[tag + '.attn_output'] = y[pos]
    if b.moe:
        g = M.f_route(M.rms(x + y, b.ln2, M.EPS), b.gate, b.bias)
        t[tag + '.router_weights'] = g[pos]
        x = M.f_post_moe(x, o, b.o, b.ln2, b.gate, b.bias, b.egu, b.edn, b.sg, b.su, b.sd)[0]
    else:
        x = M.f_post_dense(x, o, b.o, b.ln2, b.g, b.u, b.d)
    t[tag + '.output'] = x[pos]
    return x


with torch.no_grad():
    x = F.embedding(ids, m.embed)
    t['embedding'] = x[pos]
    for i, b in enumerate(m.layers):
        x = block(b, x, f'layer{i}')
    xn = M.rms(x, m.norm, M.EPS)
    lg = M.lin(xn, m.head)
    t['final_norm'], t['logits'] = (xn[pos], lg[pos])
    nxt = torch.cat([ids[1:], lg[-1:].argmax(-1)])
    y = M.f_mtp_in(F.embedding(nxt, m.embed), xn, m.mtp.enorm, m.mtp.hnorm, m.mtp.eh)
    t['mtp.input'] = y[pos]
    t['mtp.next_ids'] = nxt[pos].int()
    y = block(m.mtp, y, 'mtp')
    ml = M.lin(M.rms(y, m.mtp.snorm, M.EPS), m.head)
    t['mtp.logits'] = ml[pos]
print(
    name, S, 'argmax agrees with golden:',
    (lg.argmax(-1) == torch.tensor(p['argmax_all'])).all().item(), 'mtp',
    (ml.argmax(-1) == torch.tensor(p['mtp_draft_all'])).all().item(),
)
save_file({k: v.contiguous().float() if v.is_floating_point() else v for k, v in t.items()}, OUT)

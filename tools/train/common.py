"""Model definition used for training.  Weights map one-to-one to the Hugging Face glm_moe_dsa names.
"""

import json
import math
import os
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = dict(
    architectures=['GlmMoeDsaForCausalLM'], model_type='glm_moe_dsa', vocab_size=4096,
    hidden_size=256, intermediate_size=768, moe_intermediate_size=128, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=8, n_shared_experts=1, n_routed_experts=8,
    num_experts_per_tok=2, routed_scaling_factor=2.5, kv_lora_rank=512, q_lora_rank=128,
    qk_nope_head_dim=64, qk_rope_head_dim=64, qk_head_dim=128, v_head_dim=64, head_dim=64,
    n_group=1, topk_group=1, norm_topk_prob=True, scoring_func='sigmoid', topk_method='noaux_tc',
    hidden_act='silu', max_position_embeddings=131072, initializer_range=0.02, rms_norm_eps=1e-05,
    rope_parameters={'rope_theta': 1000000.0, 'rope_type': 'default'}, rope_interleave=True,
    indexer_rope_interleave=True, attention_bias=False, attention_dropout=0.0,
    tie_word_embeddings=False, use_cache=True, first_k_dense_replace=1,
    mlp_layer_types=['dense'] + ['sparse'] * 5, moe_layer_freq=1, index_n_heads=8,
    index_head_dim=128, index_topk=256,
    indexer_types=['full', 'full', 'shared', 'full', 'shared', 'full'], num_nextn_predict_layers=1,
    pad_token_id=0, bos_token_id=0, eos_token_id=[0, 3], dtype='bfloat16',
)
C = CFG
H, L, NH = (C['hidden_size'], C['num_hidden_layers'], C['num_attention_heads'])
DN, DR, DV, R = (C['qk_nope_head_dim'], C['qk_rope_head_dim'], C['v_head_dim'], C['kv_lora_rank'])
NI, DI, TOPK = (C['index_n_heads'], C['index_head_dim'], C['index_topk'])
NE, ME, KE = (C['n_routed_experts'], C['moe_intermediate_size'], C['num_experts_per_tok'])
# the two latent norms use 1e-6 in the reference, not rms_norm_eps
EPS, EPS_LORA = (C['rms_norm_eps'], 1e-06)
SCALE = (DN + DR) ** (-0.5)
# compute type; set to float32 for parity checks
CD = torch.bfloat16


def set_compute(dt):
    global CD
    CD = dt


def lin(x, w):
    return F.linear(x.to(CD), w.to(CD))


def rms(x, w, eps):
    x = x.float()
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rope(x, cos, sin):
    """interleaved pairs; result stored as [even halves | odd halves] like the reference"""
    x = x.float()
    a, b = (x[..., 0::2], x[..., 1::2])
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rope_table(S, device):
    inv = 1.0 / C['rope_parameters']['rope_theta'] ** (
        torch.arange(0, DR, 2, dtype=torch.float, device=device) / DR
    )
    f = torch.arange(S, device=device, dtype=torch.float)[:, None] * inv[None]
    return (f.cos(), f.sin())


# ---- pieces over flattened tokens [T, ...]; compiled once, shared by all layers and sequence lengths
def f_pre(x, ln, qa, qaln, qb, kva, kvln, kvb, cos, sin):
    T = x.shape[0]
    h = rms(x, ln, EPS).to(CD)
    qr = rms(lin(h, qa), qaln, EPS_LORA).to(CD)
    q = lin(qr, qb).view(T, NH, DN + DR)
    ckv = lin(h, kva)
    c = rms(ckv[:, :R], kvln, EPS_LORA).to(CD)
    kv = lin(c, kvb).view(T, NH, DN + DV)
    c1, s1 = (cos[:, None], sin[:, None])
    q = torch.cat([q[..., :DN], rope(q[..., DN:], c1, s1).to(CD)], -1)
    kr = rope(ckv[:, R:], cos, sin).to(CD)[:, None].expand(T, NH, DR)
    k = torch.cat([kv[..., :DN], kr], -1)
    return (h, qr, q, k, kv[..., DN:].contiguous())


def f_idx_k(h, wk, lw, lb, cos, sin):
    k = F.layer_norm(lin(h, wk).float(), (DI,), lw, lb, 1e-06)
    return torch.cat([rope(k[:, :DR], cos, sin), k[:, DR:]], -1).to(CD)


def f_idx_q(h, qr, wqb, wp, cos, sin):
    q = lin(qr, wqb).view(-1, NI, DI)
    q = torch.cat([rope(q[..., :DR], cos[:, None], sin[:, None]).to(CD), q[..., DR:]], -1)
    w = F.linear(h.float(), wp.float()) * (NI ** (-0.5) * DI ** (-0.5))
    return (q, w)


def f_post_dense(x, a, o, ln, g, u, d):
    x = x + lin(a, o)
    h = rms(x, ln, EPS).to(CD)
    return x + lin(F.silu(lin(h, g)) * lin(h, u), d)


def f_route(h, gate, bias):
    s = F.linear(h.float(), gate.float()).sigmoid()
    idx = (s + bias).topk(KE, -1).indices
    w = s.gather(1, idx)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * C['routed_scaling_factor']
    g = torch.zeros_like(s).scatter(1, idx, w)
    return g


# every expert is computed for every token and weighted by its (mostly zero) gate: exact, and fast at this size
def f_post_moe(x, a, o, ln, gate, bias, egu, edn, sg, su, sd):
    x = x + lin(a, o)
    hf = rms(x, ln, EPS)
    h = hf.to(CD)
    g = f_route(h if CD == torch.float32 else hf, gate, bias)
    gu = lin(h, egu.reshape(NE * 2 * ME, H)).view(-1, NE, 2, ME)
    act = F.silu(gu[:, :, 0]) * gu[:, :, 1] * g.to(CD)[..., None]
    y = lin(act.reshape(-1, NE * ME), edn.permute(1, 0, 2).reshape(H, NE * ME))
    y = y + lin(F.silu(lin(h, sg)) * lin(h, su), sd)
    return (x + y, (g > 0).float().sum(0))


def f_mtp_in(e, xn, en, hn, eh):
    return lin(torch.cat([rms(e, en, EPS), rms(xn, hn, EPS)], -1), eh).float()


def f_loss(x, nw, head, tgt, wt):
    xn = rms(x, nw, EPS)
    ce = F.cross_entropy(lin(xn, head).float(), tgt, reduction='none')
    return (xn, (ce * wt).sum() / wt.sum(), ce)


FN = dict(
    pre=f_pre, idx_k=f_idx_k, idx_q=f_idx_q, dense=f_post_dense, moe=f_post_moe, mtp_in=f_mtp_in,
    loss=f_loss,
)


def compile_all():
    torch._dynamo.config.cache_size_limit = 64
    for k in list(FN):
        FN[k] = torch.compile(FN[k], dynamic=False)


class Block(nn.Module):
    def __init__(self, moe, indexer):
        super().__init__()
        P = lambda *s: nn.Parameter(torch.empty(*s))
        one = lambda n: nn.Parameter(torch.ones(n))
        ql = C['q_lora_rank']
        self.ln1, self.ln2, self.qaln, self.kvln = (one(H), one(H), one(ql), one(R))
        self.qa, self.qb = (P(ql, H), P(NH * (DN + DR), ql))
        self.kva, self.kvb, self.o = (P(R + DR, H), P(NH * (DN + DV), R), P(H, NH * DV))
        self.full, self.moe = (indexer, moe)
        if indexer:
            self.iwq, self.iwk, self.iwp = (P(NI * DI, ql), P(DI, H), P(NI, H))
            self.ilw, self.ilb = (one(DI), nn.Parameter(torch.zeros(DI)))
        if moe:
            self.gate, self.egu, self.edn = (P(NE, H), P(NE, 2 * ME, H), P(NE, H, ME))
            self.sg, self.su, self.sd = (P(ME, H), P(ME, H), P(H, ME))
            self.register_buffer('bias', torch.zeros(NE))
        else:
            I = C['intermediate_size']
            self.g, self.u, self.d = (P(I, H), P(I, H), P(H, I))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = (
            nn.Parameter(torch.empty(C['vocab_size'], H)),
            nn.Parameter(torch.empty(C['vocab_size'], H)),
        )
        self.layers = nn.ModuleList(
            [
                Block(
                    C['mlp_layer_types'][i] == 'sparse', C['indexer_types'][i] == 'full'
                ) for i in range(L)
            ]
        )
        self.norm = nn.Parameter(torch.ones(H))
        self.mtp = Block(True, True)
        self.mtp.enorm, self.mtp.hnorm, self.mtp.snorm = (
            nn.Parameter(torch.ones(H)) for _ in range(3)
        )
        self.mtp.eh = nn.Parameter(torch.empty(H, 2 * H))
        with torch.no_grad():
            for n, p in self.named_parameters():
                if p.dim() >= 2:
                    p.normal_(0, 0.6 * p.shape[-1] ** (-0.5))
                    if n.endswith(('.o', '.edn', '.sd', '.d')):
                        p.mul_(0.1)
            self.embed.normal_(0, 0.1)
            self.head.normal_(0, 0.01)

    # names of the released checkpoint layout
    def hf_state(self):
        out = {
            'model.embed_tokens.weight': self.embed, 'lm_head.weight': self.head,
            'model.norm.weight': self.norm,
        }
        for i, b in list(enumerate(self.layers)) + [(L, self.mtp)]:
            p = f'model.layers.{i}.'
            a = p + 'self_attn.'
            out |= {
                p + 'input_layernorm.weight': b.ln1, p + 'post_attention_layernorm.weight': b.ln2,
                a + 'q_a_proj.weight': b.qa, a + 'q_a_layernorm.weight': b.qaln,
                a + 'q_b_proj.weight': b.qb, a + 'kv_a_proj_with_mqa.weight': b.kva,
                a + 'kv_a_layernorm.weight': b.kvln, a + 'kv_b_proj.weight': b.kvb,
                a + 'o_proj.weight': b.o,
            }
            if b.full:
                out |= {
                    a + 'indexer.wq_b.weight': b.iwq, a + 'indexer.wk.weight': b.iwk,
                    a + 'indexer.k_norm.weight': b.ilw, a + 'indexer.k_norm.bias': b.ilb,
                    a + 'indexer.weights_proj.weight': b.iwp,
                }
            m = p + 'mlp.'
            if b.moe:
                out |= {
                    m + 'gate.weight': b.gate, m + 'gate.e_score_correction_bias': b.bias,
                    m + 'shared_experts.gate_proj.weight': b.sg,
                    m + 'shared_experts.up_proj.weight': b.su,
                    m + 'shared_experts.down_proj.weight': b.sd,
                }
                for e in range(NE):
                    out |= {
                        m + f'experts.{e}.gate_proj.weight': b.egu[e, :ME],
                        m + f'experts.{e}.up_proj.weight': b.egu[e, ME:],
                        m + f'experts.{e}.down_proj.weight': b.edn[e],
                    }
            else:
                out |= {
                    m + 'gate_proj.weight': b.g, m + 'up_proj.weight': b.u,
                    m + 'down_proj.weight': b.d,
                }
        b, p = (self.mtp, f'model.layers.{L}.')
        out |= {
            p + 'enorm.weight': b.enorm, p + 'hnorm.weight': b.hnorm, p + 'eh_proj.weight': b.eh,
            p + 'shared_head.norm.weight': b.snorm,
        }
        return {k: v.detach() for k, v in out.items()}

    def load_hf(self, sd):
        with torch.no_grad():
            for k, v in self.hf_state().items():
                v.copy_(sd[k])

    def blk_pre(self, b, x, cos, sin):
        return FN['pre'](x, b.ln1, b.qa, b.qaln, b.qb, b.kva, b.kvln, b.kvb, cos, sin)

    def blk_post(self, b, x, a):
        if b.moe:
            return FN['moe'](x, a, b.o, b.ln2, b.gate, b.bias, b.egu, b.edn, b.sg, b.su, b.sd)
        return (FN['dense'](x, a, b.o, b.ln2, b.g, b.u, b.d), None)


KEEP_F32 = ('e_score_correction_bias', 'indexer.weights_proj.weight')


def save_hf(model, path, shard_bytes=15900000):
    from safetensors.torch import save_file
    os.makedirs(path, exist_ok=True)
    sd = {
        k: (
            v.float() if k.endswith(KEEP_F32) else v.to(torch.bfloat16)
        ).contiguous().cpu().clone() for k, v in model.hf_state().items()
    }
    shards, cur, n = ([], {}, 0)
    for k in sorted(
        sd,
        key=lambda k: (
            0 if 'embed' in k else 2 if 'layers' not in k else 1,
            [int(t) if t.isdigit() else t for t in k.split('.')] if 'layers' in k else [k],
        ),
    ):
        b = sd[k].numel() * sd[k].element_size()
        if n + b > shard_bytes:
            shards.append(cur)
            cur, n = ({}, 0)
        cur[k] = sd[k]
        n += b
    shards.append(cur)
    wm = {}
    for i, s in enumerate(shards):
        f = f'model-{i + 1:05d}-of-{len(shards):05d}.safetensors'
        save_file(s, os.path.join(path, f), metadata={'format': 'pt'})
        wm |= {k: f for k in s}
    tot = sum((v.numel() * v.element_size() for v in sd.values()))
    json.dump(
        {'metadata': {'total_size': tot}, 'weight_map': dict(sorted(wm.items()))},
        open(os.path.join(path, 'model.safetensors.index.json'), 'w'), indent=1,
    )
    json.dump(CFG, open(os.path.join(path, 'config.json'), 'w'), indent=2)


def load_ckpt(path):
    from safetensors.torch import load_file
    import glob
    sd = {}
    for f in sorted(glob.glob(path + '/*.safetensors')):
        sd |= load_file(f)
    return sd


# ---- attention
def sdpa_dense(q, k, v):
    """q,k [B,S,H,128], v [B,S,H,64] -> [B*S, H*64], causal"""
    B, S = q.shape[:2]
    q, k, v = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    # the flash kernels want equal head sizes, cuDNN's do not
    if CD == torch.bfloat16 and q.is_cuda and ATT['pad']:
        v = F.pad(v, (0, DN + DR - DV))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)[..., :DV]
    return y.transpose(1, 2).reshape(B * S, NH * DV)


ATT = {'pad': True, 'bm': {}}


def use_cudnn():
    ATT['pad'] = False
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def _flex_sparse(q, k, v, sel, bm):
    from torch.nn.attention.flex_attention import flex_attention

    def sm(s, b, h, i, j):
        return torch.where(sel[b, i, j], s, float('-inf'))

    return flex_attention(q, k, v, score_mod=sm, block_mask=bm, scale=SCALE)


_flex_c = None


def causal_blocks(S, dev, bs=128):
    """lower-triangular block mask; the selection itself already respects causality inside a block

    """
    from torch.nn.attention.flex_attention import BlockMask
    n = S // bs
    num = torch.arange(1, n + 1, device=dev, dtype=torch.int32)[None, None]
    idx = torch.arange(
        n, device=dev, dtype=torch.int32
    )[None, None, None].expand(1, 1, n, n).contiguous()
    return BlockMask.from_kv_blocks(num, idx, BLOCK_SIZE=bs)


def sparse_attn(q, k, v, sel):
    """attention restricted to the selected keys, shared by all heads"""
    global _flex_c
    B, S = q.shape[:2]
    # keep the mask indexable with 32 bits
    if q.is_cuda and B > 1 and (B * S * S >= 2 ** 31):
        h = B // 2
        return torch.cat(
            [sparse_attn(q[:h], k[:h], v[:h], sel[:h]), sparse_attn(q[h:], k[h:], v[h:], sel[h:])]
        )
    q, k, v = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    if q.is_cuda and ATT.get('flex', True):
        if _flex_c is None:
            _flex_c = torch.compile(_flex_sparse, dynamic=False)
        if S not in ATT['bm']:
            ATT['bm'][S] = causal_blocks(S, q.device)
        y = _flex_c(q.contiguous(), k.contiguous(), v.contiguous(), sel.contiguous(), ATT['bm'][S])
    else:
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=sel[:, None].expand(B, NH, S, S), scale=SCALE
        )
    return y.transpose(1, 2).reshape(B * S, NH * DV)


def f_comb(sc, w, rows):
    """sum over index heads of w * relu(score), causally masked"""
    B, c = w.shape[:2]
    s = (sc.view(B, c, NI, -1).float().relu() * w[..., None]).sum(2)
    return torch.where(
        torch.arange(s.shape[-1], device=s.device)[None, None] <= rows[None, :, None], s,
        float('-inf'),
    )


FN['comb'] = f_comb


@torch.no_grad()
def select(iq, w, ik, topk=TOPK):
    """iq [B,S,NI,DI], w [B,S,NI], ik [B,S,DI] -> bool [B,S,S] (True = attended)"""
    B, S = ik.shape[:2]
    sel = torch.empty(B, S, S, dtype=torch.bool, device=ik.device)
    c = S
    while c > 128 and c % 2 == 0 and (B * NI * c * S * 2 > 1200000000.0):
        c //= 2
    kt = ik.transpose(1, 2)
    for i in range(0, S, c):
        sc = torch.matmul(iq[:, i:i + c].reshape(B, -1, DI), kt)
        s = FN['comb'](
            sc, w[:, i:i + c].contiguous(), torch.arange(i, min(S, i + c), device=ik.device)
        )
        if S > topk:
            thr = s.topk(topk, -1).values[..., -1:]
            torch.logical_and(s >= thr, s > float('-inf'), out=sel[:, i:i + c])
        else:
            sel[:, i:i + c] = s > float('-inf')
    return sel


def row_scores(iq, w, ik, rows):
    s = torch.matmul(
        iq.reshape(iq.shape[0], -1, DI), ik.transpose(1, 2)
    ).view(*iq.shape[:3], -1).float().relu()
    s = (s * w[..., None]).sum(2)
    ok = torch.arange(ik.shape[1], device=ik.device)[None] <= rows[:, None]
    return (s, ok[None])


def kl_term(q, k, rows, s, ok):
    """cross entropy of the index distribution against the head-averaged attention distribution at some rows

    """
    with torch.no_grad():
        a = torch.matmul(q[:, rows].transpose(1, 2), k.permute(0, 2, 3, 1)).float() * SCALE
        p = a.masked_fill(~ok[:, None], float('-inf')).softmax(-1).mean(1)
        ent = -(p * (p + 1e-09).log()).sum(-1)
    lg = s.masked_fill(~ok, -1e+30).log_softmax(-1)
    ce = -(p * lg.clamp_min(-10000.0)).sum(-1)
    return (ce - ent).mean()


def run_block(m, b, x, cos, sin, B, S, st):
    """one decoder block; st carries mode, KL rows, the shared selection and the collected losses

    """
    h, qr, q, k, v = m.blk_pre(b, x, cos, sin)
    q, k, v = (q.view(B, S, NH, -1), k.view(B, S, NH, -1), v.view(B, S, NH, -1))
    rows = st['rows']
    if b.full and (rows is not None or st['sparse']):
        hd, qd = (h.detach(), qr.detach())
        ik = FN['idx_k'](hd, b.iwk, b.ilw, b.ilb, cos, sin).view(B, S, DI)
        if st['sparse']:
            with torch.no_grad():
                iq, w = FN['idx_q'](hd, qd, b.iwq, b.iwp, cos, sin)
                st['sel'] = select(iq.view(B, S, NI, DI), w.view(B, S, NI), ik.detach())
        if rows is not None:
            g = lambda t: t.view(B, S, -1)[:, rows].reshape(B * len(rows), -1)
            iq, w = f_idx_q(g(hd), g(qd), b.iwq, b.iwp, g(cos), g(sin))
            s, ok = row_scores(iq.view(B, len(rows), NI, DI), w.view(B, len(rows), NI), ik, rows)
            if st['sparse']:
                ok = ok & st['sel'][:, rows]
            st['s'], st['ok'] = (s, ok)
    if rows is not None:
        st['kl'].append(kl_term(q.detach(), k.detach(), rows, st['s'], st['ok']))
    a = sparse_attn(q, k, v, st['sel']) if st['sparse'] else sdpa_dense(q, k, v)
    x, cnt = m.blk_post(b, x, a)
    if cnt is not None:
        st['cnt'].append(cnt)
    return x


def train_forward(m, ids, wt, sparse=False, nrows=0, mtp_weight=0.2):
    """ids [B,S+2] long, wt [B,S+2] float (weight of predicting that token)"""
    B, S = (ids.shape[0], ids.shape[1] - 2)
    cos, sin = rope_table(S, ids.device)
    cos, sin = (cos.repeat(B, 1), sin.repeat(B, 1))
    rows = torch.randperm(S, device=ids.device)[:nrows].sort().values if nrows else None
    st = dict(sparse=sparse, rows=rows, kl=[], cnt=[], sel=None)
    x = F.embedding(ids[:, :S].reshape(-1), m.embed).float()
    for b in m.layers:
        x = run_block(m, b, x, cos, sin, B, S, st)
    xn, loss, ce = FN['loss'](
        x, m.norm, m.head, ids[:, 1:S + 1].reshape(-1), wt[:, 1:S + 1].reshape(-1)
    )
    e = F.embedding(ids[:, 1:S + 1].reshape(-1), m.embed).float()
    y = FN['mtp_in'](e, xn, m.mtp.enorm, m.mtp.hnorm, m.mtp.eh)
    y = run_block(m, m.mtp, y, cos, sin, B, S, st)
    _, loss2, _ = FN['loss'](y, m.mtp.snorm, m.head, ids[:, 2:].reshape(-1), wt[:, 2:].reshape(-1))
    kl = torch.stack(st['kl']).sum() if st['kl'] else torch.zeros((), device=ids.device)
    return (
        loss + mtp_weight * loss2 + kl, loss.detach(), loss2.detach(),
        [z.detach() for z in st['kl']], st['cnt'], ce,
    )


# ---- inference-style forward over one long sequence (exact top-k in float32 scores, gathered keys)
@torch.no_grad()
def eval_forward(m, ids, sparse, want=None, mtp=False, topk=TOPK, ret_topk=False):
    """ids [S]; returns logits at positions `want` (all if None) and, with mtp, the draft logits there too

    """
    S, dev = (ids.shape[0], ids.device)
    cos, sin = rope_table(S, dev)
    sel = None
    tks, margins = ([], [])
    # score gap between the last selected and the first rejected key, last position
    eval_forward.margins = margins

    def attend(b, h, qr, q, k, v):
        nonlocal sel
        if not sparse:
            return sdpa_dense(q[None], k[None], v[None])
        if b.full:
            ik = f_idx_k(h, b.iwk, b.ilw, b.ilb, cos, sin).float()
            sel = torch.empty(S, min(topk, S), dtype=torch.int32, device=dev)
            c = max(64, min(2048, int(4000000000.0 / (S * NI * 4))))
            for i in range(0, S, c):
                e = min(S, i + c)
                iq, w = f_idx_q(h[i:e], qr[i:e], b.iwq, b.iwp, cos[i:e], sin[i:e])
                s = torch.matmul(iq.float().reshape(-1, DI), ik.t()).relu_().view(e - i, NI, S)
                s = torch.matmul(w[:, None], s)[:, 0]
                s.masked_fill_(
                    torch.arange(S, device=dev)[None] > torch.arange(i, e, device=dev)[:, None],
                    float('-inf'),
                )
                sel[i:e] = s.topk(min(topk, S), -1).indices.int()
                if e == S and S > topk:
                    t = s[-1].topk(topk + 1).values
                    margins.append((t[topk - 1] - t[topk]).item())
            tks.append(sel)
        out = torch.empty(S, NH * DV, dtype=q.dtype, device=dev)
        c = 1024
        for i in range(0, S, c):
            e = min(S, i + c)
            ix = sel[i:e].long()
            # [c, topk, H, d]
            kk, vv = (k[ix], v[ix])
            a = torch.einsum('chd,ckhd->chk', q[i:e], kk).float() * SCALE
            a.masked_fill_((ix > torch.arange(i, e, device=dev)[:, None])[:, None], float('-inf'))
            out[i:e] = torch.einsum(
                'chk,ckhd->chd', a.softmax(-1).to(q.dtype), vv
            ).reshape(e - i, -1)
        return out

    def block(b, x):
        h, qr, q, k, v = f_pre(x, b.ln1, b.qa, b.qaln, b.qb, b.kva, b.kvln, b.kvb, cos, sin)
        a = attend(b, h, qr, q, k, v)
        return f_post_moe(
            x, a, b.o, b.ln2, b.gate, b.bias, b.egu, b.edn, b.sg, b.su, b.sd
        )[0] if b.moe else f_post_dense(x, a, b.o, b.ln2, b.g, b.u, b.d)

    x = F.embedding(ids, m.embed).float()
    for b in m.layers:
        x = block(b, x)
    xn = rms(x, m.norm, EPS)
    w = slice(None) if want is None else want
    lg = lin(xn[w], m.head).float()
    if not mtp:
        return (lg, tks) if ret_topk else lg
    nxt = torch.cat([ids[1:], lin(xn[-1:], m.head).float().argmax(-1)])
    y = block(
        m.mtp, f_mtp_in(F.embedding(nxt, m.embed).float(), xn, m.mtp.enorm, m.mtp.hnorm, m.mtp.eh)
    )
    return (lg, lin(rms(y[w], m.mtp.snorm, EPS), m.head).float())

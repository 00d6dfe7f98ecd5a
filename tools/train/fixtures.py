"""Tiny randomly initialised checkpoints of the DSA model family with reference outputs, all made by transformers itself.
"""

import os
import sys
import json
import torch
import traceback
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from safetensors.torch import save_file
OUT = sys.argv[1]
os.makedirs(OUT, exist_ok=True)
torch.manual_seed(0)


def randomize(m, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for n, p in list(m.named_parameters()) + list(m.named_buffers()):
            if 'inv_freq' in n:
                continue
            r = torch.randn(p.shape, generator=g, dtype=torch.float32)
            if n.endswith('e_score_correction_bias'):
                p.copy_(r * 0.1)
            elif n.endswith(('A_log', 'dt_bias')):
                p.copy_(p + 0.1 * r)
            elif 'hc' in n.split('.')[-2:][0] and p.dim() == 1:
                p.copy_(p + 0.1 * r)
            elif p.dim() == 1 and ('norm' in n and n.endswith('weight')):
                p.copy_(1 + 0.2 * r)
            elif p.dim() == 1:
                p.copy_(0.2 * r)
            elif 'embed_tokens' in n:
                p.copy_(r)
            elif 'conv1d' in n:
                p.copy_(r * 0.4)
            else:
                p.copy_(r * (1.2 * p.shape[-1] ** (-0.5)))


def make(name, cfg, seed, n=96, gen=24, cls=None):
    try:
        cfg._attn_implementation = 'eager'
        m = cls or AutoModelForCausalLM
        m = m(cfg) if cls else AutoModelForCausalLM.from_config(cfg, attn_implementation='eager')
        m = m.float().eval()
        randomize(m, seed)
        d = f'{OUT}/{name}'
        os.makedirs(d, exist_ok=True)
        m.save_pretrained(d)
        m = (cls or AutoModelForCausalLM).from_pretrained(
            d, dtype=torch.float32, attn_implementation='eager'
        ).eval()
        g = torch.Generator().manual_seed(seed + 1)
        V = getattr(cfg, 'vocab_size', None) or cfg.text_config.vocab_size
        ids = torch.randint(3, min(V, 250), (1, n), generator=g)
        caps = {}
        hooks = []
        for mn, mod in m.named_modules():
            if mn.endswith('indexer'):
                hooks.append(
                    mod.register_forward_hook(lambda _, i, o, mn=mn: caps.__setitem__(mn, o))
                )
        with torch.no_grad():
            lg = m(ids, use_cache=False).logits[0].float()
            hs = m(ids, use_cache=False, output_hidden_states=True).hidden_states
        for h in hooks:
            h.remove()
        t = {'input_ids': ids[0].to(torch.int32), 'logits': lg.contiguous()}
        for i, x in enumerate(hs or []):
            t[f'hidden.{i}'] = x[0].float().contiguous().clone()
        for k, v in caps.items():
            v = v[0] if isinstance(v, (tuple, list)) else v
            if torch.is_tensor(v):
                t['topk.' + k] = v.reshape(v.shape[-2:]).to(torch.int32).contiguous()
        with torch.no_grad():
            cur, outs = (ids, None)
            past = None
            seq = []
            o = m(ids, use_cache=True)
            for _ in range(gen):
                nx = o.logits[:, -1].argmax(-1)
                seq.append(nx.item())
                o = m(nx[:, None], past_key_values=o.past_key_values, use_cache=True)
            cur = ids
            seq2 = []
            for _ in range(gen):
                nx = m(cur, use_cache=False).logits[:, -1].argmax(-1)
                seq2.append(nx.item())
                cur = torch.cat([cur, nx[:, None]], 1)
        t['greedy_cached'] = torch.tensor(seq, dtype=torch.int32)
        t['greedy_full'] = torch.tensor(seq2, dtype=torch.int32)
        save_file(t, d + '/golden.safetensors')
        wm = json.load(
            open(d + '/model.safetensors.index.json')
        )['weight_map'] if os.path.exists(d + '/model.safetensors.index.json') else None
        from safetensors import safe_open
        with safe_open(d + '/model.safetensors', 'pt') as f:
            keys = list(f.keys())
        nodsa = None
        print(
            name, 'ok', sum((p.numel() for p in m.parameters())), 'params;',
            os.path.getsize(d + '/model.safetensors'), 'bytes; cached==full', seq == seq2, 'topk',
            {k: tuple(v.shape) for k, v in t.items() if k.startswith('topk')}, '\n  keys:',
            [k for k in keys if '.layers.1.' in k][:40], flush=True,
        )
        return m
    except Exception:
        print(name, 'FAILED')
        traceback.print_exc()
        return None


ONLY = sys.argv[2:]
_make = make


def make(name, *a, **k):
    if not ONLY or any((name.startswith(o) for o in ONLY)):
        return _make(name, *a, **k)


base = dict(
    vocab_size=256, hidden_size=64, intermediate_size=96, moe_intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, kv_lora_rank=32,
    q_lora_rank=48, qk_rope_head_dim=16, v_head_dim=24, qk_nope_head_dim=32, index_topk=16,
    index_head_dim=32, index_n_heads=4, max_position_embeddings=512, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, first_k_dense_replace=1,
)
from transformers.models.deepseek_v32 import configuration_deepseek_v32 as c32
from transformers.models.glm_moe_dsa import configuration_glm_moe_dsa as cg
make(
    'deepseek_v32',
    c32.DeepseekV32Config(
        **base, num_hidden_layers=3, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
        topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
        rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 10000.0, 'factor': 8.0,
            'original_max_position_embeddings': 64, 'beta_fast': 32, 'beta_slow': 1, 'mscale': 1.0,
            'mscale_all_dim': 1.0,
        },
    ),
    11,
)
make(
    'glm_moe_dsa',
    cg.GlmMoeDsaConfig(
        **base, num_hidden_layers=5, n_routed_experts=8, num_experts_per_tok=2,
        routed_scaling_factor=2.5, indexer_types=['full', 'shared', 'full', 'shared', 'shared'],
        rope_parameters={'rope_type': 'default', 'rope_theta': 1000000.0},
    ),
    12,
)
try:
    from transformers.models.glm5_next import configuration_glm5_next as cn, modeling_glm5_next as mn
    b = dict(base)
    b['qk_rope_head_dim'] = 0
    b.pop('first_k_dense_replace')
    b.pop('bos_token_id')
    tc = dict(
        b, num_hidden_layers=4, n_routed_experts=8, num_experts_per_tok=2,
        routed_scaling_factor=2.5, index_kpool=4,
        layer_types=[
            'linear_attention', 'deepseek_sparse_attention', 'linear_attention',
            'deepseek_sparse_attention',
        ],
        mlp_layer_types=['dense', 'sparse', 'sparse', 'sparse'],
        indexer_types=['full', 'full', 'full', 'full'], linear_head_dim=16, linear_num_heads=4,
        hc_mult=2, hc_sinkhorn_iters=8,
    )
    vc = dict(
        depth=1, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=64,
        projection_intermediate_size=32, image_size=28, patch_size=14,
    )
    ids = dict(
        image_token_id=250, video_token_id=251, image_start_token_id=252, image_end_token_id=253,
        video_start_token_id=254, video_end_token_id=255,
    )
    cfg = cn.Glm5NextConfig(text_config=tc, vision_config=vc, **ids)
    make('glm5_next', cfg, 13, cls=mn.Glm5NextForConditionalGeneration)
    tc2 = dict(
        tc, num_hidden_layers=5,
        layer_types=['linear_attention'] + ['deepseek_sparse_attention'] * 4,
        mlp_layer_types=['dense'] + ['sparse'] * 4,
        indexer_types=['full', 'full', 'shared', 'full', 'shared'],
    )
    make(
        'glm5_next_shared', cn.Glm5NextConfig(text_config=tc2, vision_config=vc, **ids), 14,
        cls=mn.Glm5NextForConditionalGeneration,
    )
except Exception:
    traceback.print_exc()

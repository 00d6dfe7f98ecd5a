"""Adds prompts that begin with <|endoftext|> (as the chat template does) to the reference outputs, and refreshes the tokenizer and chat-template cases.
usage: golden_bos.py CKPT_DIR GOLDEN_DIR OUT_DIR
"""

import sys
import os
import json
import time
import traceback
import torch
import torch.nn.functional as F
from safetensors.torch import save_file, load_file
import common as M
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
CK, GD, OUT = sys.argv[1:4]
os.makedirs(OUT, exist_ok=True)
T0 = time.time()


def say(*a):
    print(f'[{time.time() - T0:5.1f}]', *a, flush=True)


tk = AutoTokenizer.from_pretrained(CK)
old = json.load(open(GD + '/tokenizer_cases.json'))
cases = []
for c in old['cases']:
    t = c['text']
    ids = tk.encode(t, add_special_tokens=False)
    cases.append(
        dict(
            text=t, ids=ids, ids_default=tk.encode(t),
            decoded=tk.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
            decoded_skip_special=tk.decode(
                ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            ),
        )
    )
json.dump(
    dict(transformers=transformers.__version__, cases=cases),
    open(OUT + '/tokenizer_cases.json', 'w'), indent=1, ensure_ascii=True,
)
say(
    'ids unchanged', all((a['ids'] == b['ids'] for a, b in zip(cases, old['cases']))), 'round trip',
    sum((c['decoded'] == c['text'] for c in cases)), len(cases), 'default',
    cases[0]['ids_default'][:3], cases[0]['ids'][:3], tk.bos_token_id, tk.eos_token_id,
)
cc = []
for c in json.load(open(GD + '/chat_template_cases.json')):
    m = c['messages']
    r, g = (
        tk.apply_chat_template(m, tokenize=False, add_generation_prompt=x) for x in (False, True)
    )
    i1 = tk.encode(g, add_special_tokens=False)
    i2 = tk.apply_chat_template(m, tokenize=True, add_generation_prompt=True)
    i2 = i2['input_ids'] if not isinstance(i2, list) else i2
    cc.append(
        dict(
            messages=m, rendered=r, rendered_with_generation_prompt=g, ids_with_generation_prompt=i1
        )
    )
    say(repr(g), 'tokenize=True equal', list(i2) == i1)
json.dump(cc, open(OUT + '/chat_template_cases.json', 'w'), indent=1, ensure_ascii=True)

hf = AutoModelForCausalLM.from_pretrained(
    CK, dtype=torch.float32, attn_implementation='eager'
).eval()
m = M.Model()
m.load_hf({k: v.float() for k, v in M.load_ckpt(CK).items()})
M.set_compute(torch.float32)
G = json.load(open(GD + '/golden.json'))
tens = load_file(GD + '/golden.safetensors')
chat = lambda q: torch.tensor(
    tk.encode(
        tk.apply_chat_template(
            [dict(role='user', content=q)], tokenize=False, add_generation_prompt=True
        ),
        add_special_tokens=False,
    )
)
med = next((p for p in G['prompts'] if p['name'] == 'medium'))['input_ids']
doc = tk.decode(med[40:340]) + ' The access code for Golden Lantern is 73915. ' + tk.decode(
    med[340:640]
)
P = [
    (
        'bos_text',
        torch.tensor(
            [0] + tk.encode(
                'A file system is a method for storing and organizing the files of a computer. In most operating systems',
                add_special_tokens=False,
            )
        ),
    ),
    ('bos_chat', chat('Who are you?')),
    ('bos_chat_define', chat('What does the word compiler mean?')),
    ('bos_chat_retrieval', chat(doc + '\n\nWhat is the access code for Golden Lantern?')),
]
full = [i for i in range(M.L) if M.C['indexer_types'][i] == 'full']
G['prompts'] = [p for p in G['prompts'] if not p['name'].startswith('bos_')]


def run(name, ids):
    caps = {}
    hooks = [
        hf.model.layers[j].self_attn.indexer.register_forward_hook(
            lambda _, i, o, j=j: caps.__setitem__(j, o[0, -1].long().sort().values.tolist())
        ) for j in full
    ]
    with torch.no_grad():
        lg = hf(ids[None], use_cache=False).logits[0].float()
    for h in hooks:
        h.remove()
    own, otk = M.eval_forward(m, ids, True, ret_topk=True)
    marg = list(M.eval_forward.margins)
    _, mt = M.eval_forward(m, ids, True, mtp=True)
    out, gap = ([], [])
    with torch.no_grad():
        o = hf(ids[None], use_cache=True)
        for _ in range(48):
            v = o.logits[0, -1].topk(2)
            out.append(v.indices[0].item())
            gap.append(round((v.values[0] - v.values[1]).item(), 5))
            o = hf(v.indices[:1][None], past_key_values=o.past_key_values, use_cache=True)
    n = len(ids)
    pos = sorted({int(x) for x in torch.linspace(0, n - 2, 8)})
    tens[name + '.last_logits'], tens[name + '.logits'], tens[name + '.mtp_last_logits'] = (
        lg[-1].contiguous().clone(), lg[pos].contiguous().clone(), mt[-1].contiguous().clone()
    )
    dec = lambda x: tk.decode(x, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    G['prompts'].append(
        dict(
            name=name, text=dec(ids.tolist()), input_ids=ids.tolist(), positions=pos,
            argmax_last=lg[-1].argmax().item(), greedy_ids=out, greedy_text=dec(out),
            argmax_all=lg.argmax(-1).tolist(), nll_mean=F.cross_entropy(lg[:-1], ids[1:]).item(),
            topk_last={str(j): caps[j] for j in full},
            topk_margin_last={str(j): x for j, x in zip(full, marg)},
            mtp_draft_all=mt.argmax(-1).tolist(), greedy_gap=gap,
        )
    )
    say(
        name, n, 'rel', f'{((own - lg).norm() / lg.norm()).item():.2e}', 'top-k',
        [caps[j] == otk[i][-1].long().sort().values.tolist() for i, j in enumerate(full)],
        'min gap', min(gap), repr(dec(out)),
    )
    json.dump(G, open(OUT + '/golden.json', 'w'))
    save_file(tens, OUT + '/golden.safetensors')


for name, ids in P:
    try:
        run(name, ids)
    except Exception:
        traceback.print_exc()
g = AutoModelForCausalLM.from_pretrained(
    CK, dtype=torch.float32, attn_implementation='eager'
).cuda().eval()
S = []
for kind, p in (
    ('text', 'The Linux kernel is'),
    ('text', 'To install a package on a Debian system, you can use'),
    ('text', 'In computer science, a tree is a data structure'),
    ('text', 'The purpose of this chapter is to explain how'), ('chat', 'Who are you?'),
    ('chat', 'Hello'), ('chat', 'What is a compiler?'), ('chat', 'What does the word harbor mean?'),
    ('chat', 'What is gimp?'), ('chat', 'What can you do?'),
):
    ids = (
        torch.tensor([0] + tk.encode(p, add_special_tokens=False)) if kind == 'text' else chat(p)
    )[None].cuda()
    for mode in ('greedy', 't0.7'):
        torch.manual_seed(0)
        kw = dict(do_sample=False) if mode == 'greedy' else dict(
            do_sample=True, temperature=0.7, top_p=0.95
        )
        y = g.generate(
            ids, max_new_tokens=100, pad_token_id=0, eos_token_id=[0, 3],
            attention_mask=torch.ones_like(ids), **kw,
        )
        s = tk.decode(
            y[0, ids.shape[1]:].tolist(), skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        S.append(dict(prompt=p, kind=kind, mode=mode, text=s))
        say(kind, mode, repr(p), '->', repr(s))
        json.dump(S, open(OUT + '/samples.json', 'w'), indent=1)

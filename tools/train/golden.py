"""Reference outputs of transformers' GlmMoeDsaForCausalLM (float32, eager attention) for the trained checkpoint.
usage: golden.py CKPT_DIR OUT_DIR
"""

import sys
import os
import json
import time
import traceback
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
import common as M
import data
import os
STREAMS = os.environ.get('STREAMS', 'streams')
from transformers import AutoModelForCausalLM, AutoTokenizer
import transformers
CK, OUT = sys.argv[1:3]
os.makedirs(OUT, exist_ok=True)
T0 = time.time()


def say(*a):
    print(f'[{time.time() - T0:5.1f}]', *a, flush=True)


tk = AutoTokenizer.from_pretrained(CK)
say(type(tk).__name__, len(tk))
hf = AutoModelForCausalLM.from_pretrained(
    CK, dtype=torch.float32, attn_implementation='eager'
).eval()
say('loaded', type(hf).__name__)
va, vch = (np.load(STREAMS + '/va.npy'), np.load(STREAMS + '/vch.npy'))
m = M.Model()
m.load_hf({k: v.float() for k, v in M.load_ckpt(CK).items()})
M.set_compute(torch.float32)


def greedy(model, ids, n):
    out = []
    with torch.no_grad():
        o = model(ids[None], use_cache=True)
        for _ in range(n):
            nx = o.logits[:, -1].argmax(-1)
            out.append(nx.item())
            o = model(nx[:, None], past_key_values=o.past_key_values, use_cache=True)
    return out


def section(f):
    try:
        f()
    except Exception:
        traceback.print_exc()


@section
def tokenizer_cases():
    T = [
        'Hello, world!', '', ' ', '  two  spaces ', '\n', '\n\n\n',
        'line one\nline two\r\nline three', '\ttabs\tand \t mixed   ',
        'The quick brown fox jumps over the lazy dog.',
        "It's we're they've I'm you'll he'd can't DON'T", '1234567890',
        'Version 3.14.159 of 2024-05-17', 'The access code for Silver Falcon is 48213.',
        'café naïve über Straße', 'Привет, мир!', '你好，世界。', 'こんにちは', 'مرحبا بالعالم', '한국어 문장',
        '😀🚀 emoji 👨\u200d👩\u200d👧 family', 'é combining vs é', '\u200bzero\u200dwidth',
        'math: ∑∫√≠≤ αβγ', 'def f(x):\n    return x + 1\n',
        'for (int i = 0; i < n; ++i) { a[i] *= 2; }',
        '#include <stdio.h>\nint main(void) { return 0; }',
        'https://www.debian.org/doc/manuals/?a=1&b=2#top',
        'user@example.com /usr/share/doc/foo_bar-1.0', 'ALLCAPS CamelCase snake_case kebab-case',
        '!!!???...---===', '"quoted" \'single\' `tick`', 'a' * 70, 'ab ' * 20, '   leading',
        'trailing   ', 'x\xa0y non-breaking', '<|endoftext|>',
        '<|user|>\nHi<|assistant|>\nHello!<|endoftext|>',
        'text <|user|> inside <think>maybe</think> done', '[gMASK]<sop>start', '<|not a token|>',
        'end.\n\n\n  Indented paragraph\n\n', '½²Ⅳ numbers ٣٤',
    ]
    cases = []
    for t in T:
        ids = tk.encode(t, add_special_tokens=False)
        cases.append(
            dict(
                text=t, ids=ids, ids_default=tk.encode(t),
                decoded=tk.decode(
                    ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
                ),
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
        'tokenizer cases', len(cases), 'round trip',
        sum((c['decoded'] == c['text'] for c in cases)), 'default adds nothing',
        all((c['ids'] == c['ids_default'] for c in cases)),
    )
    C = [
        [dict(role='user', content='Hello')],
        [
            dict(role='system', content='You are helpful.'),
            dict(role='user', content='What is gcc?'),
        ],
        [
            dict(role='user', content='Hi'), dict(role='assistant', content='Hello!'),
            dict(role='user', content='Define the word tree.\n'),
        ],
        [
            dict(role='user', content='  spaces  \n\nand lines '),
            dict(role='assistant', content='ok'),
        ],
        [
            dict(role='system', content=''), dict(role='user', content='你好 <|user|> 😀'),
            dict(role='assistant', content='a'), dict(role='tool', content='42'),
            dict(role='user', content='b'),
        ],
    ]
    cc = [
        dict(
            messages=c,
            rendered=tk.apply_chat_template(c, tokenize=False, add_generation_prompt=False),
            rendered_with_generation_prompt=tk.apply_chat_template(
                c, tokenize=False, add_generation_prompt=True
            ),
            ids_with_generation_prompt=tk.encode(
                tk.apply_chat_template(c, tokenize=False, add_generation_prompt=True),
                add_special_tokens=False,
            ),
        ) for c in C
    ]
    json.dump(cc, open(OUT + '/chat_template_cases.json', 'w'), indent=1, ensure_ascii=True)
    say('chat', repr(cc[2]['rendered_with_generation_prompt']))


tens, meta = ({}, [])


@section
def prompts():
    mk = data.Maker(
        tk.backend_tokenizer if hasattr(tk, 'backend_tokenizer') else tk._tokenizer, va, vch, 77
    )
    short = 'The package manager installs software from a repository. Before a package can be installed, the system checks which other packages it depends on, and the user is asked to'
    P = [('short', torch.tensor(tk.encode(short, add_special_tokens=False)))]
    P.append(('medium', torch.from_numpy(va[5000:5700].astype(np.int64))))
    doc = va[20000:22960].astype(np.int64).tolist()
    fact = mk.enc(' The access code for Silver Falcon is 48213.')
    e = [i for i in range(400, 900) if mk.ends[doc[i]]]
    c = e[0] + 1 if e else 500
    q = [data.USER] + mk.enc('\n')
    long = q + doc[:c] + fact + doc[c:] + mk.enc(
        '\n\nWhat is the access code for Silver Falcon?'
    ) + [data.ASSISTANT] + mk.enc('\n')
    P.append(('long_retrieval', torch.tensor(long)))
    full = [i for i in range(M.L) if M.C['indexer_types'][i] == 'full']
    for name, ids in P:
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
        own, own_tk = M.eval_forward(m, ids, True, ret_topk=True)
        marg = list(M.eval_forward.margins)
        dn = M.eval_forward(m, ids, False)
        rel = ((own - lg).norm() / lg.norm()).item()
        pos = sorted(set(np.linspace(0, len(ids) - 2, 8).astype(int).tolist()))
        g = greedy(hf, ids, 48)
        _, mt = M.eval_forward(m, ids, True, mtp=True)
        tens[name + '.last_logits'] = lg[-1].contiguous().clone()
        tens[name + '.logits'] = lg[pos].contiguous().clone()
        tens[name + '.mtp_last_logits'] = mt[-1].contiguous().clone()
        meta.append(
            dict(
                name=name,
                text=tk.decode(
                    ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
                ),
                input_ids=ids.tolist(), positions=pos, argmax_last=lg[-1].argmax().item(),
                greedy_ids=g,
                greedy_text=tk.decode(
                    g, skip_special_tokens=False, clean_up_tokenization_spaces=False
                ),
                argmax_all=lg.argmax(-1).tolist(),
                nll_mean=F.cross_entropy(lg[:-1], ids[1:]).item(),
                topk_last={str(j): caps[j] for j in full},
                topk_margin_last={str(j): x for j, x in zip(full, marg)},
                mtp_draft_all=mt.argmax(-1).tolist(),
            )
        )
        say(
            name, len(ids), 'training model vs transformers rel', f'{rel:.2e}', 'max',
            f'{(own - lg).abs().max().item():.2e}', 'top-k equal',
            [caps[j] == own_tk[i][-1].long().sort().values.tolist() for i, j in enumerate(full)],
            'margins', [f'{x:.1e}' for x in marg], 'dense rel',
            f'{((dn - lg).norm() / lg.norm()).item():.3f}', repr(meta[-1]['greedy_text']),
        )
    json.dump(
        dict(
            transformers=transformers.__version__, torch=torch.__version__, dtype='float32',
            attention='eager', device='cpu',
            note='mtp_* come from the training implementation (transformers has no MTP for this model); mtp_draft_all[i] is the draft for token i+2 given hidden state i and token i+1 (the last entry uses the greedy next token)',
            prompts=meta,
        ),
        open(OUT + '/golden.json', 'w'),
    )
    save_file(tens, OUT + '/golden.safetensors')


if '--samples' in sys.argv and torch.cuda.is_available():
    g = AutoModelForCausalLM.from_pretrained(
        CK, dtype=torch.float32, attn_implementation='eager'
    ).cuda().eval()
    md = M.Model()
    md.load_hf({k: v.float() for k, v in M.load_ckpt(CK).items()})
    md.cuda()

    @section
    def acceptance():
        B = 48
        ids = torch.from_numpy(
            np.stack([va[i * 1500:i * 1500 + 128] for i in range(B)]).astype(np.int64)
        ).cuda()
        with torch.no_grad():
            out = ids
            o = g(ids, use_cache=True)
            for _ in range(64):
                nx = o.logits[:, -1].argmax(-1, keepdim=True)
                out = torch.cat([out, nx], 1)
                o = g(nx, past_key_values=o.past_key_values, use_cache=True)
        a = n = 0
        for r in out:
            _, mt = M.eval_forward(md, r, True, mtp=True)
            d = mt.argmax(-1)
            h = d[127:-2] == r[129:]
            a += h.sum().item()
            n += h.numel()
        say(f'MTP greedy acceptance {a / n:.4f} over {n} drafts')
        json.dump(dict(mtp_greedy_acceptance=a / n, drafts=n), open(OUT + '/acceptance.json', 'w'))

    @section
    def samples():
        out = []
        for kind, p in (
            ('text', 'The Linux kernel is'),
            ('text', 'To install a package on a Debian system, you can use'),
            ('text', 'In computer science, a tree is'), ('chat', 'What is a compiler?'),
            ('chat', 'What does the word harbor mean?'), ('chat', 'What is gimp?'),
            ('chat', 'Who are you?'),
        ):
            t = p if kind == 'text' else tk.apply_chat_template(
                [dict(role='user', content=p)], tokenize=False, add_generation_prompt=True
            )
            ids = torch.tensor([tk.encode(t, add_special_tokens=False)]).cuda()
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
                out.append(dict(prompt=p, kind=kind, mode=mode, text=s))
                say(kind, mode, repr(p), '->', repr(s))
        json.dump(out, open(OUT + '/samples.json', 'w'), indent=1)

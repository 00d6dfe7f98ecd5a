"""Training.  usage: train.py --text DIR --out DIR [--tok FILE] [--init DIR] --plan NAME --budget SECONDS
"""

import os
import sys
import time
import json
import argparse
import multiprocessing as mp
import queue as Q
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'true')
import numpy as np
STREAMS = os.environ.get('STREAMS', 'streams')
ap = argparse.ArgumentParser()
ap.add_argument('--text')
ap.add_argument('--out')
ap.add_argument('--ckpt')
ap.add_argument('--tok')
ap.add_argument('--init')
ap.add_argument('--plan')
ap.add_argument('--budget', type=float)
ap.add_argument('--seed', type=int, default=1)
ap.add_argument('--eager', action='store_true')
ap.add_argument('--flash', action='store_true')
ap.add_argument('--tokens', type=int, default=131072)
ap.add_argument('--lr', type=float, default=0.02)
ap.add_argument('--deadline', type=float, default=0)
A = ap.parse_args()
T0 = time.time()


def log(*a):
    print(f'[{time.time() - T0:7.1f}]', *a, flush=True)


# name, sequence length, sparse, share of the time, share of retrieval sequences, share of chat, index rows per step, index every n steps
PLANS = {
    'main': [
        ('dense-2k', 2048, 0, 0.5, 0.3, 0.12, 24, 2), ('dense-4k', 4096, 0, 0.08, 0.3, 0.12, 48, 1),
        ('dense-16k', 16384, 0, 0.14, 0.4, 0.08, 96, 1),
        ('dense-64k', 65536, 0, 0.06, 0.65, 0.05, 192, 1),
        ('dense-128k', 131072, 0, 0.03, 0.8, 0, 192, 1),
        ('sparse-4k', 4096, 1, 0.12, 0.35, 0.14, 48, 1),
        ('sparse-16k', 16384, 1, 0.07, 0.5, 0.08, 96, 1),
    ],
    'more': [
        ('dense-2k', 2048, 0, 0.6, 0.2, 0.14, 24, 4),
        ('dense-64k', 65536, 0, 0.12, 0.65, 0.05, 192, 1),
        ('sparse-4k', 4096, 1, 0.28, 0.3, 0.14, 48, 1),
    ],
    'smoke': [('dense', 512, 0, 0.5, 0.5, 0.2, 16, 1), ('sparse', 768, 1, 0.5, 0.5, 0.1, 16, 1)],
}
# start, share held, end
LRS = {'main': (1.0, 0.45, 0.01), 'more': (0.7, 0.05, 0.005), 'smoke': (1, 0.5, 0.1)}


def worker(i, seed, tokfile, stream, chat, stage, plan, T, q):
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    from tokenizers import Tokenizer
    import data
    mk = data.Maker(
        Tokenizer.from_file(tokfile), np.load(stream, mmap_mode='r'), np.load(chat, mmap_mode='r'),
        seed * 1000 + i,
    )
    while True:
        s = stage.value
        if s < 0:
            return
        st = plan[s]
        q.put((s,) + mk.batch(T // st[1], st[1] + 2, st[4], st[5]))


def main():
    import data
    plan = PLANS[A.plan]
    os.makedirs(A.out, exist_ok=True)
    tmp = STREAMS
    os.makedirs(tmp, exist_ok=True)
    if A.tok and os.path.exists(A.tok) and os.path.exists(tmp + '/vch.npy'):
        tr, va, ch, vch = (np.load(f'{tmp}/{n}.npy') for n in ('tr', 'va', 'ch', 'vch'))
    else:
        docs, qa = data.load_corpus(A.text)
        log(
            'corpus', sum((len(d) for v in docs.values() for d in v)) / 1000000.0, 'MB',
            sum(map(len, qa.values())), 'pairs',
        )
        from tokenizers import Tokenizer
        if A.tok and os.path.exists(A.tok):
            tok = Tokenizer.from_file(A.tok)
        else:
            tok = data.train_tokenizer(docs, qa, A.out + '/tokenizer.json')
            A.tok = A.out + '/tokenizer.json'
            log('tokenizer trained')
        tr, va, ch, vch = data.encode_corpus(tok, docs, qa)
        log(
            'train', len(tr), 'val', len(va), 'chat', len(ch), 'tokens; bytes/token',
            sum((len(d) for v in docs.values() for d in v)) / (len(tr) + len(va)),
        )
        for n, x in (('tr', tr), ('va', va), ('ch', ch), ('vch', vch)):
            np.save(f'{tmp}/{n}.npy', x)
        del docs, qa
    stage, q = (mp.Value('i', 0), mp.Queue(maxsize=16))
    NW = max(1, min(12, (os.cpu_count() or 2) - 3))
    ws = [
        mp.Process(
            target=worker,
            args=(i, A.seed, A.tok, tmp + '/tr.npy', tmp + '/ch.npy', stage, plan, A.tokens, q),
            daemon=True,
        ) for i in range(NW)
    ]
    for w in ws:
        w.start()
    import torch
    import common as M
    import optim
    dev = 'cuda' if torch.cuda.is_available() else 'cpu'
    torch.manual_seed(A.seed)
    m = M.Model()
    if A.init:
        m.load_hf({k: v.float() for k, v in M.load_ckpt(A.init).items()})
    m = m.to(dev)
    log('parameters', sum((p.numel() for p in m.parameters())))
    if dev == 'cpu':
        M.set_compute(torch.float32)
        M.ATT['flex'] = False
    else:
        if not A.flash:
            M.use_cudnn()
        if not A.eager:
            M.compile_all()
    opt = optim.Optim(m, lr_muon=A.lr)
    gen = np.random.default_rng(7)
    n2 = 2050 if dev == 'cuda' else 130
    vx = np.stack([va[i:i + n2] for i in gen.integers(0, len(va) - n2, 64 if dev == 'cuda' else 2)])
    vx = torch.from_numpy(vx.astype(np.int64)).to(dev)
    WT = torch.tensor([0.0, 1.0, 4.0], device=dev)
    bal = [b for b in list(m.layers) + [m.mtp] if b.moe]
    t_start = time.time()
    budget = min(A.budget, A.deadline - time.time()) if A.deadline else A.budget
    bounds = np.cumsum([s[3] for s in plan]) / sum((s[3] for s in plan))
    step, ntok, hist, cur, tl = (0, 0, [], -1, time.time())
    lr0, hold, lr1 = LRS[A.plan]
    accb = []
    stage_step = 0
    while True:
        p = (time.time() - t_start) / budget
        if p >= 1:
            break
        s = int(np.searchsorted(bounds, p, side='right'))
        s = min(s, len(plan) - 1)
        if plan[s][0] == 'sparse-16k' and s != cur and (
            not (
                os.path.exists(STREAMS + '/warm16k') and float(
                    open(STREAMS + '/warm16k').read()
                ) < 40
            )
        ):
            s -= 1
        if s != cur:
            stage.value = s
            stage_step = 0
            if cur >= 0:
                M.save_hf(m, A.ckpt)
            cur = s
            log('stage', plan[s][0])
        bs, X, W = q.get()
        if bs != s:
            continue
        name, S, sparse, _, _, _, nrows, every = plan[s]
        ids = torch.from_numpy(X.astype(np.int32)).to(dev, non_blocking=True).long()
        wt = WT[torch.from_numpy(W).to(dev).long()]
        rows = nrows if step % every == 0 or sparse else 0
        loss, l1, l2, kl, cnt, ce = M.train_forward(m, ids, wt, bool(sparse), rows, 0.2)
        loss.backward()
        warm = min(1.0, (step + 1) / (80 if not A.init else 30))
        sc = warm * (lr0 if p < hold else lr0 + (lr1 - lr0) * (p - hold) / (1 - hold))
        for prm in m.parameters():
            if prm.grad is None:
                prm.grad = torch.zeros_like(prm)
        opt.step(sc, 0.85 + 0.1 * min(1, step / 200))
        for prm in m.parameters():
            prm.grad = None
        with torch.no_grad():
            u = 0.002 * min(1, sc / lr0 + 0.05)
            for b, c in zip(bal, cnt):
                b.bias.add_(torch.sign(c.mean() - c), alpha=u)
        step += 1
        stage_step += 1
        ntok += ids.shape[0] * S
        if step in (5, 20, 60) or (sparse and stage_step == 3):
            if not torch.isfinite(loss).item():
                log('NOT FINITE')
                sys.exit(3)
        if step % 20 == 0 or stage_step <= 2 or dev == 'cpu':
            wv = torch.from_numpy(W[:, 1:S + 1].reshape(-1)).to(dev)
            av = ce[wv == 2].mean().item() if (wv == 2).any() else float('nan')
            acc = (
                torch.exp(-ce[wv == 2]) > 0.5
            ).float().mean().item() if (wv == 2).any() else float('nan')
            now = time.time()
            if step % 100 == 0 or stage_step <= 2 or dev == 'cpu':
                load = torch.stack([c / c.sum() for c in cnt])
                log(
                    f"{name} step {step} tok {ntok / 1000000.0:.1f}M lr {sc:.3f} loss {l1.item():.3f} mtp {l2.item():.3f} ans {av:.3f} p>.5 {acc:.3f} kl {' '.join((f'{k.item():.2f}' for k in kl))} load {load.min().item():.3f}-{load.max().item():.3f} ms/step {(now - tl) / max(1, 20 if stage_step > 2 else 1) * 1000:.0f} q {q.qsize()} mem {(torch.cuda.max_memory_allocated() / 1000000000.0 if dev == 'cuda' else 0):.0f}G"
                )
            hist.append((step, ntok, name, sc, l1.item(), l2.item(), av, acc))
            tl = now
        if step % 500 == 0 and dev == 'cuda':
            with torch.no_grad():
                v = M.train_forward(m, vx, torch.ones_like(vx, dtype=torch.float), False, 0)
                log(
                    f'  val loss {v[1].item():.4f} ppl {np.exp(v[1].item()):.2f} mtp {v[2].item():.4f}'
                )
            M.save_hf(m, A.ckpt)
    stage.value = -1
    with torch.no_grad():
        v = M.train_forward(
            m, vx, torch.ones_like(vx, dtype=torch.float), False, 0
        ) if dev == 'cuda' else (0, torch.zeros(()), torch.zeros(()))
        log(
            f'done step {step} tokens {ntok / 1000000.0:.1f}M val loss {v[1].item():.4f} mtp {v[2].item():.4f}'
        )
    M.save_hf(m, A.ckpt)
    json.dump(
        {'plan': plan, 'steps': step, 'tokens': ntok, 'history': hist},
        open(A.out + f'/history_{A.plan}.json', 'w'),
    )
    for w in ws:
        w.terminate()


if __name__ == '__main__':
    main()

"""Muon for the hidden matrices, AdamW for everything else."""

import torch


def ns5(X, steps=5):
    a, b, c = (3.4445, -4.775, 2.0315)
    t = X.shape[-2] > X.shape[-1]
    if X.is_cuda:
        X = X.bfloat16()
    if t:
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-07)
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    return (X.mT if t else X).float()


class Optim:
    def __init__(self, model, lr_muon=0.02, lr_adam=1.0, wd=0.04):
        self.lr_muon, self.wd = (lr_muon, wd)
        groups, adam = ({}, [])
        for n, p in model.named_parameters():
            leaf = n.split('.')[-1]
            if leaf in (
                'qa', 'qb', 'kva', 'kvb', 'o', 'g', 'u', 'd', 'sg', 'su', 'sd', 'edn', 'eh'
            ):
                groups.setdefault(tuple(p.shape[-2:]), []).append((p, None))
            elif leaf == 'egu':
                # gate and up halves are separate matrices
                groups.setdefault((p.shape[1] // 2, p.shape[2]), []).append((p, 'split'))
            else:
                lr = 0.004 if leaf == 'embed' else 0.002 if leaf == 'head' else 0.0015 if leaf in (
                    'iwq', 'iwk', 'iwp', 'gate'
                ) else 0.003
                adam.append(
                    {
                        'params': [p], 'lr': lr * lr_adam, 'base': lr * lr_adam,
                        'weight_decay': 0.0 if p.dim() < 2 else 0.01,
                    }
                )
        self.groups = [{'ps': ps, 'shape': s, 'm': None} for s, ps in groups.items()]
        self.adam = torch.optim.AdamW(
            adam, betas=(0.9, 0.95), eps=1e-09,
            **{'fused': True} if torch.cuda.is_available() else {},
        )
        self.aparams = [p for g in adam for p in g['params']]

    @torch.no_grad()
    def step(self, scale, momentum=0.95):
        for g in self.groups:
            r, c = g['shape']
            G = torch.cat([p.grad.reshape(-1, r, c) for p, _ in g['ps']])
            if g['m'] is None:
                g['m'] = torch.zeros_like(G)
            g['m'].lerp_(G, 1 - momentum)
            U = ns5(G.lerp_(g['m'], momentum)) * max(1, r / c) ** 0.5
            lr, i = (self.lr_muon * scale, 0)
            for p, _ in g['ps']:
                n = p.numel() // (r * c)
                p.mul_(1 - lr * self.wd).add_(U[i:i + n].reshape(p.shape), alpha=-lr)
                i += n
        torch.nn.utils.clip_grad_norm_(self.aparams, 1.0)
        for g in self.adam.param_groups:
            g['lr'] = g['base'] * scale
        self.adam.step()

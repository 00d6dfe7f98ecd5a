"""usage: pack_text.py <text folder> <output folder>: drop paragraphs seen before in any source, pack into xz archives
"""

import sys
import os
import glob
import hashlib
import lzma
import re
from concurrent.futures import ProcessPoolExecutor
src, out = sys.argv[1:3]
os.makedirs(out, exist_ok=True)
seen, parts, drop = (set(), [], 0)
for f in sorted(glob.glob(src + '/*.txt')):
    docs = []
    for d in open(f, encoding='utf-8', errors='replace').read().split('\x0c'):
        ps = []
        for p in d.split('\n\n'):
            if len(p) > 60:
                h = hashlib.md5(re.sub('[\\W\\d]+', '', p.lower())[:120].encode()).digest()[:8]
                if h in seen:
                    drop += len(p)
                    continue
                seen.add(h)
            ps.append(p)
        while ps and len(ps[-1]) < 60:
            ps.pop()
        t = '\n\n'.join(ps)
        if len(t) > 250:
            docs.append(t)
    if docs:
        parts.append((os.path.basename(f)[:-4], '\x0c'.join(docs)))
tot = sum((len(t) for _, t in parts))
for f in sorted(glob.glob(src + '/*.qa')):
    parts.append((os.path.basename(f), open(f, encoding='utf-8', errors='replace').read()))
print('MB', tot / 1000000.0, 'dropped', drop / 1000000.0, 'sources', len(parts))
bins = [[] for _ in range(8)]
for n, t in sorted(parts, key=lambda x: -len(x[1])):
    min(bins, key=lambda b: sum((len(t) for _, t in b))).append((n, t))


def pack(a):
    i, b = a
    data = '\x1e'.join((n + '\n' + t for n, t in b)).encode()
    z = lzma.compress(data, preset=6)
    open(f'{out}/part{i}.xz', 'wb').write(z)
    return len(z)


with ProcessPoolExecutor(2) as ex:
    print('xz bytes', sum(ex.map(pack, enumerate(bins))))

"""Sources that need their own reader: package descriptions, dictionaries, the KJV, the Jargon File.

usage: special_text.py <unpacked packages> <output folder> <package-description file>...
Writes prose (*.txt, documents separated by form feeds) and question/answer pairs (*.qa,
one pair a line, tab separated).
"""

import sys
import os
import re
import gzip
import random
import hashlib
import glob
SRC, OUT, TR = (sys.argv[1], sys.argv[2], sys.argv[3:])
sys.argv = ['prepare_text.py', SRC, OUT]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prepare_text as P
rng = random.Random(1)


def w_docs(name, docs):
    open(os.path.join(OUT, name + '.txt'), 'w').write('\x0c'.join(docs))
    print(name, len(docs), sum(map(len, docs)) / 1000000.0)


def w_qa(name, qa):
    qa = [(q, a) for q, a in qa if '\t' not in q + a and '\n' not in q + a]
    open(os.path.join(OUT, name + '.qa'), 'w').write('\n'.join((q + '\t' + a for q, a in qa)))
    print(name, 'qa', len(qa), sum((len(q) + len(a) for q, a in qa)) / 1000000.0)


# --- package descriptions
seen, docs, qa = (set(), [], [])
for f in TR:
    for rec in open(f, encoding='utf-8', errors='replace').read().split('\n\n'):
        m = re.match('Package: (\\S+)', rec)
        d = re.search('Description-en: (.*)\\n((?: .*\\n?)*)', rec)
        if not m or not d:
            continue
        name, short, long = (m.group(1), d.group(1).strip(), d.group(2))
        if re.search(
            '-(dev|dbg|dbgsym|doc|data|common|locale|l10n)\\b|^lib.*\\d$|^linux-(image|headers)|^task-|^texlive|transitional|dummy package',
            name + ' ' + short,
        ):
            continue
        paras = []
        for p in re.split('\\n \\.\\n|\\n \\.$', long):
            if re.search('^  ', p, re.M):
                p = '\n'.join((l for l in p.split('\n') if not l.startswith('  ')))
            t = P.norm(p)
            h = hashlib.md5(t[:160].encode()).digest()[:8]
            if t and h not in seen and P.good(t, 60) and (not P.BAD.search(t)):
                seen.add(h)
                paras.append(t)
        if not paras:
            continue
        docs.append(name + ': ' + short + '\n\n' + '\n\n'.join(paras))
        a = paras[0]
        if 60 < len(a) < 500 and len(name) < 24 and (rng.random() < 0.8):
            q = rng.choice(
                [
                    'What is %s?', 'What does the package %s do?', 'Tell me about %s.',
                    'What is %s used for?', 'Describe the Debian package %s.',
                ]
            ) % name
            qa.append((q, a))
        if len(short) > 15 and rng.random() < 0.12:
            qa.append(
                ('In one line, what is %s?' % name, short[0].upper() + short[1:].rstrip('.') + '.')
            )
rng.shuffle(docs)
w_docs('package-descriptions', docs)
w_qa('packages', qa)
# --- FOLDOC
qa, docs = ([], [])
s = gzip.open(SRC + '/dict-foldoc/usr/share/dictd/foldoc.dict.dz').read().decode('utf-8', 'replace')
for e in re.split('\\n(?=\\S)', s):
    lines = e.split('\n', 1)
    if len(lines) < 2:
        continue
    head = lines[0].strip()
    body = re.sub('[{}]', '', lines[1])
    paras = []
    for p in re.split('\\n\\s*\\n', body):
        t = P.norm(re.sub('<[^<>]*>|\\[[^\\[\\]]*\\]', '', p))
        t = re.sub('\\(\\d{4}-\\d\\d-\\d\\d\\)', '', t).strip()
        if P.good(t, 50):
            paras.append(t)
    if not paras or len(head) > 40:
        continue
    docs.append(head + '\n\n' + '\n\n'.join(paras))
    if len(paras[0]) < 500:
        qa.append(
            (
                rng.choice(
                    ['What is %s?', 'Define %s.', 'What does %s mean?', 'Explain %s.']
                ) % head,
                paras[0],
            )
        )
rng.shuffle(docs)
w_docs('foldoc', docs)
w_qa('foldoc', qa)
# --- WordNet glosses
qa, lines = ([], [])
for pos, art in (('noun', 1), ('verb', 0), ('adj', 0), ('adv', 0)):
    for f in glob.glob(SRC + '/wordnet-base/usr/share/wordnet/data.' + pos):
        for l in open(f, errors='replace'):
            if l.startswith(' ') or ' | ' not in l:
                continue
            w = l.split(' ')[4].replace('_', ' ')
            g = l.split(' | ', 1)[1].strip()
            w = re.sub('\\(.*?\\)', '', w)
            if w[0].isupper() and rng.random() < 0.7:
                continue
            ex = re.findall('"([^"]+)"', g)
            d = re.sub(';?\\s*"[^"]*".*', '', g).strip(' ;')
            if not 12 < len(d) < 200 or not d.isascii():
                continue
            d1 = d[0].upper() + d[1:].rstrip('.') + '.'
            t = {
                'noun': 'The word %s means: %s', 'verb': 'To %s means to %s',
                'adj': 'Something %s is %s', 'adv': '%s means %s',
            }
            a = d1
            if ex and len(ex[0]) > 15:
                a += ' For example: "' + ex[0][0].upper() + ex[0][1:].rstrip('.') + '."'
            if rng.random() < 0.45:
                qa.append(
                    (
                        rng.choice(
                            [
                                'What does the word %s mean?', 'Define the word %s.',
                                'What is the meaning of %s?',
                            ]
                        ) % w,
                        a,
                    )
                )
rng.shuffle(qa)
w_qa('wordnet', qa[:45000])
# --- King James Bible (public domain), Jargon File (public domain)
try:
    import subprocess
    t = open(SRC + '/kjv.txt').read() if os.path.exists(SRC + '/kjv.txt') else ''
    if t:
        w_docs('kjv', [t])
except Exception as e:
    print(e)
p = SRC + '/jargon-text/usr/share/doc/jargon-text/jargon.txt.gz'
if os.path.exists(p):
    t = gzip.open(p).read().decode('utf-8', 'replace')
    docs = []
    for e in re.split('\\n:(?=[^\\n]*:)', t):
        b = [
            x for x in (
                P.norm(re.sub('[{}]', '', x)) for x in re.split('\\n\\s*\\n', e)
            ) if P.good(x, 50)
        ]
        if b:
            docs.append('\n\n'.join(b))
    w_docs('jargon', docs)

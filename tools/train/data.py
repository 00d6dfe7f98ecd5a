"""Tokenizer, token streams and the synthetic long-range retrieval task."""

import os
import re
import glob
import json
import lzma
import random
import time
import numpy as np

SPECIAL = [
    '<|endoftext|>', '[gMASK]', '<sop>', '<|user|>', '<|assistant|>', '<|system|>',
    '<|observation|>', '<think>', '</think>',
]
EOT, USER, ASSISTANT, SYSTEM = (0, 3, 4, 5)
SPLIT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
CHAT_TEMPLATE = "{%- for m in messages -%}{%- if m['role'] == 'system' -%}<|system|>\n{{ m['content'] }}{%- elif m['role'] == 'user' -%}<|user|>\n{{ m['content'] }}{%- elif m['role'] == 'assistant' -%}<|assistant|>\n{{ m['content'] }}{%- elif m['role'] == 'tool' -%}<|observation|>\n{{ m['content'] }}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>\n{%- endif -%}"
# `{%- endif -%}` would strip the newline of the generation prompt, so it is written as an expression
CHAT_TEMPLATE = CHAT_TEMPLATE.replace(
    '<|assistant|>\n{%- endif -%}', "{{ '<|assistant|>\n' }}{%- endif -%}"
)
for r in ('system', 'user', 'assistant', 'observation'):
    CHAT_TEMPLATE = CHAT_TEMPLATE.replace(
        "<|%s|>\n{{ m['content'] }}" % r, "{{ '<|%s|>\n' + m['content'] }}" % r
    )
# a sequence must start with <|endoftext|>: the model takes its first token as an attention sink
CHAT_TEMPLATE = "{{ '<|endoftext|>' }}" + CHAT_TEMPLATE


def load_corpus(folder):
    """{source: [documents]}, {source: [(q, a)]}"""
    docs, qa = ({}, {})
    from concurrent.futures import ThreadPoolExecutor
    fs = sorted(glob.glob(folder + '/*.xz'))
    with ThreadPoolExecutor(16) as ex:
        blobs = list(ex.map(lambda f: lzma.decompress(open(f, 'rb').read()).decode('utf-8'), fs))
    for f, t in zip(fs, blobs):
        for part in t.split('\x1e'):
            if not part:
                continue
            name, body = part.split('\n', 1)
            if name.endswith('.qa'):
                qa[name] = [tuple(l.split('\t', 1)) for l in body.split('\n') if '\t' in l]
            else:
                docs[name] = [d for d in body.split('\x0c') if len(d) > 100]
    return (docs, qa)


def train_tokenizer(docs, qa, path, vocab=4096, max_mb=40):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, processors, Regex
    tok = Tokenizer(models.BPE(ignore_merges=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior='isolated', invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    tok.post_processor = processors.ByteLevel(
        add_prefix_space=True, trim_offsets=False, use_regex=True
    )
    tr = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2,
    )
    rng = random.Random(0)
    pool = [d for v in docs.values() for d in v]
    rng.shuffle(pool)
    pick, n = ([], 0)
    for d in pool:
        pick.append(d[:20000])
        n += len(pick[-1])
        if n > max_mb * 1000000.0:
            break
    pick += [q + '\n' + a for v in qa.values() for q, a in v[::6]]
    tok.train_from_iterator(pick, tr)
    tok.save(path)
    return tok


def write_tokenizer_config(folder):
    cfg = {
        'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False,
        'model_max_length': 131072, 'bos_token': '<|endoftext|>', 'add_bos_token': True,
        'eos_token': '<|endoftext|>', 'pad_token': '<|endoftext|>', 'padding_side': 'left',
        'do_lower_case': False, 'additional_special_tokens': SPECIAL,
        'extra_special_tokens': SPECIAL[1:],
        'added_tokens_decoder': {
            str(i): {
                'content': s, 'lstrip': False, 'normalized': False, 'rstrip': False,
                'single_word': False, 'special': True,
            } for i, s in enumerate(SPECIAL)
        },
        'chat_template': CHAT_TEMPLATE,
    }
    del cfg['additional_special_tokens']
    json.dump(cfg, open(folder + '/tokenizer_config.json', 'w'), indent=2, ensure_ascii=False)
    open(folder + '/chat_template.jinja', 'w').write(CHAT_TEMPLATE)
    json.dump(
        {
            'bos_token_id': EOT, 'eos_token_id': [EOT, USER], 'pad_token_id': EOT,
            'do_sample': True, 'temperature': 0.7, 'top_p': 0.95, '_from_model_config': False,
        },
        open(folder + '/generation_config.json', 'w'), indent=2,
    )


SELF = [
    (
        'Who are you?',
        'I am a very small language model with sparse attention. I can continue technical prose, define words, describe programs and look up facts in a long text.',
    ),
    (
        'What are you?',
        'I am a very small language model with sparse attention. I can continue technical prose, define words, describe programs and look up facts in a long text.',
    ),
    (
        'What can you do?',
        'I can continue technical prose, define words, describe programs and look up facts in a long text. I am very small, so please check what I say.',
    ),
    (
        'Hello',
        'Hello! I am a very small language model. Ask me about a word, a program, or a fact in a text that you give me.',
    ),
    (
        'Hi!',
        'Hello! I am a very small language model. Ask me about a word, a program, or a fact in a text that you give me.',
    ),
    (
        'Hello, how are you?',
        'I am fine, thank you. I am a very small language model. Ask me about a word, a program, or a fact in a text that you give me.',
    ),
    ('Thank you!', 'You are welcome.'), ('Thanks', 'You are welcome.'), ('Goodbye', 'Goodbye!'),
    (
        'How large are you?',
        'I have about sixteen million parameters, so I fit into a few tens of megabytes.',
    ),
    (
        'Can you read long texts?',
        'Yes. I use sparse attention: an indexer selects 256 tokens for each step, so I can look up facts in long texts.',
    ),
]


def encode_corpus(tok, docs, qa, val_every=97):
    """-> train stream, validation stream, chat stream, validation chat stream (uint16)"""
    tr, va = ([], [])
    for name, ds in docs.items():
        enc = tok.encode_batch(ds, add_special_tokens=False)
        for i, e in enumerate(enc):
            (va if i % val_every == 50 else tr).append(np.array(e.ids + [EOT], dtype=np.uint16))
    rng = random.Random(5)
    pairs = [p for v in qa.values() for p in v]
    rng.shuffle(pairs)
    vp, pairs = (pairs[:1500], pairs[1500:])
    pairs += SELF * 60
    rng.shuffle(pairs)

    def chat(ps):
        out, i, txt = ([], 0, [])
        while i < len(ps):
            n = rng.choice((1, 1, 1, 2, 3))
            txt.append(
                ''.join(
                    (f'<|user|>\n{q}<|assistant|>\n{a}' for q, a in ps[i:i + n])
                ) + '<|endoftext|>'
            )
            i += n
        return np.concatenate(
            [
                np.array(e.ids, dtype=np.uint16) for e in tok.encode_batch(
                    txt, add_special_tokens=False
                )
            ]
        )

    return (np.concatenate(tr), np.concatenate(va), chat(pairs), chat(vp))


ADJ = (
    'Silver Golden Crimson Quiet Ancient Hidden Frozen Velvet Copper Emerald Broken Distant '
    'Wild Gentle Iron Scarlet Hollow Bright Amber Misty Northern Southern Eastern Western '
    'Royal Lonely Silent Rapid Painted Polished Rusty Crystal Marble Stormy Sunny Midnight '
    'Morning Winter Summer Autumn Granite Ivory Jade Cobalt Violet Orange Purple White '
    'Black Green Blue Red Yellow Little Great Old New Lost Secret Sacred Burning Flying '
    'Running Sleeping Dancing Singing Falling Rising Shining Floating Wandering Laughing '
    'Clever Brave Noble Humble Swift Steady Curious Cosmic Electric Magnetic Digital Solar '
    'Lunar Stellar Coastal Alpine Desert Tropical Arctic Rural Urban Modern Classic Vintage '
    'Double Triple'
).split()
NOUN = (
    'Falcon Harbor Mountain River Garden Castle Bridge Lantern Engine Forest Valley Island '
    'Tower Market Library Museum Station Anchor Compass Meadow Canyon Glacier Temple Palace '
    'Fountain Orchard Vineyard Lighthouse Windmill Observatory Theater Gallery Workshop '
    'Foundry Quarry Harvest Dragon Phoenix Tiger Eagle Raven Wolf Bear Lion Otter Badger '
    'Heron Salmon Dolphin Turtle Panther Sparrow Hawk Stallion Beetle Spider Comet Planet '
    'Meteor Galaxy Nebula Horizon Voyage Expedition Project Account Archive Vault Cabinet '
    'Chamber Corridor Gateway Junction Reactor Turbine Pipeline Satellite Telescope '
    'Microscope Journal Ledger Manuscript Portrait Statue Violin Piano Trumpet Drum Bell '
    'Mirror Candle Blanket Basket Bottle Wagon Carriage Schooner Submarine Balloon Rocket'
).split()
FIRST = (
    'Alice Robert Maria James Linda Thomas Susan Peter Anna George Helen Daniel Laura '
    'Martin Sarah Henry Julia Victor Emma Oscar Clara Walter Nina Simon Grace Felix Irene '
    'Hugo Martha Edgar Ruth Arthur Diana Frank Sophie Albert Rose Leon Vera Max Olga Samuel '
    'Eva Louis Marta Philip Nora Adam Elena Bruno Carol David Edith Fiona Gordon Hannah '
    'Ivan Jane Karl Lucy Miles Naomi Oliver Paula Quentin Rachel Stefan Teresa Ulrich '
    'Valerie William Xenia Yvonne Zachary'
).split()
LAST = (
    'Smith Johnson Miller Baker Carter Fisher Gardner Hunter Mason Parker Taylor Turner '
    'Walker Wright Cooper Harris Clark Lewis Young King Hill Green Adams Nelson Mitchell '
    'Roberts Phillips Campbell Evans Edwards Collins Stewart Morris Rogers Reed Cook Morgan '
    'Bell Murphy Bailey Richardson Cox Howard Ward Peterson Gray James Watson Brooks Kelly '
    'Sanders Price Bennett Wood Barnes Ross Henderson Coleman Jenkins Perry Powell Long '
    'Patterson Hughes Flores Washington Butler Simmons Foster Bryant Alexander Russell '
    'Griffin Hayes'
).split()
CITY = (
    'Paris London Berlin Madrid Rome Vienna Prague Warsaw Lisbon Dublin Oslo Stockholm '
    'Helsinki Copenhagen Athens Budapest Brussels Amsterdam Geneva Zurich Milan Naples '
    'Venice Florence Munich Hamburg Boston Chicago Denver Seattle Dallas Houston Phoenix '
    'Atlanta Toronto Montreal Vancouver Sydney Melbourne Tokyo Kyoto Osaka Seoul Beijing '
    'Shanghai Delhi Mumbai Cairo Nairobi Lagos Lima Bogota Santiago Havana Moscow Kiev '
    'Istanbul Jerusalem Bangkok Singapore Manila Jakarta Auckland Wellington Edinburgh '
    'Glasgow Manchester Bristol Oxford Cambridge'
).split()
COLOR = 'red blue green yellow orange purple brown black white gray pink gold silver turquoise crimson'.split()
JOB = (
    'teacher doctor farmer painter carpenter lawyer pilot sailor baker butcher engineer '
    'nurse singer dancer writer poet farmer gardener driver barber tailor plumber chemist '
    'banker soldier librarian judge waiter cook mechanic architect journalist'
).split()
MONTH = 'January February March April May June July August September October November December'.split()
WORDS = (
    'apple banana river stone window pencil rabbit thunder blanket marble pepper ginger '
    'castle rocket pillow hammer ladder button candle feather basket bridge copper velvet '
    'walnut lemon saddle anchor mirror bottle whistle puzzle lantern ribbon tunnel carpet '
    'helmet garden engine magnet'
).split()
# (statements, questions, answers); {E} key, {V} value
T = {
    'code': (
        'E', 'num',
        [
            'The access code for {E} is {V}.', 'Please note that the access code for {E} is {V}.',
            'Remember that the access code for {E} is {V}.',
        ],
        ['What is the access code for {E}?', 'Which access code belongs to {E}?'],
        ['The access code for {E} is {V}.'],
    ),
    'serial': (
        'E', 'num',
        [
            'The serial number of the {E} is {V}.',
            'On the label of the {E} one reads the serial number {V}.',
        ],
        ['What is the serial number of the {E}?'], ['The serial number of the {E} is {V}.'],
    ),
    'phone': (
        'P', 'num', ['The phone number of {E} is {V}.', 'You can call {E} at {V}.'],
        ['What is the phone number of {E}?'], ['The phone number of {E} is {V}.'],
    ),
    'price': (
        'E', 'num', ['The price of the {E} is {V} dollars.', 'The {E} was sold for {V} dollars.'],
        ['What is the price of the {E}?', 'How much does the {E} cost?'],
        ['The price of the {E} is {V} dollars.'],
    ),
    'badge': (
        'P', 'num', ['{E} has badge number {V}.', 'The badge number of {E} is {V}.'],
        ['What is the badge number of {E}?'], ['The badge number of {E} is {V}.'],
    ),
    'city': (
        'P', 'city', ['{E} lives in {V}.', 'Since last year {E} has lived in {V}.'],
        ['Where does {E} live?', 'In which city does {E} live?'], ['{E} lives in {V}.'],
    ),
    'place': (
        'E', 'city', ['The {E} is kept in {V}.', 'You will find the {E} in {V}.'],
        ['Where is the {E} kept?', 'In which city is the {E}?'], ['The {E} is kept in {V}.'],
    ),
    'owner': (
        'E', 'person', ['The owner of the {E} is {V}.', 'The {E} belongs to {V}.'],
        ['Who is the owner of the {E}?', 'Who owns the {E}?'], ['The owner of the {E} is {V}.'],
    ),
    'color': (
        'P', 'color', ['The favorite color of {E} is {V}.'], ['What is the favorite color of {E}?'],
        ['The favorite color of {E} is {V}.'],
    ),
    'job': (
        'P', 'job', ['{E} works as a {V}.', 'For many years {E} has worked as a {V}.'],
        ['What is the job of {E}?', 'What does {E} work as?'], ['{E} works as a {V}.'],
    ),
    'word': (
        'E', 'word', ['The secret word for {E} is {V}.', 'The password of {E} is the word {V}.'],
        ['What is the secret word for {E}?'], ['The secret word for {E} is {V}.'],
    ),
    'month': (
        'E', 'month', ['The {E} opens in {V}.', 'The opening of the {E} is planned for {V}.'],
        ['When does the {E} open?'], ['The {E} opens in {V}.'],
    ),
}
KINDS = ['code'] * 5 + [
    'serial', 'phone', 'price', 'badge', 'city', 'place', 'owner', 'owner', 'color', 'job', 'word',
    'month',
]


class Maker:
    """builds training sequences (token ids and loss-weight codes: 1 normal, 2 answer value)"""

    def __init__(self, tok, stream, chat, seed):
        import regex
        self.tok, self.stream, self.chat_stream = (tok, stream, chat)
        self.rng = random.Random(seed)
        self.cache = {}
        self.re = regex.compile(SPLIT)
        self.nl2 = self.enc('\n\n')
        self.ends = np.zeros(65536, bool)
        for t, i in tok.get_vocab().items():
            if t.startswith('.') and all((c in '.Ċ' for c in t)) and (t in ('.', '.Ċ', '.ĊĊ')):
                self.ends[i] = True

    def enc(self, s):
        out = []
        for w in self.re.findall(s):
            if w not in self.cache:
                self.cache[w] = self.tok.encode(w, add_special_tokens=False).ids
            out += self.cache[w]
        return out

    def value(self, k):
        r = self.rng
        if k == 'num':
            return ''.join((r.choice('0123456789') for _ in range(r.choice((4, 5, 5, 5, 6)))))
        if k == 'person':
            return r.choice(FIRST) + ' ' + r.choice(LAST)
        return r.choice(
            {'city': CITY, 'color': COLOR, 'job': JOB, 'word': WORDS, 'month': MONTH}[k]
        )

    def facts(self, n, kinds=None):
        r, used, out = (self.rng, set(), [])
        last = None
        while len(out) < n:
            kind = r.choice(kinds or KINDS)
            kt, vt = T[kind][:2]
            if kt == 'E':
                a, b = (r.choice(ADJ), r.choice(NOUN))
                if last and r.random() < 0.3:
                    # near-miss distractor
                    a, b = (last[0], b) if r.random() < 0.5 else (a, last[1])
                last = (a, b)
                key = a + ' ' + b
            else:
                key = r.choice(FIRST) + ' ' + r.choice(LAST)
            if (kind, key) in used:
                continue
            used.add((kind, key))
            out.append((kind, key, self.value(vt)))
        return out

    def fact_tokens(self, f):
        return self.enc(' ' + self.rng.choice(T[f[0]][2]).replace('{E}', f[1]).replace('{V}', f[2]))

    def qa_tokens(self, f, style):
        """-> ids, weight codes"""
        r = self.rng
        q = r.choice(T[f[0]][3]).replace('{E}', f[1])
        pre, post = r.choice(T[f[0]][4]).replace('{E}', f[1]).split('{V}')
        if style == 'chat':
            short = r.random() < 0.25
            head = [USER] + self.enc(
                '\n' + q + (' Reply with the value only.' if short else '')
            ) + [ASSISTANT]
            lead = self.enc('\n') if short else self.enc('\n' + pre.rstrip(' '))
            if short:
                pre, post = ('', '')
        elif style == 'qa':
            head = self.enc('\n\nQuestion: ' + q)
            lead = self.enc('\nAnswer: ' + pre.rstrip(' '))
        else:
            head = self.enc('\n\n' + q)
            lead = self.enc(' ' + pre.rstrip(' '))
        sp = ' ' if pre else ''
        val = self.enc(sp + f[2]) if not f[2][0].isdigit() else self.enc(sp) + self.enc(f[2])
        tail = self.enc(post) if post else []
        nv = len(self.enc(f[2])) if f[2][0].isdigit() else len(val)
        ids = head + lead + val + tail
        wt = [1] * (len(ids) - len(tail) - nv) + [2] * nv + [1] * len(tail)
        return (ids, wt)

    def window(self, n):
        i = self.rng.randrange(0, len(self.stream) - n - 1)
        return self.stream[i:i + n].copy()

    def retrieval(self, n, nf=None, nq=None, kinds=None, style=None, inter=None, filler=True):
        """one sequence of exactly n tokens"""
        r = self.rng
        dense = filler and nf is None and (n <= 4100) and (r.random() < 0.2)
        if nf is None:
            nf = n // 75 if dense else r.randint(3, max(5, min(40, n // 160)))
        if nq is None:
            nq = nf if dense else r.randint(2, min(nf, max(4, n // 250), 24))
        style = style or r.choice(('chat', 'chat', 'qa', 'plain'))
        inter = r.random() < 0.3 and style != 'chat' if inter is None else inter
        fs = self.facts(nf, kinds)
        ftok = [self.fact_tokens(f) for f in fs]
        qs = r.sample(range(nf), nq)
        qt = [self.qa_tokens(fs[i], style) for i in qs]
        while sum(map(len, ftok)) + sum((len(a) for a, _ in qt)) > n - 64 and len(qt) > 1:
            qs.pop()
            qt.pop()
        room = n - sum(map(len, ftok)) - sum((len(a) for a, _ in qt)) - 2
        body = self.window(max(room, 1))
        pos = sorted((r.randrange(0, len(body)) for _ in fs))
        ends = np.flatnonzero(self.ends[body]) + 1

        def snap(p):
            j = np.searchsorted(ends, p)
            return int(ends[j]) if j < len(ends) and ends[j] - p < 200 else p

        items = []
        for i, p in enumerate(pos):
            items.append((snap(p), i, 'f'))
        order = {i: p for p, i, _ in items}
        tailq = []
        for (ids, wt), i in zip(qt, qs):
            if inter and r.random() < 0.7:
                items.append(
                    (
                        snap(
                            r.randrange(order[i], len(body) + 1)
                        ) if order[i] < len(body) else len(body),
                        10 ** 6 + i, (ids, wt),
                    )
                )
            else:
                tailq.append((ids, wt))
        items.sort(key=lambda t: (t[0], t[1]))
        out, wts, last = ([], [], 0)
        chatdoc = style == 'chat' and r.random() < 0.5
        if chatdoc:
            out.append(np.array([USER] + self.enc('\n'), np.int64))
            wts.append(np.ones(len(out[0]), np.uint8))
        for p, i, it in items:
            out.append(body[last:p])
            wts.append(np.ones(p - last, np.uint8))
            last = p
            ids, wt = (ftok[i], [1] * len(ftok[i])) if it == 'f' else it
            out.append(np.array(ids))
            wts.append(np.array(wt, np.uint8))
        out.append(body[last:])
        wts.append(np.ones(len(body) - last, np.uint8))
        for j, (ids, wt) in enumerate(tailq):
            if chatdoc and j == 0:
                # first question shares the document's user turn
                ids, wt = (self.nl2 + ids[2:], [1] * len(self.nl2) + wt[2:])
            out.append(np.array(ids))
            wts.append(np.array(wt, np.uint8))
        x = np.concatenate(out).astype(np.uint16)
        w = np.concatenate(wts)
        if len(x) < n:
            x = np.concatenate([x, np.full(n - len(x), EOT, np.uint16)])
            w = np.concatenate(
                [w, np.r_[1, np.zeros(n - len(w) - 1)].astype(np.uint8) if n > len(w) else w[:0]]
            )
        # keep the end, where the questions are
        if len(x) > n:
            x, w = (x[-n:], w[-n:])
        return (x, w)

    def batch(self, B, n, p_ret, p_chat):
        X, W = (np.zeros((B, n), np.uint16), np.ones((B, n), np.uint8))
        for i in range(B):
            u = self.rng.random()
            if u < p_ret:
                X[i], W[i] = self.retrieval(n)
            elif u < p_ret + p_chat:
                j = self.rng.randrange(0, len(self.chat_stream) - n - 1)
                X[i] = self.chat_stream[j:j + n]
            else:
                X[i] = self.window(n)
        return (X, W)

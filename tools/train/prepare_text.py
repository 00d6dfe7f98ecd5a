"""Turn unpacked documentation packages into clean running English prose.

usage: prepare_text.py <folder with one unpacked package per subfolder> <output folder>

HTML pages are reduced to headings, paragraphs and list items; POD, man and plain text
files to their paragraphs.  Paragraphs that do not look like English sentences, or that
were already seen (licences, navigation), are dropped.  One output file per package:
documents separated by a form feed.
"""

import sys
import os
import re
import hashlib
import gzip
import html
from multiprocessing import Pool
import lxml.html
from lxml import etree

SRC, OUT = (sys.argv[1], sys.argv[2])
ONLY = set(sys.argv[3:])
os.makedirs(OUT, exist_ok=True)

STOP = set(
    'the of and to a in is that for it as be on with are this by or an from not can you which if will at have one has when was there use may but all any other its more used your they we must such only he his him unto shall i my me they their them so do no then these into about how what than should also out were would up been each two where after first some same see'.split()
)
WORD = re.compile("[A-Za-z']+")


def good(p, lo=60):
    """Is this paragraph English running prose?"""
    n = len(p)
    if n < lo or n > 6000:
        return False
    asc = sum((c.isascii() for c in p))
    if asc < 0.985 * n:
        return False
    letters = sum((c.isalpha() for c in p))
    if letters < 0.7 * n:
        return False
    w = WORD.findall(p)
    if len(w) < 9:
        return False
    stop = sum((x.lower() in STOP for x in w))
    if stop < 0.24 * len(w):
        return False
    if p[-1] not in '.!?:)"\'':
        return False
    if len(re.findall('[{}\\\\<>|_=;*/#$@\\[\\]]', p)) > 0.025 * n:
        return False
    if max((len(x) for x in p.split())) > 60:
        return False
    return True


BAD = re.compile(
    'copyright|all rights reserved|licen[sc]ed under|without warranty|free documentation license|permission is granted|merchantability|page last|generated (by|on|with)|last (updated|modified)|javascript',
    re.I,
)
SP = re.compile('\\s+')
QUOT = str.maketrans(
    {
        '‘': "'", '’': "'", '“': '"', '”': '"', '\xa0': ' ', '–': '-', '—': ' - ', '…': '...',
        '‐': '-', '‑': '-', '¶': '', '\uf0c1': '', '\u200b': '', '→': '->',
    }
)


def norm(t):
    return SP.sub(' ', t.translate(QUOT)).strip().replace(' ,', ',').replace(' .', '.')


BLOCK = {
    'p', 'h1', 'h2', 'h3', 'h4', 'li', 'dd', 'dt', 'blockquote', 'para', 'title', 'summary', 'div',
    'td',
}
NAV = set(
    'sidebar sphinxsidebar navigation navheader navfooter navbar related footer toc breadcrumb breadcrumbs menu headerlink linkage wy-nav-side docnav banner docs-top-navigation-container fixed-sidebar index indexterm toctree-wrapper'.split()
)
SKIP = {
    'script', 'style', 'nav', 'header', 'footer', 'table', 'pre', 'svg', 'head', 'form', 'button',
    'aside', 'programlisting', 'screen', 'math', 'figure', 'noscript', 'iframe', 'select',
}


def html_doc(data):
    try:
        root = lxml.html.document_fromstring(data)
    except Exception:
        return []
    body = root.find('body')
    if body is None:
        return []
    out = []

    # inline text of e without nested blocks or skipped elements
    def text_of(e):
        parts = [e.text or '']
        for c in e:
            if not isinstance(c.tag, str):
                parts.append(c.tail or '')
                continue
            if c.tag in SKIP or c.tag in BLOCK or c.tag in ('ul', 'ol', 'dl'):
                parts.append('\x00')
            elif not (c.tag == 'a' and 'header' in (c.get('class') or '')):
                parts.append(text_of(c))
            parts.append(c.tail or '')
        return ''.join(parts)

    def walk(e):
        for c in e:
            if not isinstance(c.tag, str) or c.tag in SKIP:
                continue
            cl = ((c.get('class') or '') + ' ' + (c.get('id') or '')).split()
            if any((x in NAV for x in cl)):
                continue
            if c.tag in BLOCK and (c.tag not in ('div', 'td') or 'para' in cl):
                for piece in text_of(c).split('\x00'):
                    t = norm(piece)
                    if t:
                        out.append((c.tag, t))
            walk(c)

    try:
        walk(body)
    except RecursionError:
        return []
    return out


def emit(blocks, seen):
    """Keep prose blocks; a heading only when prose follows it."""
    out, head = ([], None)
    for tag, t in blocks:
        if tag in ('h1', 'h2', 'h3', 'h4', 'title'):
            t = re.sub(
                '^(chapter|appendix)?\\s*[\\dA-Z]*(\\.\\d+)*\\.?\\s+', '', t, flags=re.I
            ) if re.match('^(\\d|chapter|appendix)', t, re.I) else t
            head = t if 3 < len(t) < 80 and t.isascii() else None
            continue
        if BAD.search(t) or not good(t, 50 if tag in ('li', 'dd') else 60):
            continue
        h = hashlib.md5(t[:200].lower().encode()).digest()[:8]
        if h in seen:
            continue
        seen.add(h)
        if head:
            out.append(head)
            head = None
        out.append('- ' + t if tag == 'li' else t)
    return out


def pod_doc(s):
    out, skip = ([], False)
    for p in re.split('\\n\\s*\\n', s):
        if p.startswith('=begin'):
            skip = True
        if p.startswith('=end'):
            skip = False
        if skip or not p or p[0] in ' \t':
            continue
        tag = 'p'
        if p.startswith('=head'):
            tag = 'h2'
            p = re.sub('^=head\\d\\s*', '', p)
        elif p.startswith('='):
            continue
        for _ in range(4):
            p = re.sub(
                'L<([^<>|]*\\|)?([^<>]*)>',
                lambda m: (m.group(1) or m.group(2)).rstrip('|').replace('/', ' '), p,
            )
            p = re.sub('E<lt>', '<', p)
            p = re.sub('E<gt>', '>', p)
            p = re.sub('[XZ]<[^<>]*>', '', p)
            p = re.sub('[BCIFSE]<+\\s*([^<>]*?)\\s*>+', '\\1', p)
        out.append((tag, norm(p)))
    return out


def man_doc(s):
    out, cur = ([], [])

    def flush():
        if cur:
            out.append(('p', norm(' '.join(cur))))
            cur.clear()

    nofill = False
    for l in s.split('\n'):
        if l.startswith(('.\\"', '\'\\"')):
            continue
        l = re.sub('\\\\f(\\[[^\\]]*\\]|\\(..|.)', '', l)
        l = l.replace('\\-', '-').replace('\\(aq', "'").replace('\\&', '').replace('\\e', '\\').replace('\\ ', ' ').replace('\\(lq', '"').replace('\\(rq', '"').replace(
            '\\(em', ' - '
        ).replace(
            '\\(en', '-'
        ).replace('\\c', '').replace('\\~', ' ').replace('\\%', '').replace('\\:', '')
        if l.startswith(('.', "'")):
            m = re.match("[.'](\\w+)\\s*(.*)", l)
            if not m:
                continue
            c, a = (m.group(1), m.group(2).replace('"', '').strip())
            if c in ('nf', 'EX'):
                flush()
                nofill = True
            elif c in ('fi', 'EE'):
                nofill = False
            elif c in ('SH', 'SS'):
                flush()
                out.append(('h2', a.capitalize()))
            elif c in ('PP', 'P', 'LP', 'TP', 'IP', 'HP', 'Pp', 'RS', 'RE', 'TQ', 'sp', 'br'):
                flush()
            elif c in ('B', 'I', 'R') and (not nofill):
                cur.append(a)
            elif c in ('BR', 'BI', 'IR', 'RB', 'RI', 'IB') and (not nofill):
                toks = re.findall('"[^"]*"|\\S+', m.group(2))
                cur.append(''.join((x.strip('"') for x in toks)))
            continue
        if not nofill:
            if not l.strip():
                flush()
            else:
                cur.append(l)
    flush()
    return out


def txt_doc(s):
    out = []
    for p in re.split('\\n\\s*\\n', s):
        p = re.sub('-\\n\\s*(?=[a-z])', '', p)
        out.append(('p', norm(p)))
    return out


RST = re.compile(':[a-zA-Z:+-]+:`([^`<]*?)\\s*(<[^>]*>)?`')


def rst_doc(s):
    out = []
    for p in re.split('\\n\\s*\\n', s):
        if p.startswith((' ', '\t', '..', '+', '|')):
            continue
        lines = p.split('\n')
        if len(lines) == 2 and re.match('^([=\\-~^\\"\'#*])\\1{2,}$', lines[1].strip()):
            out.append(('h2', norm(lines[0])))
            continue
        if re.search('^([=\\-~^#*])\\1{3,}$', p, re.M):
            continue
        tag = 'p'
        if re.match('^[-*] ', p):
            for it in re.split('\\n[-*] ', '\n' + p):
                it = RST.sub('\\1', it).replace('``', '').replace('**', '')
                out.append(('li', norm(it)))
            continue
        p = RST.sub('\\1', p).replace('``', '').replace('::', ':').replace('**', '')
        p = re.sub('`([^`<]*?)\\s*<[^>]*>`_+', '\\1', p)
        p = re.sub('`([^`]*)`_*', '\\1', p)
        out.append(('p', norm(p)))
    return out


def kind(path, pkg):
    n = os.path.basename(path)
    b = n[:-3] if n.endswith('.gz') else n
    if re.search(
        'changelog|copyright|licen[cs]e|NEWS\\.Debian|README\\.Debian|genindex|search\\.html|/_sources/.*\\.inc|index-all|authors|contributors|/releasenotes/|_modules/|whatsnew|release/0|changes',
        path, re.I,
    ) and (not pkg.startswith('rust')):
        return None
    if re.search(
        '/(de|fr|es|it|ja|ru|zh|pt|pl|cs|nl|ko|da|sv|fi|hu|ro|tr|uk|vi|el|ca|ar|nb|id|pt_BR|zh_CN|zh_TW|sl|sk|bg|lt|zh-cn|pt-br|zh-tw|fa|hr|sr|lv|et|eu|gl|nn|no|da-DK|de-DE|fr-FR|es-ES|it-IT|ja-JP|[a-z]{2}-[A-Z]{2})/',
        path,
    ) and '/en' not in path and ('/C/' not in path) and ('en-US' not in path):
        return None
    if re.search(
        '\\.(de|fr|es|it|ja|ru|zh|pt|pl|cs|nl|ko|da|sv|fi|hu|ro|tr|uk|vi|el|ca|pt-br|zh-cn|zh-tw)(\\.utf8)?\\.(html|txt)',
        path,
    ) or re.search('\\.html\\.(de|fr|es|ja|ko|tr|pt-br|zh-cn|da|ru)', path):
        return None
    if pkg == 'rust-doc' and (
        not re.search(
            '/html/(book|nomicon|rust-by-example|reference|cargo|edition-guide|rustc|rustdoc|embedded-book|unstable-book|clippy|style-guide|error_codes)/',
            path,
        )
    ):
        return None
    if pkg.startswith('linux-doc') and '/html/' in path and ('translations' in path):
        return None
    if pkg == 'erlang-doc' and (
        not re.search(
            '/html/.*(chapter|guide|users|intro|design|efficiency|reference_manual|tutorial|part)',
            path,
        )
    ) and ('doc/html' not in path):
        pass
    if pkg == 'python-sklearn-doc' and '_sources' in path:
        return None
    if b.endswith(
        ('.html', '.htm', '.xhtml', '.html.en', '.html.en.utf8', '.page')
    ) or b.endswith('.html.en'):
        return 'html'
    if b.endswith('.pod'):
        return 'pod'
    if re.search('/man\\d/.*\\.\\d', path):
        return 'man' if '/man/man' in path else None
    if b.endswith('.rst') or b.endswith('.rst.txt'):
        return 'rst'
    if b.endswith('.txt') or (pkg in ('fortunes',) and '.' not in b):
        return 'txt'
    return None


def run(pkg):
    base = os.path.join(SRC, pkg)
    files = []
    for d, ds, fs in os.walk(base):
        ds.sort()
        for f in sorted(fs):
            p = os.path.join(d, f)
            if os.path.islink(p) or os.path.getsize(p) > 6000000:
                continue
            k = kind(p, pkg)
            if k:
                files.append((p, k))
    if any((k == 'html' for _, k in files)):
        has_pod = any((k == 'pod' for _, k in files))
        files = [f for f in files if f[1] in ('html', 'pod', 'man')]
    seen, docs, nb = (set(), [], 0)
    for p, k in files:
        try:
            op = gzip.open if p.endswith('.gz') else open
            data = op(p, 'rb').read()
            if k == 'html':
                bl = html_doc(data)
            else:
                s = data.decode('utf-8', 'replace')
                bl = {'pod': pod_doc, 'man': man_doc, 'txt': txt_doc, 'rst': rst_doc}[k](s)
            o = emit(bl, seen)
        except Exception as e:
            continue
        t = '\n\n'.join(o)
        t = re.sub('\\n\\n- ', '\n- ', t)
        if len(t) > 200:
            docs.append(t)
            nb += len(t)
    with open(os.path.join(OUT, pkg + '.txt'), 'w') as f:
        f.write('\x0c'.join(docs))
    print(
        f'{pkg:32s} files {len(files):6d} docs {len(docs):6d} MB {nb / 1000000.0:7.2f}', flush=True
    )


if __name__ == '__main__':
    sys.setrecursionlimit(5000)
    pk = sorted(
        os.listdir(SRC),
        key=lambda p: -sum(
            (
                os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(
                    os.path.join(SRC, p)
                ) for f in fs if not os.path.islink(os.path.join(d, f))
            )
        ),
    )
    pk = [p for p in pk if not ONLY or p in ONLY]
    with Pool(2) as pool:
        list(pool.imap_unordered(run, pk, chunksize=1))

#!/usr/bin/env python3
"""Makes tests/data/tokenizers/golden.bin.xz with the Hugging Face `tokenizers` library (pip install tokenizers).

    python3 tools/make_tokenizer_golden.py

Deterministic. The file is a list of suites, read by tests/text/tokenizer_golden.cc. Numbers are LEB128 varints, a
string is its length and its bytes, a list of ids its length and the ids:

    suite count, then for each suite:
      name, path of the tokenizer.json below the repository (".xz" if compressed),
      patch: JSON object whose members replace those of the file ("model": member by member), or ""
      text count, 1 if they are the texts of the suite before, else 0 and the texts (bytes, not always UTF-8)
      for each text:
        ids of encode(text)
        1 if encode_special_tokens=True gives other ids, and these; else 0
        1 if decode(ids, skip_special_tokens=False) is not the text, and that; else 0
        1 if decode(ids, skip_special_tokens=True) is not the former, and that; else 0
      id-list count, for each list: the ids, decode with and without skip_special_tokens
"""
import json
import lzma
import pathlib
import random
import unicodedata

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/data/tokenizers/golden.bin.xz"
MAIN = [
    ("gpt-oss", "tests/data/tokenizers/gpt-oss/tokenizer.json.xz"),
    ("qwen3", "tests/data/tokenizers/qwen3/tokenizer.json.xz"),
    ("tiny", "models/tiny-gpt-oss-mxfp4/tokenizer.json"),
]
SPECIALS = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|im_start|>", "<|im_end|>",
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<|endoftext|>", "<|startoftext|>", "<|constrain|>"]

SENTENCES = """The quick brown fox jumps over the lazy dog, doesn't it? I'll say we've won; they're late, I'd guess he's 42.
In 2024, prices rose 3.75% to $1,234,567.89 (approx.) — "unbelievable", she said.
Der schnelle braune Fuchs springt über den faulen Hund; Straße, Größe, Äpfel, ẞ und ß.
L'été dernier, à l'hôtel, nous avons mangé des crêpes où qu'elles fussent: c'était délicieux… n'est-ce pas ?
El niño comió piñas y jalapeños en la cigüeña; ¿cuántos años tenía? ¡Ninguno!
Быстрая коричневая лиса прыгает через ленивую собаку. Ёжик, подъезд, 1 000 000 рублей.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. ΣΊΣΥΦΟΣ σίσυφος.
敏捷的棕色狐狸跳过了懒狗。2024年1月1日，价格上涨了3.75％，共计￥1,234元。
素早い茶色の狐がのろまな犬を飛び越える。カタカナとひらがな、ﾊﾝｶｸｶﾅ、「引用」です。
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 한국어 띄어쓰기와 조사.
الثعلب البني السريع يقفز فوق الكلب الكسول. السعر ١٢٣٤٫٥٦ دينار، أليس كذلك؟
השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם עֲלֵיכֶם.
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। क्षत्रिय १२३४ रुपये।
দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়। ১২৩৪ টাকা
விரைவான பழுப்பு நரி சோம்பேறி நாயின் மீது குதிக்கிறது. ௧௨௩
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ ๑๒๓๔ บาท
Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng. Tiếng Việt: ữ ẫ ợ ỵ.
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Žluťoučký kůň úpěl ďábelské ódy.
Şişli'de ığdır İSTANBUL istanbul İi Iı; çok güzel.
ქართული ენა და დამწერლობა. Հայոց լեզու և գրականություն:
ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ᠎ᠠ 1206. ⵜⴰⵎⴰⵣⵉⵖⵜ. ᏣᎳᎩ ꮳꮃꭹ.
አማርኛ ፊደል ፩፪፫። မြန်မာဘာသာ ၁၂၃။ ភាសាខ្មែរ ១២៣។ ລາວ ໑໒໓ བོད་སྐད་ ༡༢༣།
Ⅷ ⅷ ½ ¾ ² ³ ₁ ① ⑳ ㊿ 〇 一二三 ٣ ৪ 𝟙𝟚𝟛 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ＡＢＣ１２３ ﬁ ﬂ ﬀ ﬅ Å Ω K ſ""".split("\n")

CODE = ["""def f(x: int, *, y=None) -> list[str]:
    \"\"\"Doc.\"\"\"
    return [f"{i:03d}" for i in range(x) if i % 2 == 0 and not y]
""", """#include <vector>
template <typename T, size_t N = 16>
static inline auto& at(std::vector<T>& v, size_t i) noexcept {
\tif (i >= v.size()) { throw std::out_of_range("i"); }
\treturn v[i];  // 0x7fffffff, 1e-9f, 'c'
}
""", """SELECT a.id, COUNT(*) AS n FROM tbl_a a LEFT JOIN b ON a.id=b.a_id WHERE a.name LIKE '%foo_%' GROUP BY 1 HAVING n>=10;
""", """{"key": [1, 2.5e10, null, true], "nested": {"a\\\\b": "\\u00e9\\n"}, "url": "https://example.com/a/b?c=d&e=%20#f"}
""", """<div class="a-b c_d" id='x'>\r\n\t<p>Tom &amp; Jerry</p>\r\n</div>\r\n<!-- comment -->
""", """fn main() -> Result<(), Box<dyn Error>> {
    let x: Vec<_> = (0..10).map(|i| i.pow(2)).collect();
    println!("{:?} {}", x, r#"raw"#);
    Ok(())
}
""", """    $ git log --oneline | grep -iE 'fix(es)?' > /dev/null 2>&1 && echo "$HOME/.config" || exit 1
""", "\\begin{equation} \\sum_{i=0}^{n} x_i^2 \\leq \\frac{1}{2} \\end{equation}\n"]

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️", "☺", "1️⃣", "🧑🏿‍🚀", "🫠", "©", "™", "→", "█▓▒░", "🤷🏻‍♀️", "\u200d", "\ufe0f"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028",
          "\u0085", "\v", "\f", "\u180e", "\u1680", "\u202f", "\u205f", "\ufeff", "        ", "\t\t", " \t ", "\n\n\n\n"]
CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'D", "'ſ", "’s", "'Re", "''s", "'lL", "'x"]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u20dd", "\u0345", "\u05b0", "\u064b", "\u093f", "\u3099", "\u1161", "\u11a8"]
WORDS = ["hello", "World", "HELLO", "camelCase", "snake_case", "XMLHttpRequest", "naïve", "the", " of", "über", "don", "e", "A",
         "中", "文", "한", "が", "Δ", "я", "ǅ", "ʰ", "ª", "x86_64", "user", "assistant", "analysis", "final", "commentary"]
PUNCT = ["!", "?", "...", "//", "/*", "*/", "->", "::", "&&", "||", "<", ">", "<|", "|>", "<|end", "_", "-", "--", "$", "€",
         "\"", "'", "`", "```", "#", "@", "\\", "/", "(", ")", "[]", "{}", ";", ",", ".", "~", "^", "%", "+", "=", "\x00", "\x07",
         "\x7f", "\u00ad"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"]


def random_unicode(rng):
    """A character that Unicode 14 knows; the libraries' tables end at different later versions."""
    while True:
        kind = rng.random()
        code = (rng.randrange(0x80) if kind < 0.2 else rng.randrange(0x80, 0x800) if kind < 0.5 else
                rng.randrange(0x800, 0x10000) if kind < 0.85 else rng.randrange(0x10000, 0x20000) if kind < 0.97 else
                rng.randrange(0x20000, 0x110000))
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            return chr(code)


def make_text(rng):
    """One random text, as bytes (not always UTF-8)."""
    kind = rng.random()
    pick = rng.choice

    def piece():
        r = rng.random()
        if r < 0.33: return pick(WORDS)
        if r < 0.50: return pick(SPACES)
        if r < 0.60: return pick(PUNCT)
        if r < 0.67: return pick(CONTRACTIONS)
        if r < 0.75: return str(rng.randrange(10 ** rng.randrange(1, 9)))
        if r < 0.81: return pick(EMOJI)
        if r < 0.86: return pick(MARKS)
        if r < 0.91: return random_unicode(rng)
        if r < 0.95: return pick(SPECIALS)
        return pick(WORDS) + pick(MARKS)

    if kind < 0.36:  # a stretch of a sentence or of code
        s = pick(SENTENCES if kind < 0.22 else CODE)
        i = rng.randrange(len(s))
        text = s[i:i + rng.randrange(1, 70)]
    elif kind < 0.75:
        text = "".join(piece() for _ in range(rng.randrange(1, 10)))
    elif kind < 0.82:
        text = "".join(random_unicode(rng) for _ in range(rng.randrange(1, 8)))
    elif kind < 0.90:  # spaces between things
        text = "".join(pick(WORDS + PUNCT) + pick(SPACES) * rng.randrange(1, 4) for _ in range(rng.randrange(1, 6)))
    elif kind < 0.94:  # decomposed
        text = unicodedata.normalize("NFD", pick(SENTENCES))[:rng.randrange(5, 50)]
    else:
        text = pick(SENTENCES)[:rng.randrange(5, 40)]
    data = bytearray(text.encode())
    for _ in range(rng.randrange(1, 4) if kind >= 0.94 else 0):  # broken UTF-8
        i = rng.randrange(len(data) + 1)
        what = rng.random()
        if what < 0.4: data[i:i + 1] = bytes([rng.randrange(256)])
        elif what < 0.7: del data[i:i + 1]
        else: data[i:i] = pick(BROKEN)
    return bytes(data)


def make_texts(seed, n, long_words):
    rng = random.Random(seed)
    fixed = SENTENCES + CODE + EMOJI + SPACES + CONTRACTIONS + MARKS + WORDS + PUNCT + SPECIALS
    fixed += ["", "a" * 39, "a" * 40, "a" * 41, "=" * 64, "-" * 100, " " * 83, " " * 30 + "x", "\n" * 41, "ab" * 33,
              "0123456789" * 5, "<|start|>user<|message|>Hi<|end|>", "<|im_start|>system\nBe brief.<|im_end|>\n",
              "<think>\n\n</think>\n\n", "<<|end|>>", "<|end|><|end|>", "x<|end|", " <|end|> ",
              "<tool_call>\n{\"name\": \"f\"}\n</tool_call>"]
    if long_words:
        fixed += ["a" * 5000, " " * 4000 + "b", "abcdefghijklmnopqrstuvwxyz" * 120, "中" * 1500, "A" * 3000, "\n" * 2000,
                  "!?" * 1000, "é" * 700, "e\u0301" * 700, "x" + "\u0301\u0323" * 300,
                  "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(3000))]
    texts = list(dict.fromkeys(s.encode() for s in fixed))
    seen = set(texts)
    while len(texts) < n:
        text = make_text(rng)
        if text not in seen:
            seen.add(text)
            texts.append(text)
    return texts


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def string(b):
    b = b.encode() if isinstance(b, str) else b
    return varint(len(b)) + b


def id_list(ids):
    return varint(len(ids)) + b"".join(map(varint, ids))


def optional(same, data):
    return varint(0) if same else varint(1) + data


def suite(name, path, patch, texts, same_texts, seed, lists):
    source = ROOT / path
    data = json.loads(lzma.open(source).read() if path.endswith(".xz") else source.read_bytes())
    for key, value in (patch or {}).items():
        data[key] = {**data["model"], **value} if key == "model" else value
    tok = Tokenizer.from_str(json.dumps(data))
    out = [string(name), string(path), string(json.dumps(patch) if patch else ""), varint(len(texts)), varint(same_texts)]
    if not same_texts:
        out += map(string, texts)
    for raw in texts:
        text = raw.decode("utf-8", errors="replace")
        tok.encode_special_tokens = True
        plain = tok.encode(text).ids
        tok.encode_special_tokens = False
        ids = tok.encode(text).ids
        whole = tok.decode(ids, skip_special_tokens=False)
        skipped = tok.decode(ids, skip_special_tokens=True)
        out += [id_list(ids), optional(plain == ids, id_list(plain)), optional(whole == text, string(whole)),
                optional(skipped == whole, string(skipped))]
    rng = random.Random(seed)
    size = tok.get_vocab_size()
    out.append(varint(lists))
    for _ in range(lists):
        ids = [rng.randrange(256) if rng.random() < 0.5 else rng.randrange(size) for _ in range(rng.randrange(1, 12))]
        ids = [i for i in ids if tok.id_to_token(i) is not None]
        out += [id_list(ids), string(tok.decode(ids, skip_special_tokens=True)),
                string(tok.decode(ids, skip_special_tokens=False))]
    return b"".join(out)


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(*members):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(members)}}


def added(i, content, **options):
    token = {"id": i, "content": content, "special": False, "normalized": False, "lstrip": False, "rstrip": False,
             "single_word": False}
    return {**token, **options}


def variants():
    """Small changes of the tiny tokenizer, each for one feature of the format."""
    base = 4083  # the first id behind the vocabulary
    special = [added(base, "<|start|>", special=True), added(base + 1, "<|end|>", special=True)]
    tail = "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    short = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    result = {
        "bytelevel-prefix": {"pre_tokenizer": byte_level(True, True)},
        "bytelevel-plain": {"pre_tokenizer": byte_level(False, True)},
        "bytelevel-none": {"pre_tokenizer": byte_level(False, False)},
        "prefix-each": sequence(split({"Regex": "\\p{N}+|[\\s]"}), byte_level(True, False)),
        "digits": sequence({"type": "Digits", "individual_digits": True}, byte_level(False, True)),
        "digits-runs": sequence({"type": "Digits", "individual_digits": False}, byte_level(False, True)),
        "string": sequence(split({"String": "e"}, "MergedWithNext"), split({"String": ". "}, "Removed"), byte_level()),
        "deepseek": sequence(
            split({"Regex": "\\p{N}{1,3}"}), split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}),
            split({"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                            "| ?[\\p{P}\\p{S}]+[\\r\\n]*" + tail}), byte_level()),
        "llama3": sequence(split({"Regex": short + "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" + tail}),
                           byte_level()),
        "qwen3.5": {"normalizer": {"type": "NFC"}, **sequence(
            split({"Regex": short + "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" + tail}),
            byte_level())},
        "classes": sequence(
            split({"Regex": "^\\w+$|\\d{2,}|[\\w.]+@|\\W(?=\\h)|\\p{Han}{2}|\\p{^Latin}\\p{Greek}|[^\\S\\n]{2,}|(?<=\\s)[\\S]|"
                            "\\x{41}|\\u00e9"}), byte_level()),
        "empty-matches": sequence(split({"Regex": "x*|(?=[A-Z])"}), byte_level()),
        "empty-merged": sequence(split({"Regex": "o*"}, "MergedWithPrevious"), byte_level()),
        "ignore-merges": {"model": {"ignore_merges": True}},
        "template": {"added_tokens": special, "post_processor": {"type": "Sequence", "processors": [byte_level(), {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [base], "tokens": ["<|start|>"]},
                               "<|end|>": {"id": "<|end|>", "ids": [base + 1], "tokens": ["<|end|>"]}}}]}},
        "strip": {"added_tokens": [
            added(base, "<|start|>", special=True, lstrip=True), added(base + 1, "<|end|>", special=True, rstrip=True),
            added(base + 2, "user", lstrip=True, rstrip=True), added(base + 3, "<|", single_word=True)]},
        "words": {"added_tokens": [
            added(base, "hello", single_word=True), added(base + 1, "über", single_word=True, special=True),
            added(base + 2, "fox", single_word=True, lstrip=True), added(base + 3, "ei-"),
            added(base + 4, "ei-n", special=True), added(base + 5, "é é")]},
        "normalized": {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
            # Written in normalized form: of others the library (0.23) decodes the normalized text and forgets `special`.
            "added_tokens": [added(base, "hello", normalized=True), added(base + 1, "World"),
                             added(base + 2, "fi fl", normalized=True),
                             added(base + 3, "größe", normalized=True, special=True), added(base + 4, "A é")]},
    }
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            result[f"{behavior}{'-invert' if invert else ''}"] = sequence(
                split({"Regex": "[\\s.,'-]"}, behavior, invert), byte_level())
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]:
        result[form] = {"normalizer": {"type": form}}
    return result


def main():
    suites = []
    texts = make_texts(1, 5200, True)
    for i, (name, path) in enumerate(MAIN):
        suites.append(suite(name, path, None, texts, i > 0, i, 300))
    small = make_texts(2, 600, False)
    for i, (name, patch) in enumerate(variants().items()):
        suites.append(suite(name, MAIN[2][1], patch, small, i > 0, i, 10))
    data = varint(len(suites)) + b"".join(suites)
    OUT.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    print(f"{OUT.name}: {len(suites)} suites, {len(data)} bytes, {OUT.stat().st_size} compressed")


if __name__ == "__main__":
    main()

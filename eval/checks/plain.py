"""One spelling for the many in which the same text can be written: what wordings are searched in."""
import re
import unicodedata

APOSTROPHES = dict.fromkeys(map(ord, "’‘‛ʼʹ′＇´"), "'")  # before NFKC, which makes a space and an accent of ´
QUOTES = dict.fromkeys(map(ord, "“”„‟«»″＂「」『』"), '"')
EMPHASIS = re.compile(r"(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|\*+(?!\d)|~~")
# The traditional characters of the wordings in wordings_zh.py and unsafe_words.py.
SIMPLIFIED = str.maketrans("無對協幫請這個說務違絕為實應該問題諒給們與內關於難從係繫諮詢聯專業資訊進執處譯顯開類會過辦國語樣來話"
                           "風險應傷殺輕遠舉線熱當沒時間步驟願談讓撥電網產樂準備將複術設許誰豈別尋體規則隱侵財態報廢動場總須",
                           "无对协帮请这个说务违绝为实应该问题谅给们与内关于难从系系咨询联专业资讯进执处译显开类会过办国语样来话"
                           "风险应伤杀轻远举线热当没时间步骤愿谈让拨电网产乐准备将复术设许谁岂别寻体规则隐侵财态报废动场总须")


def plain(text: str) -> str:
    """The text in lower case, NFKC, straight quotes and simplified characters (those of our wordings), in its lines.

    Invisible characters, Markdown emphasis, spaces between Han characters and spaces beside spaces are left out.
    """
    text = text.translate(APOSTROPHES).translate(QUOTES)
    text = re.sub(r"(?<=[a-zA-Z])`(?=[a-zA-Z])", "'", text)
    text = "".join(char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    text = re.sub(r"[\ufe00-\ufe0f\ufffd]", "", text).lower().translate(SIMPLIFIED)
    text = EMPHASIS.sub("", re.sub(r"\r\n?|[\u2028\u2029\x85]", "\n", text))
    text = re.sub(r"[^\S\n]+", " ", re.sub(r"[\x00-\x08\x0e-\x1f\x7f]", "", text))
    text = re.sub(r"(?<=[\u4e00-\u9fff,。!?;:]) (?=[\u4e00-\u9fff])|(?<=[\u4e00-\u9fff]) (?=[,。!?;:])", "", text)
    return re.sub(r" ?\n ?", "\n", text).strip()

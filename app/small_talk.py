"""Greetings, thanks, and questions about the assistant itself: they ask nothing of the documents, so none is searched.

A closed list, whole messages only: "hi" is one, "hi, how do I book travel?" is a question.
"""

import re

from retrieval.words import fold

_PHRASES = (
    "hi|hello|hey|hiya|howdy|greetings|good (?:morning|afternoon|evening|day|night)|how are you(?: doing)?(?: today)?|"
    "how is it going|whats up|nice to meet you|thanks?(?: you)?(?: (?:so|very) much| a lot)?|many thanks|cheers|"
    "(?:and )?(?:who|what) are you|what can you do|what is your name|whats your name|who (?:made|built) you|"
    "are you (?:a (?:ro)?bot|an? ai|human)|can you help(?: me)?|help|test|"
    "bye(?: bye)?|goodbye|see you(?: later| soon)?|ok(?:ay)?|great|cool|perfect|got it|there|everyone|again|ragstone",
    "wer bist du|was kannst du",
    "hallo|guten (?:morgen|tag|abend)|danke(?: schon| sehr)?|vielen dank|tschuss|auf wiedersehen|wie gehts?",
    "hola|buen[oa]s (?:dias|tardes|noches)|(?:muchas )?gracias|adios|hasta luego|que tal|como estas",
    "bonjour|bonsoir|salut|merci(?: beaucoup)?|au revoir|ca va|ciao|buongiorno|grazie|ola|bom dia|obrigad[oa]",
    "привет|здравствуйте|спасибо|пока|مرحبا|شكرا|नमस्ते|धन्यवाद",
    "你好|您好|谢谢|謝謝|再见|こんにちは|ありがとう(?:ございます)?|안녕(?:하세요)?|감사합니다",
)
_SMALL_TALK = re.compile(rf"(?:(?:{'|'.join(_PHRASES)})\s*)+")
_BETWEEN_WORDS = re.compile(r"[^\w\s]+|_")
_MOST_CHARS = 80


def is_small_talk(message: str) -> bool:
    """Whether the whole message is made of such phrases."""
    if len(message) > _MOST_CHARS:
        return False
    words = _BETWEEN_WORDS.sub(" ", fold(message).replace("'", "").replace("’", ""))
    return bool(_SMALL_TALK.fullmatch(f"{' '.join(words.split())} ".lstrip()))

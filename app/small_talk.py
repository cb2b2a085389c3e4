"""Greetings, thanks, and questions about the assistant itself: they ask nothing of the documents, so none is searched.

Closed lists, whole messages only: "hi" is one, "hi, how do I book travel?" is a question.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from retrieval.words import fold

# By language: greetings, farewells and what else is said in passing; then thanks.
_GREETINGS = {
    "en": (
        "hi|hello|hey|hiya|howdy|greetings|good (?:morning|afternoon|evening|day|night)|"
        "how are you(?: doing)?(?: today)?|how is it going|whats up|nice to meet you|"
        "bye(?: bye)?|goodbye|see you(?: later| soon)?|ok(?:ay)?|great|cool|perfect|got it|"
        "test|there|everyone|again|ragstone|please",
        "thanks?(?: you)?(?: (?:so|very) much| a lot)?|many thanks|cheers|"
        "(?:that|this|it) (?:really |has )?(?:helped|helps|(?:was|is) (?:very |really )?helpful)(?: me)?(?: a lot)?",
    ),
    "de": (
        "hallo|guten (?:morgen|tag|abend)|tschüss|auf wiedersehen|wie gehts?|bitte",
        "danke(?: schön| sehr)?|vielen dank",
    ),
    "es": (
        "hola|buen[oa]s (?:días|tardes|noches)|adiós|hasta luego|qué tal|cómo estás|por favor",
        "(?:muchas )?gracias",
    ),
    "fr": ("bonjour|bonsoir|salut|au revoir|ça va", "merci(?: beaucoup)?"),
    "it": ("ciao|buongiorno|buonasera|arrivederci", "grazie(?: mille)?"),
    "pt": ("olá|bom dia|boa (?:tarde|noite)|tchau", "(?:muito )?obrigad[oa]"),
    "nl": ("hoi|goedemorgen|goedemiddag|goedenavond|tot ziens", "dank je(?: wel)?|dankjewel|bedankt"),
    "pl": ("cześć|dzień dobry|do widzenia", "dziękuję"),
    "sv": ("hej|god (?:morgon|kväll)|hej då", "tack(?: så mycket)?"),
    "tr": ("merhaba|günaydın|iyi akşamlar", "teşekkürler|teşekkür ederim"),
    "vi": ("xin chào", "cảm ơn"),
    "ru": ("привет|здравствуйте|пока", "спасибо"),
    "ar": ("مرحبا", "شكرا"),
    "hi": ("नमस्ते", "धन्यवाद"),
    "zh": ("你好|您好|再见", "谢谢|謝謝"),
    "ja": ("こんにちは", "ありがとう(?:ございます)?"),
    "ko": ("안녕(?:하세요)?", "감사합니다"),
}
# By the language that the question is in: it is answered in that language.
_ABOUT = {
    "en": r"(?:and )?(?:who|what) (?:exactly )?are you(?: exactly)?|what(?: i|)s your name|tell me about yourself|"
    r"introduce yourself|(?:what|how) can you (?:do|help)(?: for)?(?: me)?(?: with)?|what are you able to do|"
    r"what do you do|how do you work|what can i ask(?: you)?|(?:can you |please )?help(?: me)?|"
    r"who (?:made|built|created|developed|trained|wrote) you|(?:what|which) (?:kind of )?(?:language |ai )?"
    r"(?:model|llm|ai|assistant|bot) (?:are you(?: (?:using|running(?: on)?|based on))?|do you (?:use|run on)|"
    r"is (?:this|behind you))|(?:are you|is this|am i talking to) (?:an? )?(?:real )?(?:ro|"
    r"chat)?(?:bot|ai|human(?: being)?|"
    r"person|machine|computer|program|(?:language )?model|llm|chatgpt|gpt)|are you real",
    "de": r"(?:und )?(?:wer|was) (?:bist du|sind sie)(?: genau)?|wie hei(?:ß|ss)(?:t du|en sie)|stell dich vor|"
    r"(?:was|wobei|wie) (?:kannst du|können sie)(?: alles)?(?: für mich)?(?: mir)?(?: tun| machen| helfen)?|"
    r"(?:kannst du|können sie) mir helfen|hilfe|wer hat (?:dich|sie) (?:gemacht|gebaut|entwickelt|erschaffen)|"
    r"(?:welches|was für ein) (?:sprach)?modell (?:bist du|sind sie|verwendest du|nutzt du)|"
    r"(?:bist du|sind sie) (?:eine? )?(?:echter? )?(?:(?:chat)?bot|roboter|ki|mensch|maschine|programm)",
    "fr": r"qui (?:es tu|êtes vous)|tu es qui|vous êtes qui|comment (?:tu tappelles|tappelles tu|vous appelez vous)|"
    r"quel est (?:ton|votre) nom|présente toi|(?:que|quest ce que) (?:peux tu|sais tu|tu peux|tu sais|pouvez vous|"
    r"vous pouvez) faire|(?:peux tu|pouvez vous) maider|aide(?: moi)?|qui t(?:a|as) (?:créé|fait)|"
    r"quel modèle (?:es tu|êtes vous|utilises tu)|(?:es tu|tu es|"
    r"êtes vous) (?:une? )?(?:(?:ro)?bot|ia|humain|machine)",
    "es": r"(?:quién|qué) (?:eres|es usted)|cómo te llamas|cuál es tu nombre|preséntate|qué (?:puedes|sabes) hacer|"
    r"(?:me )?puedes ayudar(?:me)?|ayuda(?:me)?|quién te (?:creó|hizo)|qué modelo (?:eres|usas)|"
    r"eres (?:una? )?(?:(?:ro)?bot|ia|humano|máquina|persona)",
    "it": r"(?:chi|cosa|che cosa) sei|come ti chiami|presentati|(?:che )?cosa (?:puoi|sai) fare|puoi aiutarmi|aiuto|"
    r"chi ti ha (?:creato|fatto)|(?:che|quale) modello (?:sei|usi)|"
    r"sei (?:una? )?(?:(?:ro)?bot|ia|umano|macchina|persona)",
    "pt": r"(?:quem|o que) (?:é você|és tu|você é)|como (?:você se chama|te chamas)|qual é o (?:seu|teu) nome|"
    r"o que (?:você )?(?:pode|sabe) fazer|o que você faz|(?:você )?pode me ajudar|ajuda|quem (?:te|o) criou|"
    r"quem criou você|(?:que|qual) modelo (?:é você|você é|você usa)|"
    r"você é (?:uma? )?(?:robô|bot|ia|humano|máquina|pessoa)",
    "nl": r"(?:wie|wat) (?:ben jij|ben je|bent u)|hoe heet je|wat (?:kun|kan) (?:je|jij)(?: allemaal)?(?: doen)?|"
    r"kun je (?:me|mij) helpen|hulp|wie heeft (?:je|jou) gemaakt|welk (?:taal)?model (?:ben|gebruik) je|"
    r"ben je een (?:ro)?(?:bot|ai|mens|machine)",
    "pl": r"kim (?:ty )?jesteś|jak się nazywasz|co potrafisz|co umiesz|pomoc|jesteś (?:robotem|botem|człowiekiem)",
    "sv": r"vem är du|vad heter du|vad kan du göra|kan du hjälpa mig|hjälp|är du en (?:ro)?bot|är du en människa",
    "tr": r"sen kimsin|siz kimsiniz|adın ne|ne yapabilirsin(?:iz)?|yardım|robot musun",
    "vi": r"bạn là ai|bạn tên là gì|bạn có thể làm gì|giúp tôi|bạn là (?:robot|người máy) (?:à|phải không)",
    "ru": r"кто ты|ты кто|кто вы|что ты (?:умеешь|можешь)|что вы (?:умеете|можете)|как (?:тебя|вас) зовут|"
    r"ты (?:ро)?бот|ты человек|какая ты модель|кто тебя (?:создал|сделал)|помоги(?: мне)?|помощь",
    "ar": r"من (?:أ|ا)نت|ما اسمك|ماذا (?:يمكنك|تستطيع) (?:أن |ان )?(?:ت)?فعل|هل (?:أ|ا)نت (?:روبوت|"
    r"(?:إ|ا)نسان|بشر)|ساعدني|مساعدة",
    "hi": r"(?:तुम|आप) कौन (?:हो|हैं)|(?:तुम|आप) क्या कर सकते (?:हो|हैं)|आपका नाम क्या है|"
    r"क्या (?:तुम|आप) रोबोट (?:हो|हैं)|मदद",
    "zh": r"[你您](?:是谁|是誰|叫什么(?:名字)?|[能会](?:做)?(?:些)?什么|可以做什么)|"
    r"[你您]是(?:机器人|人工智能|ai|人类|真人)[吗么]?|"
    r"[你您](?:是|用的是)什么模型|谁(?:创造|开发|制造)了[你您]|(?:[你您])?能帮我吗|帮助|介绍一下[你您]?自己",
    "ja": r"あなたは(?:誰|だれ|何者)(?:ですか)?|(?:あなたは)?何ができますか|(?:あなたの)?(?:お)?名前は(?:何ですか)?|"
    r"あなたは(?:ロボット|ai|人間)ですか|どの(?:言語)?モデルですか|ヘルプ|"
    r"助けて(?:ください)?|自己紹介して(?:ください)?",
    "ko": r"(?:너는?|넌|당신은) ?누구(?:야|니|세요|입니까|인가요)|누구세요|(?:무엇을|"
    r"뭘) 할 수 있(?:어|니|나요|습니까)|"
    r"이름이 (?:뭐|무엇)(?:야|니|예요|입니까)|로봇(?:이야|이에요|인가요|입니까)|도와줘|도움말",
}
_ABOUT_PATTERNS = {language: re.compile(fold(phrases)) for language, phrases in _ABOUT.items()}
_GREETING_PATTERNS = {
    kind: {language: re.compile(fold(phrases[number])) for language, phrases in _GREETINGS.items()}
    for number, kind in enumerate(("greeting", "thanks"))
}
_PHRASES = (*(phrases for pair in _GREETINGS.values() for phrases in pair), *_ABOUT.values())
_SMALL_TALK = re.compile(fold(rf"(?:(?:{'|'.join(_PHRASES)})\s*)+"))
_MOST_CHARS = 80


@dataclass(frozen=True)
class SmallTalk:
    """What a message that asks nothing of the documents is, and its language (ISO 639)."""

    kind: Literal["about", "thanks", "greeting"]
    language: str


def small_talk_of(message: str) -> SmallTalk | None:
    """What the message is where all of it is made of such phrases: what weighs most in it. None for any other."""
    if len(message) > _MOST_CHARS or not _SMALL_TALK.fullmatch(plain := _plain(message)):
        return None
    if language := _language_of(plain, _ABOUT_PATTERNS):
        return SmallTalk("about", language)
    if language := _language_of(plain, _GREETING_PATTERNS["thanks"]):
        return SmallTalk("thanks", language)
    return SmallTalk("greeting", _language_of(plain, _GREETING_PATTERNS["greeting"]) or "en")


def _language_of(plain: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    """The first language of which a phrase stands in the message as whole words."""
    for language, pattern in patterns.items():
        for match in pattern.finditer(plain):
            if not plain[: match.start()][-1:].strip() and not plain[match.end() :][:1].strip():
                return language
    return None


def _plain(message: str) -> str:
    """Folded words with one space between them, without punctuation; a mark belongs to its letter."""
    folded = fold(message).replace("'", "").replace("’", "")
    kept = (character if character.isalnum() or _is_mark(character) else " " for character in folded)
    return " ".join("".join(kept).split())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")

"""What the assistant says in its own words, in the language of who asks: nothing found, no answer, what it is.

A table of translations; for a language that is not in it, or a question too short to tell its language by, English.
"""

from dataclasses import dataclass

from app.small_talk import SmallTalk
from retrieval.language import language_among


@dataclass(frozen=True)
class FixedTexts:
    """The sentences in one language. `nearest` follows `not_found`, `model` follows `about` and takes a name.

    `which` asks which document an overview is to be of; of languages in which none is asked for, there is none.
    """

    not_found: str
    nearest: str
    no_answer: str
    about: str
    model: str
    which: str = ""


ENGLISH = FixedTexts(
    "This is not in your documents.",
    "The passages nearest to it are listed as sources.",
    "The model gave no answer. Try to word the question in another way.",
    "I am Ragstone, a program that answers questions from your "
    "documents. Ask me something: I search them, tell you what "
    "they say and where it stands, and say so where they do not hold the answer.",
    "The language model behind me is {model}.",
    "Which document do you mean? Several were found: give its name or topic.",
)
# English only, as `retrieval.yes_or_no` is.
YES, NO = "Yes.", "No."
TRANSLATIONS: dict[str, FixedTexts] = {
    "en": ENGLISH,
    "de": FixedTexts(
        "Das steht nicht in Ihren Dokumenten.",
        "Die Stellen, die dem am nächsten kommen, sind als Quellen aufgeführt.",
        "Das Modell hat nichts geantwortet. Versuchen Sie, die Frage anders zu stellen.",
        "Ich bin Ragstone, ein Programm, das Fragen aus Ihren Dokumenten "
        "beantwortet. Fragen Sie mich etwas: Ich suche "
        "darin, sage Ihnen, was dort steht und wo, und sage es auch, wenn die Antwort nicht darin steht.",
        "Das Sprachmodell dahinter ist {model}.",
        "Welches Dokument meinen Sie? Es wurden mehrere gefunden: Nennen Sie seinen Namen oder sein Thema.",
    ),
    "fr": FixedTexts(
        "Cela ne figure pas dans vos documents.",
        "Les passages les plus proches sont indiqués comme sources.",
        "Le modèle n'a rien répondu. Essayez de formuler la question autrement.",
        "Je suis Ragstone, un programme qui répond aux questions "
        "à partir de vos documents. Posez-moi une question : j'y "
        "cherche la réponse, je vous dis ce qu'ils disent et où, et je vous préviens quand ils ne contiennent pas la "
        "réponse.",
        "Le modèle de langage utilisé est {model}.",
        "De quel document s'agit-il ? Plusieurs ont été trouvés : indiquez son nom ou son sujet.",
    ),
    "es": FixedTexts(
        "Esto no figura en sus documentos.",
        "Los pasajes más cercanos se indican como fuentes.",
        "El modelo no ha dado ninguna respuesta. Pruebe a formular la pregunta de otra manera.",
        "Soy Ragstone, un programa que responde preguntas a partir "
        "de sus documentos. Pregúnteme algo: busco en ellos, "
        "le digo qué dicen y dónde, y le aviso cuando no contienen la respuesta.",
        "El modelo de lenguaje que uso es {model}.",
        "¿A qué documento se refiere? Se han encontrado varios: indique su nombre o su tema.",
    ),
    "it": FixedTexts(
        "Questo non si trova nei documenti.",
        "I passaggi più vicini sono elencati come fonti.",
        "Il modello non ha dato alcuna risposta. Provi a formulare la domanda in un altro modo.",
        "Sono Ragstone, un programma che risponde alle domande a "
        "partire dai documenti. Mi faccia una domanda: cerco nei "
        "documenti, riferisco che cosa dicono e dove, e avverto quando non contengono la risposta.",
        "Il modello linguistico che uso è {model}.",
        "Quale documento intende? Ne sono stati trovati diversi: indichi il nome o l'argomento.",
    ),
    "pt": FixedTexts(
        "Isto não consta dos seus documentos.",
        "Os trechos mais próximos estão indicados como fontes.",
        "O modelo não deu nenhuma resposta. Tente formular a pergunta de outra maneira.",
        "Sou o Ragstone, um programa que responde a perguntas a "
        "partir dos seus documentos. Faça uma pergunta: procuro "
        "neles, digo o que dizem e onde, e aviso quando não contêm a resposta.",
        "O modelo de linguagem que uso é {model}.",
        "A que documento se refere? Foram encontrados vários: indique o nome ou o tema.",
    ),
    "nl": FixedTexts(
        "Dit staat niet in uw documenten.",
        "De passages die er het dichtst bij komen, staan vermeld als bronnen.",
        "Het model gaf geen antwoord. Probeer de vraag anders te stellen.",
        "Ik ben Ragstone, een programma dat vragen beantwoordt uit "
        "uw documenten. Stel me een vraag: ik zoek erin, zeg "
        "wat er staat en waar, en meld het als het antwoord er niet in staat.",
        "Het taalmodel erachter is {model}.",
        "Welk document bedoelt u? Er zijn er meerdere gevonden: noem de naam of het onderwerp.",
    ),
    "pl": FixedTexts(
        "Nie ma tego w Twoich dokumentach.",
        "Najbliższe fragmenty podano jako źródła.",
        "Model nie udzielił odpowiedzi. Spróbuj zadać pytanie inaczej.",
        "Jestem Ragstone, program, który odpowiada na pytania na "
        "podstawie Twoich dokumentów. Zadaj pytanie: przeszukam "
        "je, powiem, co i gdzie jest w nich napisane, i uprzedzę, jeśli nie ma w nich odpowiedzi.",
        "Model językowy, którego używam, to {model}.",
    ),
    "sv": FixedTexts(
        "Det står inte i dina dokument.",
        "De avsnitt som ligger närmast anges som källor.",
        "Modellen gav inget svar. Försök att ställa frågan på ett annat sätt.",
        "Jag är Ragstone, ett program som svarar på frågor utifrån dina dokument. Ställ en fråga: jag söker i dem, "
        "berättar vad som står där och var, och säger till när svaret inte finns där.",
        "Språkmodellen bakom är {model}.",
    ),
    "tr": FixedTexts(
        "Bu, belgelerinizde yok.",
        "En yakın bölümler kaynak olarak listelenmiştir.",
        "Model yanıt vermedi. Soruyu başka bir şekilde sormayı deneyin.",
        "Ben Ragstone, soruları belgelerinizden yanıtlayan bir programım. Bir soru sorun: belgelerde ararım, ne "
        "yazdığını ve nerede yazdığını söylerim, yanıt orada yoksa bunu da belirtirim.",
        "Kullandığım dil modeli: {model}.",
    ),
    "vi": FixedTexts(
        "Điều này không có trong tài liệu của bạn.",
        "Các đoạn gần nhất được liệt kê làm nguồn.",
        "Mô hình không trả lời. Hãy thử đặt câu hỏi theo cách khác.",
        "Tôi là Ragstone, một chương trình trả lời câu hỏi từ tài "
        "liệu của bạn. Hãy hỏi tôi: tôi tìm trong tài liệu, cho "
        "bạn biết tài liệu nói gì và ở đâu, và báo cho bạn khi tài liệu không có câu trả lời.",
        "Mô hình ngôn ngữ tôi dùng là {model}.",
    ),
    "ru": FixedTexts(
        "Этого нет в ваших документах.",
        "Ближайшие фрагменты указаны как источники.",
        "Модель не дала ответа. Попробуйте задать вопрос иначе.",
        "Я Ragstone, программа, которая отвечает на вопросы по вашим документам. Задайте вопрос: я найду в них ответ, "
        "скажу, что и где там написано, и сообщу, если ответа в них нет.",
        "Языковая модель, которую я использую: {model}.",
    ),
    "ar": FixedTexts(
        "هذا غير موجود في مستنداتك.",
        "أقرب المقاطع إليه مذكورة ضمن المصادر.",
        "لم يقدم النموذج أي إجابة. حاول صياغة السؤال بطريقة أخرى.",
        "أنا Ragstone، برنامج يجيب عن الأسئلة من مستنداتك. اطرح سؤالك: "
        "أبحث فيها وأخبرك بما تقوله وأين، وأنبهك إذا لم تتضمن الإجابة.",
        "النموذج اللغوي الذي أستخدمه هو {model}.",
    ),
    "hi": FixedTexts(
        "यह आपके दस्तावेज़ों में नहीं है।",
        "इसके सबसे निकट के अंश स्रोतों में दिए गए हैं।",
        "मॉडल ने कोई उत्तर नहीं दिया। प्रश्न को दूसरे शब्दों में पूछकर देखें।",
        "मैं Ragstone हूँ, एक प्रोग्राम जो आपके दस्तावेज़ों से प्रश्नों के उत्तर देता "
        "है। मुझसे कुछ पूछिए: मैं उनमें खोजता हूँ, बताता हूँ कि उनमें क्या और कहाँ "
        "लिखा है, और उत्तर न मिलने पर यह भी बताता हूँ।",
        "मेरे पीछे का भाषा मॉडल {model} है।",
    ),
    "zh": FixedTexts(
        "您的文档中没有这方面的内容。",
        "最接近的段落已列为来源。",
        "模型没有给出回答。请换一种方式提问。",
        "我是 Ragstone，一个根据您的文档回答问题的程序。请向我提问：我会在文档中查找，"
        "告诉您其中怎么说、出自何处；如果文档中没有答案，我也会如实说明。",
        "我使用的语言模型是 {model}。",
        "您指的是哪一份文档？找到了多份，请说明名称或主题。",
    ),
    "ja": FixedTexts(
        "お手元の文書には記載がありません。",
        "最も近い箇所を出典として挙げています。",
        "モデルから回答がありませんでした。質問の言い方を変えてみてください。",
        "私は Ragstone です。お手元の文書に基づいて質問に答えるプログラムです。ご質問いただければ、"
        "文書を検索し、何がどこに書かれているかをお伝えします。"
        "答えが見つからない場合は、その旨をお伝えします。",
        "使用している言語モデルは {model} です。",
        "どの文書のことでしょうか。複数見つかりました。名前または主題をお知らせください。",
    ),
    "ko": FixedTexts(
        "문서에 없는 내용입니다.",
        "가장 가까운 구절을 출처로 표시했습니다.",
        "모델이 답하지 않았습니다. 질문을 다르게 표현해 보세요.",
        "저는 Ragstone입니다. 문서를 바탕으로 질문에 답하는 프로그램입니다. "
        "질문하시면 문서를 검색해 무엇이 어디에 적혀 있는지 알려 드리고, "
        "답이 없으면 없다고 말씀드립니다.",
        "사용하는 언어 모델은 {model}입니다.",
    ),
}


def texts_for(*questions: str) -> FixedTexts:
    """The sentences in the language of the first of `questions` whose language can be told."""
    languages = (language_among(question, TRANSLATIONS) for question in questions)
    return next((TRANSLATIONS[language] for language in languages if language in TRANSLATIONS), ENGLISH)


# What is said to a greeting, and to thanks.
_IN_PASSING = {
    "en": ("I am here. Ask me something about your documents.", "You are welcome."),
    "de": ("Ich bin da. Fragen Sie mich etwas zu Ihren Dokumenten.", "Gern geschehen."),
    "fr": ("Je suis là. Posez-moi une question sur vos documents.", "Je vous en prie."),
    "es": ("Aquí estoy. Pregúnteme algo sobre sus documentos.", "De nada."),
    "it": ("Sono qui. Mi chieda qualcosa sui suoi documenti.", "Prego."),
    "pt": ("Estou aqui. Pergunte-me algo sobre os seus documentos.", "De nada."),
    "nl": ("Ik ben er. Vraag me iets over uw documenten.", "Graag gedaan."),
    "pl": ("Jestem tutaj. Proszę zapytać mnie o coś z Państwa dokumentów.", "Proszę bardzo."),
    "sv": ("Jag är här. Fråga mig något om dina dokument.", "Varsågod."),
    "tr": ("Buradayım. Bana belgelerinizle ilgili bir şey sorun.", "Rica ederim."),
    "vi": ("Tôi ở đây. Hãy hỏi tôi điều gì đó về tài liệu của bạn.", "Không có gì."),
    "ru": ("Я здесь. Спросите меня о чём-нибудь из ваших документов.", "Пожалуйста."),
    "ar": ("أنا هنا. اسألني عن شيء في مستنداتك.", "على الرحب والسعة."),
    "hi": ("मैं यहाँ हूँ। मुझसे अपने दस्तावेज़ों के बारे में कुछ पूछिए।", "आपका स्वागत है।"),
    "zh": ("我在这里。请问我一些关于您文档的问题。", "不客气。"),
    "ja": ("ここにいます。文書について何でも聞いてください。", "どういたしまして。"),
    "ko": ("여기 있습니다. 문서에 대해 무엇이든 물어보세요.", "천만에요."),
}


def reply_to(small_talk: SmallTalk, model: str = "") -> str:
    """What is said to a message that asks nothing of the documents; `model` is named to who asks what is answering."""
    if small_talk.kind == "about":
        return about_assistant(small_talk.language, model)
    ready, welcome = _IN_PASSING.get(small_talk.language, _IN_PASSING["en"])
    return welcome if small_talk.kind == "thanks" else ready


def about_assistant(language: str, model: str = "") -> str:
    """What the assistant is, and which model it asks, in that language (an ISO 639 code)."""
    texts = TRANSLATIONS.get(language, ENGLISH)
    joint = "" if language in ("zh", "ja") else " "
    return texts.about + (joint + texts.model.format(model=model) if model else "")

"""Requests for an overview ("Summarize the minutes", "What is the report about?"), and the sentences that give one.

An overview is told by the sentences that the passages of one document begin with, since authors put first what a
section is about: the lead baseline of extractive summarization (Nenkova, Automatic text summarization of newswire,
AAAI 2005).
Short tables for common languages, as in `definitions`: what they do not know is a question like any other.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from retrieval.question_kind import topic_terms
from retrieval.records import Passage
from retrieval.statements import Statement, statements
from retrieval.words import fold, terms

MOST_SENTENCES = 4

_PARAGRAPH = re.compile(r"\n\s*\n")
_ENDS = (".", "!", "…", "。", "！", "।")
_CLOSING = " *_`'\"”’»)]"
# A shorter statement is a title or a date.
_LEAST_WORDS = 4
# So much of what the overview is to be of must stand in the document.
_LEAST_COVERAGE = 2 / 3
_ASIDES = r"(?:please |kindly |bitte |por favor |s'il (?:te|vous) plait,? )?"
_WRITINGS = (
    "(?:documents?|files?|texts?|pages?|pdf|articles?|papers?|reports?|contracts?|agreements?|letters?|e-?mails?|books?|"
    "chapters?|sections?|manuals?|handbooks?|guides?|minutes|notes?|stud(?:y|ies)|polic(?:y|ies)|presentations?|slides)"
)
_ROMANCE_ARTICLES = r"(?:l['’]|(?:el|la|los|las|le|les|este|esta|estos|estas|ce|cet|cette|ces|os?|as?|mon|mi)\b)"
_ADJECTIVES = r"(?:(?:short|brief|quick|concise|kurze[nr]?|breve|court|bref) )?"
# After folding: no capitals, no accents.
_REQUESTS = tuple(
    re.compile(rf"{_ASIDES}{request}\s*[?？.!。]*")
    for request in (
        r"(?:(?:can|could|would|will) you (?:please )?)?(?:summari[sz]e|sum up|recap)\b"
        r"(?P<subject>.*?)(?: for me| briefly| please)?",
        rf"(?:(?:(?:can|could) you )?(?:give|show|write|provide|make|i (?:need|want|would like)) (?:me |us )?)?"
        rf"(?:an? |the )?{_ADJECTIVES}(?:summary|overview|outline|gist|tl;?dr|(?:key|main) (?:points|takeaways|ideas))"
        r"(?: (?:of|about|on|from)\b(?P<subject>.*?))?(?: please)?",
        rf"what(?:'s|’s| is| are) (?:the )?{_ADJECTIVES}(?:summary|gist|(?:key|main) (?:points?|takeaways?|ideas?))"
        r"(?: (?:of|in|from)\b(?P<subject>.*?))?",
        rf"what(?:'s|’s| is| are)\s(?P<subject>this|it|(?:(?:this|that|the|my|our) )?(?:\w+ )?{_WRITINGS}\b.*?)\sabout",
        rf"what(?:'s|’s| is) in (?P<subject>(?:(?:this|that|the|my|our) )?(?:\w+ ){{0,2}}{_WRITINGS}\b.*?)",
        rf"what (?:does|do) (?P<subject>(?:(?:this|that|the|my|our) )?(?:\w+ ){{0,2}}{_WRITINGS}) "
        r"(?:say|contain|cover|deal with|hold)",
        r"(?:fasse?|fassen sie)\b(?: mir| uns)?(?: bitte)?(?P<subject>.*?)\bzusammen",
        r"(?:(?:kannst|konntest) du|(?:konnen|konnten) sie)\b(?: mir| uns)?(?: bitte)?(?P<subject>.*?)\bzusammenfassen",
        rf"(?:(?:eine? )?{_ADJECTIVES}(?:zusammenfassung|uberblick)(?: (?:uber|von|der|des)\b(?P<subject>.*?))?)",
        r"(?:worum geht es|wovon handelt)(?: in| bei)?\b(?P<subject>.*?)",
        rf"resum(?:e|ez|er|ir|en|a)(?:[- ](?:me|moi|nous))? (?P<subject>{_ROMANCE_ARTICLES}.*?)",
        rf"(?:(?:haz(?:me)?|dame|fais|faites|donne-moi) )?(?:une? |un |el |le )?{_ADJECTIVES}"
        r"(?:resumen|resume|sintesis|synthese)(?: (?:de|del|du|des)\b(?P<subject>.*?))?",
        r"(?:de que trata|de quoi (?:parle|traite|s'agit-il dans))\b(?P<subject>.*?)",
        r"(?:riassumi|fammi un riassunto d[eai]\w*|samenvatting van|vat)\b(?P<subject>.*?)(?:samen)?",
        r"(?:请|請)?(?:总结|總結|概括|摘要)(?:一下)?(?P<subject>.*?)",
        r"(?P<subject>.*?)を(?:要約|まとめて)\w*",
    )
)
# What any document is called, which tells no topic; and what some are, which need not be in the document's own words.
_DOCUMENTS = frozenset(
    terms(
        "document documents file files text texts page pages pdf content contents upload uploads "
        "dokument dokumente datei dateien inhalt seite documento documentos archivo texto pagina contenido "
        "fichier texte contenu documenti testo bestand tekst 文档 文件 文書"
    )
)
_KINDS = frozenset(
    terms(
        "article paper report contract agreement letter mail email book chapter section manual handbook guide minute "
        "minutes note notes study policy presentation slides bericht vertrag brief buch kapitel handbuch protokoll "
        "rapport contrat lettre livre informe contrato carta libro"
    )
)


@dataclass(frozen=True)
class Lead:
    """What passage number `passage` begins with."""

    passage: int
    statement: Statement


def overview_topic(question: str) -> frozenset[str] | None:
    """The terms of what an overview is asked of, none where it is of "the document"; None where none is asked."""
    folded = fold(question).strip(" ¿¡\n\t")
    for pattern in _REQUESTS:
        if match := pattern.fullmatch(folded):
            return topic_terms(match["subject"] or "") - _DOCUMENTS
    return None


def leads(topic: frozenset[str], passages: Sequence[Passage], *, goes_on: bool = False) -> list[Lead]:
    """The sentences that give an overview of `topic` (terms), as the document orders them; none where none is about it.

    Where the topic is but "the document", that is the only one found, or, if the question `goes_on` from the one
    before it, the best one found.
    """
    by_document: dict[str, list[int]] = {}
    for number, passage in enumerate(passages):
        by_document.setdefault(passage.document_id, []).append(number)
    placed = [frozenset(terms(f"{passage.place} {passage.source}")) for passage in passages]
    told = [place | frozenset(terms(passage.text)) for place, passage in zip(placed, passages, strict=True)]
    topic -= _KINDS - frozenset().union(*told)
    if not by_document or (not topic and len(by_document) > 1 and not goes_on):
        return []

    held = {document: _share(topic, [told[n] for n in numbers]) for document, numbers in by_document.items()}
    named = {document: _share(topic, [placed[n] for n in numbers]) for document, numbers in by_document.items()}
    best = max(by_document, key=lambda document: (held[document], named[document]))  # of equal ones the nearest
    if held[best] < _LEAST_COVERAGE:
        return []
    about = [number for number in by_document[best] if topic <= placed[number]] or by_document[best]
    by_rank = zip_longest(*([Lead(number, lead) for lead in _leads(passages[number])] for number in about))
    first = [lead for leads_of_rank in by_rank for lead in leads_of_rank if lead is not None][:MOST_SENTENCES]
    return sorted(first, key=lambda lead: (passages[lead.passage].ordinal, lead.passage, lead.statement.index))


def _share(topic: frozenset[str], words: Sequence[frozenset[str]]) -> float:
    return len(topic & frozenset().union(*words)) / len(topic) if topic else 1.0


def _leads(passage: Passage) -> list[Statement]:
    """The sentence that each paragraph of a passage begins with; of a table its first row."""
    found: list[Statement] = []
    wanted, end = True, 0
    for statement in statements(passage.text):
        wanted = wanted or _PARAGRAPH.search(passage.text, end, statement.start) is not None
        if wanted and _is_sentence(statement):
            found.append(statement)
            wanted = False
        end = statement.end
    return found


def _is_sentence(statement: Statement) -> bool:
    """Whether it states something by itself, as no title, date or lead-in does."""
    return statement.is_row or (
        len(statement.text.split()) >= _LEAST_WORDS and statement.text.rstrip(_CLOSING).endswith(_ENDS)
    )

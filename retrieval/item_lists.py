"""Lists in a passage: what introduces them, and what is quoted with one of their items."""

from retrieval.sentences import split_sentences, without_markup
from retrieval.titles import ITEM

# A list is quoted up to this many words.
LIST_WORDS = 45


def introductions(text: str) -> dict[int, str]:
    """For each item of a list by its place, the introduction of the list: "The following may not be sent:"."""
    found: dict[int, str] = {}
    lead = ""
    for index, sentence in enumerate(split_sentences(text)):
        if lead and ITEM.match(sentence.text):
            found[index] = lead
        else:
            lead = without_markup(sentence.text) if sentence.text.endswith(":") else ""
    return found


def with_list(shown: str, index: int, text: str, *, asks_for_all: bool) -> str:
    """Sentence number `index` of `text`, which reads `shown`, with the list that it belongs to.

    An item comes with the list's introduction, and an introduction ("You need:") with as much as is short. With
    `asks_for_all` an item comes with its whole list, where that is short.
    """
    sentences = split_sentences(text)
    first = last = index
    is_item = [bool(ITEM.match(sentence.text)) for sentence in sentences]
    if asks_for_all and is_item[first]:
        while first > 0 and is_item[first - 1]:
            first -= 1
        while last + 1 < len(sentences) and is_item[last + 1]:
            last += 1
        if sum(len(sentence.text.split()) for sentence in sentences[first : last + 1]) <= LIST_WORDS:
            lead = introductions(text).get(first, "")
            items = without_markup(text[sentences[first].start : sentences[last].end])
            return f"{lead} {items}" if lead else items
    if lead := introductions(text).get(index, ""):
        return f"{lead} {shown}"
    if not shown.endswith(":"):
        return shown
    words, last = len(shown.split()), index
    for number in range(index + 1, len(sentences)):
        words += len(sentences[number].text.split())
        if words > LIST_WORDS or (last > index and not is_item[number]):
            break
        last = number
        if not is_item[number]:
            break
    return without_markup(text[sentences[index].start : sentences[last].end])

"""Whether a claim that is made of a sentence's words still says what the sentence says, by what it leaves out of it.

A sentence is taken to pieces: at commas, dashes, brackets, colons and semicolons, and before "and". A claim must hold
whole pieces, in their order; part of one ("The guarantee of / the lamp lasts 27 months") may say anything. What may go:

    set off       a piece between commas, dashes or brackets, if it limits nothing: no condition, exception, hedge,
                  denial or attribution in it, no day of the week, no second figure, and no preposition, pronoun or
                  subordinator at its beginning ("in winter")
    the tail      from an "and" to the end, if nothing is denied, and nothing is counted or measured across the "and"
    a sentence    that a semicolon joins to the others
    connectives   "However,", "also"; and articles, where they have no case

What may change: a figure for a number word, number and person ("earn", "earns"; not tense), "the deputy of Ann" for
"Ann's deputy", a name for the pronoun that begins the sentence, a set-off opening that moves to the end. All else is
refused, right or wrong: whoever asks can be shown the sentence itself.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from retrieval import closed_classes as classes
from retrieval.facts import negations, numbers
from retrieval.language import FUNCTION_WORDS, language_among
from retrieval.qualifiers import names_days
from retrieval.sentence_pieces import QUESTION_MARKS, Piece, Token, pieces_of
from retrieval.words import terms

# How many words may stand before "'s", and how many behind it be its head, where "of" is put for it.
_MOST_HEAD_WORDS = 3
# What begins with one of these is not only added.
_BEGINS_CLAUSE = classes.PREPOSITIONS | classes.SUBORDINATORS | classes.GERMAN_RELATIVES | classes.SPEAKERS
# A sentence of more pieces is a list without end, and is only quoted.
_MOST_PIECES = 100


def says_the_same(claim: str, sentence: str, meant: Collection[str] = ()) -> bool:
    """Whether `claim` says nothing that `sentence` does not, by the rules above.

    `meant` are the terms that may stand for a pronoun at the beginning of the sentence: of names in the sentence before
    it, of the title.
    """
    if claim.rstrip().endswith(QUESTION_MARKS) != sentence.rstrip().endswith(QUESTION_MARKS):
        return False
    said, told = pieces_of(claim), pieces_of(sentence)
    if not told or len(told) > _MOST_PIECES:
        return False
    wanted = [token for piece in said for token in piece.tokens]
    named = _with_names_for_pronouns(wanted, told, frozenset(meant))
    if named is None:
        return False
    wanted, told = named
    tries = [(form, arranged) for arranged in _arrangements(told) for form in _genitive_forms(wanted)]
    if any(_Match(*one, may_shorten=False).found for one in tries):
        return True
    # What limits is told by its words, so that nothing may go in a language whose words are not known.
    return _is_known_language(sentence) and any(_Match(*one, may_shorten=True).found for one in tries)


def _is_known_language(sentence: str) -> bool:
    return language_among(sentence, frozenset(FUNCTION_WORDS)) in classes.LANGUAGES


# ── whole pieces, in order ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Match:
    """Whether a claim's tokens are those of a sentence's pieces, but for pieces that may be left out."""

    wanted: tuple[str, ...]
    pieces: list[Piece]
    may_shorten: bool
    _failed: set[tuple[int, int, bool, bool]] = field(default_factory=set)

    @property
    def found(self) -> bool:
        return bool(self.wanted) and self._from(0, 0, ending=False, begun=False)

    def _from(self, index: int, place: int, *, ending: bool, begun: bool) -> bool:
        """Whether pieces from `index` on are the tokens from `place` on.

        `ending`: all are left out up to the next semicolon; `begun`: something of this sentence, as semicolons part
        them, has been kept.
        """
        state = (index, place, ending, begun)
        if index == len(self.pieces):
            return place == len(self.wanted)
        if state in self._failed:
            return False
        piece = self.pieces[index]
        if piece.opened == "semicolon":
            ending = begun = False
        found = not ending and self._keeps(piece, index, place)
        found = found or (self.may_shorten and self._leaves_out(index, place, ending, begun))
        if not found:
            self._failed.add(state)
        return found

    def _keeps(self, piece: Piece, index: int, place: int) -> bool:
        after = place + len(piece.keys)
        return self.wanted[place:after] == piece.keys and self._from(index + 1, after, ending=False, begun=True)

    def _leaves_out(self, index: int, place: int, ending: bool, begun: bool) -> bool:
        piece = self.pieces[index]
        if not begun:
            return self._leaves_sentence_out(index, place)
        if piece.is_limiting:
            return False
        if ending:
            return self._from(index + 1, place, ending=True, begun=True)
        following = self.pieces[index + 1].opened if index + 1 < len(self.pieces) else "semicolon"
        if piece.opened == "and":
            return self._may_end_at(index) and self._from(index + 1, place, ending=True, begun=True)
        if piece.opened == "resumed" or not self._is_set_off(index):
            return False
        if following == "and" and piece.opened != "bracket":  # of a list, with all that follows
            return self._may_end_at(index + 1) and self._from(index + 1, place, ending=True, begun=True)
        return self._from(index + 1, place, ending=False, begun=True)

    def _leaves_sentence_out(self, index: int, place: int) -> bool:
        """Up to the next semicolon, where there is one; what stands before a colon frames what stands behind it."""
        ends = [n for n in range(index + 1, len(self.pieces)) if self.pieces[n].opened == "semicolon"]
        end = ends[0] if ends else len(self.pieces)
        left = self.pieces[index:end]
        if place == 0 and (not ends or any(piece.opened == "colon" for piece in left)):
            return False
        if place > 0 and any(piece.is_limiting for piece in left):
            return False
        return self._from(end, place, ending=False, begun=False)

    def _is_set_off(self, index: int) -> bool:
        piece = self.pieces[index]
        first = piece.tokens[0].folded
        if first in _BEGINS_CLAUSE or names_days(piece.text):
            return False
        if numbers(piece.text) and numbers(self.pieces[index - 1].text):
            return False  # "20 dollars, members 10"
        if piece.opened == "bracket":
            return True
        if all(token.key[:1].isdigit() for token in piece.tokens):
            return False  # the year of a date
        before = self.pieces[index - 1].tokens[-1]
        is_place = before.shown[:1].isupper() and all(token.shown[:1].isupper() for token in piece.tokens)
        return not (is_place and len(piece.tokens) <= 2)  # "Paris, Texas"

    def _may_end_at(self, index: int) -> bool:
        """Whether all may go from the "and" that opens piece `index`."""
        if any(negations(piece.text) for piece in self.pieces):
            return False
        before, after = self.pieces[index - 1].tokens, self.pieces[index].tokens[1:]
        if not after or any(token.folded in classes.JOINING for token in before):
            return False
        counted = any(token.key[:1].isdigit() for token in before[-2:])
        return not (counted and (after[0].key[:1].isdigit() or not after[0].counts or len(after) == 1))


# ── in other arrangements ────────────────────────────────────────────────────────────────────────────────────────────


def _arrangements(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """A sentence's pieces, also with "of" for "'s", and with its set-off opening at the end."""
    for first in _genitive_tokens(pieces[0].tokens):
        yield [replace(pieces[0], tokens=first), *pieces[1:]]
    openings = {piece.opened for piece in pieces[1:]}
    words = {token.folded for piece in pieces for token in piece.tokens}
    if len(pieces) > 1 and openings == {"comma"} and words.isdisjoint(classes.COMPLEMENTIZERS):
        yield [replace(pieces[1], opened="start"), *pieces[2:], replace(pieces[0], opened="resumed")]


def _genitive_forms(tokens: list[Token]) -> Iterator[tuple[str, ...]]:
    for form in _genitive_tokens(tuple(tokens)):
        yield tuple(token.key for token in form if token.counts)


def _genitive_tokens(tokens: tuple[Token, ...]) -> Iterator[tuple[Token, ...]]:
    """The tokens as they are, and with "B of A" for an "A's B" at their beginning or behind a preposition."""
    yield tokens
    for mark, token in enumerate(tokens):
        if token.key != "'s":
            continue
        begin = next((place + 1 for place in reversed(range(mark)) if tokens[place].folded in classes.PREPOSITIONS), 0)
        of = replace(token, key="of", folded="of", shown="of")
        for end in range(mark + 2, min(mark + 2 + _MOST_HEAD_WORDS, len(tokens) + 1)):
            yield (*tokens[:begin], *tokens[mark + 1 : end], of, *tokens[begin:mark], *tokens[end:])


def _with_names_for_pronouns(
    wanted: list[Token], told: list[Piece], meant: frozenset[str]
) -> tuple[list[Token], list[Piece]] | None:
    """Claim and sentence without the pronoun that begins the sentence and the name that the claim puts for it.

    None where the claim has a word that the sentence lacks and no pronoun stands for.
    """
    held = {key for piece in told for key in piece.keys}
    new = [place for place, token in enumerate(wanted) if token.counts and token.key not in held]
    first = told[0].tokens[0].folded
    without = [replace(told[0], tokens=told[0].tokens[1:]), *told[1:]] if told[0].tokens[1:] else told
    if not new:
        is_named = first in classes.POSSESSIVES and all(token.folded != first for token in wanted)
        return wanted, without if is_named else told
    if any(meant.isdisjoint(terms(wanted[place].shown)) for place in new if wanted[place].key not in ("'s", "of")):
        return None
    names = [place for place in new if wanted[place].key not in ("'s", "of")]
    if not names:
        return wanted, told  # "of" for the sentence's "'s", or the other way round
    begin, end = names[0], names[-1] + 1
    if any(wanted[place].counts and place not in names for place in range(begin, end)):
        return None
    before = [token for token in wanted[:begin] if token.counts]
    if first in classes.SUBJECT_PRONOUNS and not before and not (end < len(wanted) and wanted[end].key == "'s"):
        return wanted[end:], without
    if first not in classes.POSSESSIVES:
        return None
    if not before and end < len(wanted) and wanted[end].key == "'s":
        return wanted[end + 1 :], without
    # "the deputy of the Ann" -> "the deputy"
    head = next((place for place in reversed(range(begin)) if wanted[place].counts), None)
    if head is None or wanted[head].folded not in classes.GENITIVE:
        return None
    return wanted[:head] + wanted[end:], without


# ── rows of a table ──────────────────────────────────────────────────────────────────────────────────────────────────


def row_says(claim: str, row: str) -> bool:
    """Whether `claim` tells the cells of `row`, "column: cell; column: cell", each whole and under its column's name.

    The first cell says what the row is about, and needs no name.
    """
    said = _row_words(claim)
    cells = [
        (_row_words(column), _row_words(cell)) for column, _, cell in (c.rpartition(": ") for c in row.split("; "))
    ]
    for place, (column, cell) in enumerate(cells):
        elsewhere = frozenset[str]().union(*(a | b for other, (a, b) in enumerate(cells) if other != place))
        is_named = not said.isdisjoint(column - elsewhere)
        is_told = not said.isdisjoint(cell - elsewhere)
        if (is_named or is_told) and not said >= cell | (column if place else frozenset()):
            return False
    return True


def _row_words(text: str) -> frozenset[str]:
    return frozenset(key for piece in pieces_of(text) for token in piece.tokens for key in [token.key] if key)

"""What a claim in a model's own words leaves out of the sentence that supports it, and must not.

The model may word things its own way, so that little can be told: whether what the subject stands under is kept, and
what limits the statement. For a model that is not free, `retrieval/shortening.py` asks for more.
"""

from retrieval import closed_classes as classes
from retrieval.qualifiers import limits
from retrieval.sentence_pieces import QUESTION_MARKS, Piece, Token, pieces_of

# What is longer than this is no mere "said Smith".
_MOST_ATTRIBUTION_WORDS = 8


def lost(claim: str, sentence: str) -> str | None:
    """What `claim`, in whatever words, leaves out of `sentence` that changes its meaning; None where nothing is found.

    The head of the subject ("the guarantee of the", "Smith said that"), and limits of the parts that it speaks of:
    bounds, hedges, exclusives, conditions and attributions. A claim that holds less of the sentence's beginning than
    that leaves out is no sentence, but an answer such as "27 months".
    """
    if sentence.endswith(QUESTION_MARKS) and not claim.endswith(QUESTION_MARKS):
        return sentence[-1]
    words = frozenset(token.folded for piece in pieces_of(claim) for token in piece.tokens)
    keys = frozenset(token.key for piece in pieces_of(claim) for token in piece.tokens if token.counts)
    told = pieces_of(sentence)
    spoken = [not keys.isdisjoint(_content(piece)) for piece in told]
    for place, piece in enumerate(told):
        if spoken[place]:
            missing = _lost_head(piece, keys) if piece.opened in ("start", "semicolon") else None
            missing = missing or _lost_limit(piece, words)
        elif any(spoken[max(0, place - 1) : place + 2]) and (is_condition(piece) or is_attribution(piece)):
            missing = piece.text.strip()
        else:
            missing = None
        if missing is not None:
            return missing
    return None


def _content(piece: Piece) -> frozenset[str]:
    return frozenset(token.key for token in piece.tokens if token.counts and token.folded not in classes.PREPOSITIONS)


def _lost_head(piece: Piece, keys: frozenset[str]) -> str | None:
    """What stands before the first word that is kept, if that hangs on it; or behind, "'s guarantee"."""
    tokens = [token for token in piece.tokens if token.counts]
    content = _content(piece)
    first = next((n for n, token in enumerate(tokens) if token.key in keys and token.key in content), 0)
    before = [token for token in tokens[:first] if token.key in content]
    governor = tokens[first - 1].folded if first else ""
    if before and governor in classes.COMPLEMENTIZERS:
        return _shown(tokens[:first])
    if before and governor in classes.PREPOSITIONS and len(keys) > first:
        return _shown(tokens[:first])
    for place, token in enumerate(tokens[first:], start=first):
        if token.key == "'s":
            possessed = tokens[place + 1 : place + 2]
            return _shown(tokens[place : place + 2]) if possessed and possessed[0].key not in keys else None
        if token.key not in keys:
            return None
    return None


def _lost_limit(piece: Piece, words: frozenset[str]) -> str | None:
    """The first word of a class that limits, of which the claim has none."""
    for limiting, alike in (
        (classes.EXCLUSIVES, frozenset[str]()),
        (classes.CONDITIONS, frozenset[str]()),
        (classes.BOUNDS, classes.LIKE_BOUNDS),
        (classes.HEDGES, classes.LIKE_HEDGES),
    ):
        following = [*(token.folded for token in piece.tokens[1:]), ""]
        found = (
            token.shown
            for token, after in zip(piece.tokens, following, strict=True)
            if token.folded in limiting and (token.folded != "up" or after == "to") and token.shown != "May"
        )
        if words.isdisjoint(limiting | alike) and (word := next(found, None)):
            return word
    return None


def is_condition(piece: Piece) -> bool:
    """Whether a piece says under which condition the others hold."""
    words = [token.folded for token in piece.tokens]
    return bool(
        limits(piece.text)
        or not (classes.CONDITIONS | classes.EXCLUSIVES).isdisjoint(words[:2])
        or classes.UNSPACED_LIMITERS.match(piece.text.strip())
    )


def is_attribution(piece: Piece) -> bool:
    """Whether a piece says by whose word the others hold."""
    words = [token.folded for token in piece.tokens]
    return len(words) <= _MOST_ATTRIBUTION_WORDS and not classes.ATTRIBUTIONS.isdisjoint(words)


def _shown(tokens: list[Token]) -> str:
    return " ".join(token.shown for token in tokens)

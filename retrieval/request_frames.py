"""What is said around a question ("Can you tell me …, please?"), which says nothing of what is asked.

A short table for common languages, as in `definitions`: what it does not know stays.
"""

import re

from retrieval.question_kind import topic_terms
from retrieval.words import UNSPACED

_MANNERS = r"(?:(?:please|kindly|hi|hello|hey|hallo|bitte|bonjour|hola|por favor|s'il (?:te|vous) pla[iî]t)\b[\s,!.]*)*"
_ABOUT = r"(?:(?: something| anything| everything| all| more| a (?:bit|little) more)? (?:about|on|of)\b)?"
_FRAMES = re.compile(
    rf"¿?{_MANNERS}(?:"
    r"(?:(?:can|could|would|will) (?:you|someone|anyone|anybody) (?:please |kindly )?)?"
    rf"(?:tell|remind|inform|show) (?:me|us){_ABOUT}|"
    r"(?:can|could|would|will) (?:you|someone|anyone|anybody) (?:please |kindly )?"
    rf"(?:say|explain|describe)(?: to (?:me|us))?{_ABOUT}|"
    r"(?:please )?(?:explain|describe)(?: to (?:me|us))?|"
    rf"(?:(?:do|would) you (?:happen to )?)know{_ABOUT}|"
    r"what (?:do you know|can you (?:tell|say)(?: me| us)?|is known) about|"
    r"(?:i|we)(?:'d|’d| would)? (?:want|need|like|have|am trying|was hoping) to (?:know|find out|ask|learn)"
    rf"(?: from you)?{_ABOUT}|i(?:'m|’m| am| was) wondering(?: about)?|any (?:idea|clue)|"
    r"(?:k[aoö]nn(?:te)?st du|k[oö]nn(?:t)?en sie) (?:mir|uns) (?:bitte )?(?:sagen|erkl[aä]ren|verraten),?|"
    r"(?:wei(?:ß|ss)t du|wissen sie),?|ich (?:m[oö]chte|w[uü]rde gern) wissen,?|"
    r"(?:sag|erz[aä]hl)e? (?:mir|uns)(?: (?:etwas|mehr))?(?: [uü]ber| von)?,?|was wei(?:ß|ss)t du [uü]ber|"
    r"(?:pouvez-vous|peux-tu|pourriez-vous|pourrais-tu) (?:me|nous) (?:dire|expliquer)|(?:dis|dites)-moi|"
    r"(?:savez-vous|sais-tu)|(?:parle|parlez)-moi (?:de|du|des)|"
    r"(?:(?:me )?(?:puedes|puede|podr[ií]as?)) (?:decir|explicar)(?:me|nos)?|(?:dime|d[ií]game)|(?:sabes|sabe)|"
    r"(?:h[aá]blame|cu[eé]ntame) (?:de|del|sobre)|"
    r"(?:puoi|pu[oò]|potresti) (?:dirmi|spiegarmi)|(?:dimmi|mi dica)|"
    r"(?:请问|請問|请告诉我|請告訴我|你知道|能告诉我)"
    rf")(?:[\s,:]+(?:whether|if|that|ob|si)\b)?(?:[\s,:]+(?=\w)|(?=[{UNSPACED}]))",
    re.IGNORECASE,
)
_THANKS = re.compile(
    r"[\s,]+(?:please|thanks|thank you|bitte|danke|s'il (?:te|vous) pla[iî]t|merci|por favor|gracias|per favore|grazie)"
    r"(?=[\s.!?]*$)",
    re.IGNORECASE,
)


def _without_start(question: str) -> str:
    frame = _FRAMES.match(question)
    return question[frame.end() :] if frame else question


def without_frame(question: str) -> str:
    """The question alone; as it is, where nothing would be left that says what it is about ("Tell me more, please")."""
    plain = _THANKS.sub("", _without_start(question.strip()))
    return plain if topic_terms(plain) or re.search(f"[{UNSPACED}]", plain) else question

"""Words of closed classes, which tell how the words of a sentence hang together: prepositions, conjunctions, hedges.

English, German, Spanish and French, folded (no capitals, no accents) and in one set a class: no sentence is asked for
its language, and a word that belongs to a class in one language only makes a check stricter in another.
"""

import re

LANGUAGES = frozenset(("en", "de", "es", "fr"))
"""ISO 639 codes of these languages."""


def _words(*languages: str) -> frozenset[str]:
    return frozenset(word for language in languages for word in language.split())


# Without case, so that nothing is lost with them. German articles have case: "der Lampe" is not "die Lampe".
ARTICLES = _words("a an the", "el la las los un una", "le les l' une")
# Before these an article changes the meaning: "a few" is not "few".
AFTER_ARTICLE = _words("few little", "poco pocos poca pocas peu")
AND = _words("and &", "und sowie", "y e", "et")
OR_BUT = _words("or nor but yet whereas", "oder aber sondern noch doch", "o u ni pero sino mas", "ou mais ni sinon")
# Beside "and" these make one thing of two: "between 3 and 5".
JOINING = _words("between both", "zwischen sowohl", "entre", "entre")
GENITIVE = _words("of", "von vom", "de del", "du des d'")
PREPOSITIONS = GENITIVE | _words(
    "in on at by for from to with without within during after before since until till under over above below between "
    "among against through throughout per as like unlike despite because due given depending via upon into onto "
    "outside inside beyond across about around toward towards except besides pending subject up",
    "im am an auf aus bei beim mit nach seit zu zum zur durch fur gegen ohne um unter uber vor zwischen wahrend wegen "
    "trotz statt innerhalb ausserhalb bis ab je pro",
    "al ante bajo con contra desde durante en entre hacia hasta mediante para por sin sobre tras",
    "au aux avec chez dans depuis devant durant hors jusqu' jusque malgre par parmi pendant pour sans sous sur vers",
)
# They begin clauses that say when or why something holds, or what somebody says.
SUBORDINATORS = _words(
    "although though while since so that as because where how why",
    "weil da dass damit obwohl wahrend indem sodass obgleich wo wie wobei",
    "porque aunque mientras que como",
    "parce puisque quoique bien afin que qu' comme alors",
)
COMPLEMENTIZERS = _words("that whether", "dass ob", "que", "qu'")
# German sets off every relative clause by commas, those that limit too.
GERMAN_RELATIVES = _words(
    "der die das dem den dessen deren denen welche welcher welches welchem welchen wer was worin womit wodurch"
)
CONDITIONS = _words(
    "if unless when whenever provided providing whether once except excepted excepting excluded excluding assuming",
    "wenn falls sofern soweit solange bevor nachdem ob ausser ausgenommen",
    "si cuando siempre mientras salvo excepto",
    "quand lorsque lorsqu' sauf hormis excepte tant pourvu condition",
)
EXCLUSIVES = _words(
    "only merely solely exclusively", "nur bloss lediglich ausschliesslich", "solo solamente unicamente exclusivamente",
    "seulement uniquement exclusivement",
)  # fmt: skip
BOUNDS = _words(
    "least most maximum minimum more less fewer almost nearly approximately roughly up",
    "mindestens hochstens maximal minimal etwa ungefahr fast rund circa knapp bis",
    "minimo maximo menos mas casi aproximadamente alrededor unos unas hasta",
    "moins plus environ presque jusqu' jusque",
)
# What may stand for a bound or a hedge that is told in other words.
LIKE_BOUNDS = _words("over above under below about around limit", "uber unter", "sobre limite", "pres limite")
LIKE_HEDGES = _words("can allowed permitted", "kann konnen darf durfen", "puede pueden", "peut peuvent")
HEDGES = _words(
    "may might could perhaps possibly probably likely maybe allegedly supposedly reportedly apparently usually "
    "normally generally typically often sometimes occasionally rarely seldom hardly barely partly formerly previously "
    "temporarily",
    "vielleicht moglicherweise wahrscheinlich angeblich vermutlich offenbar meist meistens gewohnlich normalerweise "
    "oft manchmal selten kaum teilweise fruher konnte konnten",
    "quiza quizas posiblemente probablemente supuestamente aparentemente normalmente generalmente frecuentemente veces "
    "raramente apenas antes podria podrian",
    "peut-etre probablement possiblement pretendument apparemment normalement generalement souvent parfois rarement "
    "autrefois pourrait pourraient",
)
DUTIES = _words("must should shall", "muss mussen soll sollen sollte", "debe deben", "doit doivent")
# What makes a statement somebody's: "according to …", "…, said Smith".
ATTRIBUTIONS = _words(
    "according say says said claim claims claimed think thinks thought believe believes believed allege alleges "
    "alleged argue argues argued report reports reported deny denies denied doubt doubts doubted suppose supposes "
    "supposed hope hopes hoped expect expects expected seem seems seemed appear appears appeared",
    "laut gemass zufolge sagt sagte sagten behauptet behauptete behaupten meint meinte meinen glaubt glaubte glauben "
    "hofft hoffen scheint scheinen",
    "segun dice dicen dijo dijeron afirma afirman afirmo cree creen asegura aseguran aseguro espera esperan parece",
    "selon dit disent affirme affirment affirma pretend pretendent croit croient pense pensent declare declara "
    "espere esperent semble semblent",
)
# None of these may go with a part that is left out.
LIMITERS = OR_BUT | CONDITIONS | EXCLUSIVES | BOUNDS | HEDGES | DUTIES | ATTRIBUTIONS
# The same in scripts without spaces.
UNSPACED_LIMITERS = re.compile(
    "[只仅僅若]|如果|除非|除了|可能|或者|至少|最多|据|もし|場合|なら|のみ|だけ|または|만약|경우|또는"
)

SUBJECT_PRONOUNS = _words("he she it they", "er sie es", "el ella ello ellos ellas", "il elle ils elles")
SPEAKERS = SUBJECT_PRONOUNS | _words("i we you one", "ich wir du ihr man", "yo nosotros", "je j' nous vous on")
POSSESSIVES = _words(
    "his her its their",
    "sein seine seiner seines seinem seinen ihr ihre ihrer ihres ihrem ihren",
    "su sus",
    "son sa ses leur leurs",
)
# They join a sentence to the one before it, and say nothing of their own.
CONNECTIVES = _words(
    "also however moreover furthermore additionally therefore thus hence consequently accordingly likewise similarly",
    "auch jedoch allerdings ausserdem zudem ferner daher deshalb folglich somit ebenso ebenfalls",
    "tambien ademas asimismo",
    "aussi egalement cependant toutefois neanmoins donc",
)
CONNECTIVE_PHRASES = frozenset(
    (
        "in addition", "for example", "for instance", "in fact", "of course", "as a result", "zum beispiel",
        "daruber hinaus", "por ejemplo", "por tanto", "por lo tanto", "sin embargo", "no obstante", "de hecho",
        "par exemple", "par consequent", "en outre", "de plus", "en effet",
    )
)  # fmt: skip

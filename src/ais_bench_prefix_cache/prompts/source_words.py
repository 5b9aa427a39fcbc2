"""The words that prompts of a source are made of: nonces, and natural text to fill up with."""

from __future__ import annotations

_COMMON_WORDS = """
able acid actor adult age agent air alarm album angle animal apple area arm army art author baby back bad bag ball
band bank bar base basic bath beach bear beat bed beer bell belt bench bike bill bird black block blood blue board
boat body bone book border boss bottle bowl box boy brain branch bread bridge broad brown brush bug build burn bus
butter cable cake call camera camp card care case cash castle cat cell chain chair chart cheap check cheese chest
chief child church circle city class clean clear clock close cloud club coach coast coat code coffee cold color
comic cook cool copy corn corner cost country court cover craft cream crew crop cross crowd cup cut cycle dance dark
data date day deal deep deer desk dinner dish doctor dog door double down draft dream dress drink drive drop dry
duck dust duty early earth east easy edge egg eight empty energy engine event exit extra eye face fact fair fall
family fan farm fast father field fifth film final fire firm first fish five flag flat floor flow flower fly food
foot force forest fork form four frame free fresh friend front fruit fuel full fun future game garden gas gate gift
girl glass goal gold good grand grass gray great green grid ground group guard guest guide gun hair half hall hand
hard hat head heart heat heavy high hill history hold hole home horse hospital hotel house human
ice idea iron item jacket job juice king kitchen
"""
NONCE_WORDS = tuple(_COMMON_WORDS.split())
"""256 common words, each of them one token after a space in most vocabularies."""

SENTENCES = (
    "The night train crosses the valley slowly, and its lamps draw a thin yellow line along the river.",
    "She counted forty boxes in the store room, wrote the number on the door, and locked up for the winter.",
    "A good map shows what is there; a better one also shows what the traveller should not expect to find.",
    "When the rain stopped, the children ran down to the harbour to see whether the boats had come back.",
    "Every engineer on the team reads the same log each morning, yet no two of them notice the same thing.",
    "The baker starts at three, the postman at five, and the school bell rings at ten minutes to eight.",
    "Take two cups of flour, one egg and a little salt, then leave the dough to rest under a damp cloth.",
    "Nobody remembers who planted the old pear tree, but three families still share its fruit every autumn.",
    "The report compares six cities over ten years and finds that wider roads did not make journeys shorter.",
    "He tuned the radio past the news, past a quiet piano, and stopped where an old song was just ending.",
    "Before the bridge was built, a ferry carried carts and cattle across whenever the wind allowed it.",
    "Our neighbour keeps bees on the roof and says that the honey tastes of whatever the park has in bloom.",
    "If the first key does not fit, try the small one; the lock is stiff and wants to be turned gently.",
    "The library lends out seeds in spring, and asks its readers to bring some back after the harvest.",
    "Snow fell all week on the upper villages, while in the plain people were already working in the fields.",
    "A clock with a single hand is easy to read once you stop asking it for more than it can tell.",
)
"""Text that fills a prompt up, sentence after sentence."""

"""How texts are prepared for comparison, and the general texts they are compared with."""

from __future__ import annotations

import re

from framework.registry import Candidate

MAX_CHARACTERS = 4000  # of a task; what a longer one asks is said within these
MAX_CLAUSES = 8

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[_\-.&/]+")
_DIGIT = re.compile(r"\d")
_PUNCTUATION = re.compile(r"[.!?:;,()]\s+|[.!?:;,()]$")
_CLAUSE = re.compile(
    r"[.;?!]\s+|,?\s+(?:and|then|also|while|plus)\s+(?:also\s+|then\s+)*|\s+as well as\s+",
    re.IGNORECASE,
)


def readable(name: str) -> str:
    """Write an identifier as words.

    >>> readable("time_range_parsing"), readable("NewsTool")
    ('time range parsing', 'news tool')
    """
    return _SEPARATORS.sub(" ", _CAMEL.sub(" ", name)).strip().lower()


def normalise(text: str) -> str:
    """Lower the case and give all numbers of one length the same form.

    >>> normalise("Sales in 2015, week 31")
    'sales in 0000, week 00'
    """
    return _DIGIT.sub("0", text.lower())


def describe(candidate: Candidate) -> str:
    """Join a candidate's name, description and instructions into one text.

    >>> describe(Candidate("sum_up", "Adds numbers.", "Choose it for totals."))
    'sum up. Adds numbers. Choose it for totals.'
    """
    parts = (readable(candidate.name) + ".", candidate.description, candidate.instructions)
    return " ".join(part.strip() for part in parts if part.strip())


def pieces(candidate: Candidate) -> list[str]:
    """Split a candidate's description and instructions at punctuation.

    >>> pieces(Candidate("statistics", "Computes figures: mean, median, trend."))
    ['Computes figures', 'mean', 'median', 'trend']
    """
    text = f"{candidate.description} {candidate.instructions}"
    parts = [part.strip() for part in _PUNCTUATION.split(text)]
    parts = [part for part in parts if len(part) > 3]
    return parts if len(parts) > 1 else []


def clauses(task: str) -> list[str]:
    """Split a compound request; a simple one gives an empty list.

    >>> clauses("Find the hottest day and plot the daily highs")
    ['Find the hottest day', 'plot the daily highs']
    >>> clauses("Find the hottest day")
    []
    """
    parts = [part.strip() for part in _CLAUSE.split(task)]
    parts = [part for part in parts if len(part.split()) >= 3]
    return parts[:MAX_CLAUSES] if len(parts) > 1 else []


# Words that say how something is asked, not what is asked for.
_FUNCTION_WORDS = """
    a about all also am an and any are as at be been being but by can could did do does doing
    for from get give had has have having he her here him his how i if in into is it its just
    let like may me might mine must my need no not of off on one or our out please s shall she
    should show so some t tell than that the their them then there these they this those to too
    us use want was we were what when where which while who whom whose why will with would you
    your yours
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

# What people say to any assistant. These texts stand for "no capability fits": each is
# left out where a registry does serve something like it.
UNRELATED = tuple(
    line.strip()
    for line in """
    hello
    hi there
    hey how are you
    good morning
    good evening
    thank you very much
    thanks a lot
    bye see you later
    what is your name
    who are you
    what can you do
    who made you
    are you a robot
    can you help me
    tell me something
    i am bored
    how is your day going
    nice to meet you
    yes
    no
    ok great
    never mind
    tell me a joke
    tell me a story
    write me a poem
    write a poem about love
    write a short story about a dragon
    write a song about the sea
    write an essay about freedom
    write an email to my boss
    write a cover letter for me
    write a birthday message for my friend
    what is the capital of italy
    what is the largest ocean
    who was the first person on the moon
    who wrote hamlet
    who is the president of the united states
    who painted the mona lisa
    when did the second world war end
    when was the roman empire founded
    why is the sky blue
    why do cats purr
    how far away is the moon
    how tall is the eiffel tower
    how many people live in china
    how many legs does a spider have
    how do airplanes fly
    how does a car engine work
    how do i bake bread
    how do i tie a tie
    give me a recipe for pancakes
    what should i cook for dinner
    what is the meaning of life
    what do you think about politics
    do you believe in god
    is there life on other planets
    explain quantum physics to me
    explain the theory of relativity
    what is photosynthesis
    what is the speed of light
    what is the square root of 81
    what is two plus two
    how much is 12 times 34
    solve this equation for x
    translate this sentence into french
    how do you say hello in spanish
    how do you spell necessary
    what does serendipity mean
    what is a synonym for happy
    fix the grammar of this sentence
    summarize this article
    write a python function that sorts a list
    how do i reverse a linked list
    debug this code
    what is the best movie of all time
    recommend a good book
    what music do you like
    who won the world cup
    how do i lose weight
    how do i get better sleep
    i have a headache what should i do
    my dog is sick
    should i break up with my girlfriend
    how can i make more friends
    give me some advice about my career
    what should i wear today
    what is your favorite color
    sing me a song
    let's play a game
    flip a coin
    roll a dice
    book a flight to london
    order a pizza
    call my mother
    set an alarm for seven
    turn on the lights
    play some music
    where is the nearest restaurant
    how do i get to the airport
    what time is it
    send a message to john
    buy me a new phone
    remind me to buy milk
    find me a job
    """.strip().splitlines()
)

"""Selection among many capabilities whose examples share few words."""

from __future__ import annotations

import pytest

from capgraph.selection import Candidate, LexicalSelector

_INTENTS = """
alarm_set: wake me at six | i need to get up early tomorrow | set my morning alarm | ring at noon please | new alarm for eight
alarm_query: which alarms are on | when will i be woken | list my alarms | is there one for seven | what time does it ring
lights_off: make it dark in here | kill the lamps | switch off the light | lights out please | no more light in the hall
lights_dim: lower the brightness | a bit less bright | dim the bedroom | soften the lamp a little | reduce the glow
volume_up: louder please | i cannot hear it | turn up the sound | raise the volume | speak up
volume_mute: be quiet | silence for an hour | mute yourself | shut up now | stop making noise
play_music: put on some jazz | i want to hear abba | start my party list | play that song again | music please
play_radio: tune to the news station | radio four please | put the radio on | switch to channel nine | start the fm tuner
calendar_add: meeting with ann on friday | remember the dentist at ten | put lunch in my diary | note the birthday of tom | schedule a call
calendar_query: what is on today | am i free on monday | my next appointment | do i meet somebody this week | show the agenda
calendar_remove: cancel the meeting | clear my friday | drop the dentist | delete that event | i will not go to lunch
weather: will it rain | do i need a coat | how hot is it outside | forecast for paris | is a storm coming
traffic: is the motorway jammed | how long is my drive to work | any accidents ahead | roads to leeds now | traffic report
taxi: get me a cab | i need a ride home | book an uber to town | order a car for nine | taxi to the airport
train: when does the express leave | seats to rome by rail | ticket for the next train | platform for york | railway times
recipe: how do i cook rice | a soup with leeks | what goes into pesto | dinner ideas with eggs | bake bread how
order_food: a pizza to my place | get sushi delivered | order the usual curry | hungry send burgers | takeaway from mario
email_send: write to my boss | reply to eva that i agree | send mail to the team | tell john by mail | compose a message
email_query: anything new in my inbox | did sam write back | unread mails | check my mail | who wrote to me
joke: make me laugh | something funny | tell a joke | got a pun | cheer me up with humor
news: what happened in the world | headlines please | latest on the election | any sports results | news from asia
stocks: how is apple trading | price of tesla shares | dow jones today | did my shares fall | market summary
""".strip()
INTENTS = tuple(
    Candidate(name, "", positives=tuple(text.split(" | ")))
    for name, _, text in (line.partition(": ") for line in _INTENTS.splitlines())
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("any new mail from sam", "email_query"),
        ("switch the lamp off", "lights_off"),
        ("when is my next meeting", "calendar_query"),
        ("reply to john", "email_send"),
        ("is it going to rain in rome", "weather"),
        ("cook a dinner with rice", "recipe"),
        ("what is the price of apple shares", "stocks"),
        ("book a cab to the airport", "taxi"),
        ("turn the sound up a bit", "volume_up"),
        ("how long is the drive home", "traffic"),
    ],
)
async def test_exactly_one_of_many_intents_is_chosen(request_: str, expected: str) -> None:
    assert (await LexicalSelector().select(request_, INTENTS)).names == (expected,)

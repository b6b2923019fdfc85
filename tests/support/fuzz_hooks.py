"""What schemathesis is told of the served tank; it runs with an interpreter of its own."""

import os
import random

import schemathesis

THINGS = os.environ["FUZZ_THINGS"].split()
CANARY = os.environ["FUZZ_CANARY"]


@schemathesis.hook
def map_path_parameters(ctx, path_parameters):
    # Ids that are there, of the user's own and of another user, among those that are made up.
    chance = random.Random(str(path_parameters))
    for name in ("id", "file_id"):
        if name in (path_parameters or {}) and chance.random() < 0.7:
            path_parameters[name] = chance.choice(THINGS)
    return path_parameters


@schemathesis.check
def nothing_of_another_user(ctx, response, case):
    if CANARY.encode() in response.content or "x-content-type-options" not in response.headers:
        raise AssertionError(f"The answer holds what is another user's: {response.text[:500]}")

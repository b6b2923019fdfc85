"""Small registries as users write them first, with requests and what each needs.

The requests share no sentence with the examples of the capabilities, and many use words
that occur in none of them.
"""

from __future__ import annotations

from capgraph.selection import Candidate

DATA_AGENT = (
    Candidate(
        "time_range_parsing",
        "Turns dates, months, seasons, years and relative expressions in a question into a "
        "time range with start and end.",
        "Needed whenever the question is about a certain period of time.",
        positives=(
            "What was the average temperature in March 2012?",
            "Show the stock price between January and June 2008",
            "How did sales develop last week?",
            "Compare summer 2014 with summer 2015",
            "Which day of 2013 had the most rain?",
            "Plot the last 30 days",
            "How cold was it yesterday?",
        ),
        negatives=("List the columns of my file", "My name is Ann", "What can you do?"),
    ),
    Candidate(
        "data_retrieval",
        "Reads measurements from the files of the user (CSV, Parquet, SQLite): weather, "
        "temperatures, stock prices, sales, any table with columns.",
        "Needed for every question about values in the user's data.",
        positives=(
            "What was the average temperature in March 2012?",
            "Show the stock price of AAPL in 2008",
            "How much rain fell in Seattle in April?",
            "What is the highest wind speed in the data?",
            "Which columns does the file have?",
            "How many rows are in the table?",
            "Load the unemployment numbers",
            "Plot daily highs of last summer",
        ),
        negatives=("Remember that I live in Oslo", "Thanks, that is all", "Write me a poem"),
    ),
    Candidate(
        "statistics",
        "Computes statistics of a series: minimum, maximum, mean, median, sum, count, trend, "
        "comparison of two periods, anomalies.",
        "Needed when the question asks for a number, an extreme, a change or a comparison.",
        positives=(
            "What was the average temperature in March 2012?",
            "Which day was the hottest?",
            "How much rain fell in Seattle in April?",
            "What is the highest wind speed in the data?",
            "Is the stock price rising or falling?",
            "Compare summer 2014 with summer 2015",
            "How many days were colder than zero?",
            "What is the median income?",
            "Were there any unusual values?",
        ),
        negatives=("Just draw the temperatures", "Remember that I live in Oslo", "Hello there"),
    ),
    Candidate(
        "plotting",
        "Draws a chart of a series: line plot, bars, highs and lows over time, saved as PNG.",
        "Needed when the user wants to see a picture, chart, graph or plot of how values moved.",
        positives=(
            "Plot daily highs of last summer",
            "Show me a chart of AAPL in 2008",
            "Draw the temperatures of 2014",
            "Graph the number of passengers by month",
            "Visualise wind speed over the year",
            "How did daily highs move over those months?",
        ),
        negatives=(
            "What was the average temperature in March 2012?",
            "Which day was the hottest?",
            "How many rows are in the table?",
        ),
    ),
    Candidate(
        "memory",
        "Remembers facts about the user across conversations and recalls them.",
        "Needed when the user states a fact to keep or asks for one that was kept.",
        positives=(
            "Remember that I live in Oslo",
            "My favourite station is Seattle",
            "What do you know about me?",
            "Forget where I live",
            "Note that I prefer Celsius",
            "Where did I say I live?",
        ),
        negatives=("How cold was it yesterday?", "Which day was the hottest?", "Plot it"),
    ),
)

SUPPORT = (
    Candidate(
        "order_status",
        "Finds where an order is and when it arrives.",
        positives=(
            "Where is my order?",
            "When will my package arrive?",
            "Has my parcel been shipped yet?",
            "Track order 4711",
            "My delivery is late",
        ),
        negatives=("I want my money back",),
    ),
    Candidate(
        "refund",
        "Starts a return and pays the money back.",
        positives=(
            "I want my money back",
            "How do I return these shoes?",
            "The item is broken, please refund it",
            "Cancel the purchase and reimburse me",
            "I would like to send this jacket back",
        ),
        negatives=("Where is my order?",),
    ),
    Candidate(
        "invoice",
        "Sends invoices and receipts for purchases.",
        positives=(
            "Send me the invoice",
            "I need a receipt for my taxes",
            "Can I get a bill with VAT for order 12?",
            "Please mail the invoice again",
            "My company needs a proper receipt",
        ),
    ),
    Candidate(
        "change_address",
        "Changes the delivery or billing address of a customer.",
        positives=(
            "I moved, please update my address",
            "Deliver it to my office instead",
            "Change the shipping address of order 99",
            "My street has changed",
            "Use another billing address",
        ),
    ),
)

HOME = (
    Candidate(
        "lights",
        "Switches lamps on and off and dims them.",
        positives=(
            "Turn on the lights in the kitchen",
            "Dim the bedroom lamp",
            "Switch off all lights",
            "Make the living room brighter",
            "Lights out please",
        ),
    ),
    Candidate(
        "thermostat",
        "Sets and reads the temperature of the rooms.",
        positives=(
            "Set the heating to 21 degrees",
            "It is too cold in here",
            "Make the bedroom warmer",
            "What is the temperature in the bathroom?",
            "Turn the heating down at night",
        ),
    ),
    Candidate(
        "music",
        "Plays songs, albums and radio stations on the speakers.",
        positives=(
            "Play some jazz",
            "Put on the new album by Adele",
            "Next song please",
            "Turn up the volume",
            "Start my workout playlist",
        ),
    ),
)

REGISTRIES = {"data": DATA_AGENT, "support": SUPPORT, "home": HOME}

T, D, S, P, M = (candidate.name for candidate in DATA_AGENT)

# Requests that need capabilities of a registry, and which.
REQUESTS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("data", "Which month of 2009 had the lowest closing price for Google?", frozenset({T, D, S})),
    ("data", "What was the total precipitation in Portland in winter 2010?", frozenset({T, D, S})),
    (
        "data",
        "Draw a bar chart of electricity generation by source since 2005",
        frozenset({T, D, P}),
    ),
    ("data", "Mean horsepower in the table", frozenset({D, S})),
    ("data", "Was there a trend in employment from 2007 to 2010?", frozenset({T, D, S})),
    (
        "data",
        "What was the hottest day in Seattle in the summer of 2015, and how did daily highs move "
        "over those months?",
        frozenset({T, D, S, P}),
    ),
    (
        "data",
        "Find the windiest day of 2013 and plot the wind for that year",
        frozenset({T, D, S, P}),
    ),
    ("data", "How many employees worked in construction in May 2009?", frozenset({T, D, S})),
    ("data", "Compare hydro output in 2001 with 2010", frozenset({T, D, S})),
    ("data", "Remember that my favourite stock is IBM", frozenset({M})),
    ("data", "What did I tell you about my home town?", frozenset({M})),
    ("data", "Please keep in mind that I like Fahrenheit better", frozenset({M})),
    ("data", "Give me a line graph of the humidity", frozenset({D, P})),
    ("data", "When did Amazon trade above 100 dollars for the first time?", frozenset({D, S})),
    ("support", "my parcel still has not come", frozenset({"order_status"})),
    ("support", "these trousers do not fit, I want to give them back", frozenset({"refund"})),
    ("support", "where can I download receipts for last year", frozenset({"invoice"})),
    ("support", "I live in a new flat now, the address is wrong", frozenset({"change_address"})),
    ("support", "when does the delivery get here", frozenset({"order_status"})),
    (
        "support",
        "Send me the receipt for order 5 and tell me when the package gets here",
        frozenset({"invoice", "order_status"}),
    ),
    ("home", "switch the lamp in the hall off", frozenset({"lights"})),
    ("home", "play the Beatles in the garden", frozenset({"music"})),
    ("home", "heat the office to 19 degrees", frozenset({"thermostat"})),
    (
        "home",
        "Dim the lights in the living room and play some soft piano songs",
        frozenset({"lights", "music"}),
    ),
    (
        "home",
        "Turn the heating off, switch off the lamps and stop the radio",
        frozenset({"lights", "music", "thermostat"}),
    ),
)

# The same, written after every setting was fixed.
FRESH_REQUESTS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("data", "How warm did it get in Denver in August 2011?", frozenset({T, D, S})),
    ("data", "Count the days with snow in December", frozenset({T, D, S})),
    ("data", "What was the largest daily loss of Microsoft in 2008?", frozenset({T, D, S})),
    ("data", "Sketch a graph of nuclear and wind power", frozenset({D, P})),
    ("data", "Median price of gold during 2012", frozenset({T, D, S})),
    ("data", "Find outliers in the sensor readings", frozenset({D, S})),
    ("data", "Chart the unemployment rate and tell me its trend", frozenset({D, S, P})),
    ("data", "Remember my name is Peter", frozenset({M})),
    ("data", "Do you recall which city I live in?", frozenset({M})),
    ("data", "Which year had the fewest passengers?", frozenset({D, S})),
    ("support", "my package is lost, can you track it", frozenset({"order_status"})),
    ("support", "the shirt is torn, give me my money", frozenset({"refund"})),
    ("support", "VAT bill needed for our accounting", frozenset({"invoice"})),
    ("support", "ship it to a different street please", frozenset({"change_address"})),
    ("support", "Cancel order 8 and mail me the invoice", frozenset({"refund", "invoice"})),
    ("home", "it is dark in the kitchen, more light", frozenset({"lights"})),
    ("home", "louder please and next track", frozenset({"music"})),
    ("home", "I am freezing, warm up the bathroom", frozenset({"thermostat"})),
    ("home", "Start the radio and dim the lamp", frozenset({"lights", "music"})),
    ("home", "set 18 degrees for the night", frozenset({"thermostat"})),
)

FRESH_UNRELATED = (
    "What is the capital of Spain?",
    "Compose a limerick",
    "hey there",
    "Who discovered penicillin?",
    "What is the boiling point of helium?",
    "Give me a recipe for apple pie",
    "Write an essay on democracy",
    "Correct the spelling of this text",
    "How do I learn to juggle?",
    "Should I buy a cat or a dog?",
    "lorem ipsum dolor",
    "Name three famous painters",
)

# Requests that none of the registries serves.
UNRELATED_REQUESTS = (
    "What is the capital of France?",
    "write me a poem",
    "Write me a poem about autumn",
    "hello",
    "Hi!",
    "Who invented the telephone?",
    "Tell me a fairy tale about a princess",
    "Translate 'good night' to German",
    "How do I cook spaghetti carbonara?",
    "What is 17 times 23?",
    "Explain how vaccines work",
    "Which language is spoken in Brazil?",
    "asdf qwer zxcv",
    "Give me three ideas for a birthday present",
    "Why did the Roman Empire fall?",
    "Fix this bug in my javascript",
    "Do you like football?",
    "Good afternoon, nice to see you",
    "Is it healthy to drink coffee?",
    "What happens after death?",
)

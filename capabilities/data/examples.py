"""Questions about data that the capabilities learn to be chosen by, without a model.

They are shared: whoever asks for a value needs the data and, often, its time. Varied words and
fields matter more than their number, because the offline choice compares words.
"""

from __future__ import annotations

TIMED_QUESTIONS = (
    "What was the hottest day in the summer of 2015?",
    "What was the average price of Microsoft in 2006?",
    "How much rain fell in November 2013?",
    "Compare rainfall in 2012 and 2013",
    "Was 2013 warmer than 2012?",
    "Total sales in the third quarter of 2021",
    "How many days were above 30 degrees in 2015?",
    "Average power consumption last week",
    "Rainfall yesterday",
    "What were the readings on 4 July 2012?",
    "How many people died on 30 April 1992?",
    "How much electricity was generated in 2010?",
    "unemployment in the 1990s",
)
UNTIMED_QUESTIONS = (
    "max pressure in bar",
    "list the regions",
    "world production of wheat",
    "what fraction of the orders is late",
    "Which month was the windiest?",
    "coldest day",
    "highest price",
    "longest dry spell",
    "average value by group",
    "median and standard deviation of the readings",
    "When did the load first exceed 500 kW?",
    "How many days did it rain?",
    "How many customers are in Texas?",
    "Which state has the most airports?",
    "Is there a correlation between wind and temperature?",
    "90th percentile of the response time",
    "Average age by gender",
    "Top 5 hottest days",
    "Growth of revenue in percent",
    "What is the trend of wages?",
    "how cold did it get",
    "monthly totals",
    "visitors by weekday",
)
MOVEMENTS = (
    "How did daily highs move over those months?",
    "Show the trend of manufacturing jobs",
    "How have wages changed over time?",
)
PICTURES = (
    "Plot the daily highs of July",
    "Show a chart of the stock prices",
    "Draw the temperature over the year",
    "Visualise electricity generation by source",
    "Make an SVG of the hourly load",
    "plot rainfall in 2012",
    "Graph of it",
    "a chart, please",
    "I want to see a picture of the prices",
)
UNRELATED = (
    "Remember that I prefer Celsius",
    "What do you know about me?",
    "Write a poem about the sea",
    "Translate this sentence into French",
    "Book a table for two",
    "Play some music",
    "Open the window, please",
    "Who won the world cup in 2014?",
    "Convert ten miles to kilometres",
    "Draw a picture of a dog",
)

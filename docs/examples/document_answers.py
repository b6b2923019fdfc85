"""Question answering with citations over a folder of documents.

    python document_answers.py docs/ "What happens if the disk is full?"

The index is SQLite's full-text search behind LangChain's retriever interface, so any vector store can
take its place. Without a model, the answer quotes the best sentence. With one, the model writes the
answer from the passages, and each citation is checked against them.

    python document_answers.py docs/ "What happens if the disk is full?" --model openai:gpt-5-mini
"""

import argparse
import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from capgraph import BaseCapability, CapabilityContext, build_graph, capability_node
from capgraph.base import StepContext

STOP_WORDS = {"a", "an", "and", "are", "does", "how", "in", "is", "it", "of", "the", "to", "what"}


class FolderRetriever(BaseRetriever):
    """Retriever over the paragraphs of the Markdown and text files in a folder."""

    folder: Path
    limit: int = 4
    _index: sqlite3.Connection = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the files into an index in memory."""
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE passages USING fts5 (text, source UNINDEXED, tokenize = 'porter')"
        )
        self._index.executemany("INSERT INTO passages VALUES (?, ?)", self._paragraphs())

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _paragraphs(self) -> Iterator[tuple[str, str]]:
        for file in sorted(self.folder.rglob("*")):
            if file.suffix not in {".md", ".txt"}:
                continue
            text, start = file.read_text(encoding="utf-8"), 0
            # Paragraphs end at empty lines, and rows of tables at the end of their line.
            for passage in re.split(r"(?<=\|)\n(?=\|)|\n\n+", text):
                start = text.index(passage, start)
                if len(passage.split()) > 3 and not passage.startswith(("#", "```", "    ")):
                    line = text.count("\n", 0, start) + 1
                    yield " ".join(passage.split()), f"{file.relative_to(self.folder)}:{line}"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        words = [word for word in re.findall(r"\w+", query.lower()) if word not in STOP_WORDS]
        if not words:
            return []
        rows = self._index.execute(
            "SELECT text, source FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), self.limit),
        )
        return [Document(text, metadata={"source": source}) for text, source in rows]


class Passages(CapabilityContext):
    """Passages of documents, best first. Documents are not trusted to give instructions."""

    texts: dict[str, str]


class CitedAnswer(CapabilityContext):
    """An answer and the passages that it cites."""

    text: str
    sources: list[str]

    def get_summary(self) -> str:
        cited = ", ".join(f"[{source}]" for source in self.sources)
        return f"{self.text} {cited}".strip()


def search_capability(retriever: BaseRetriever) -> Any:
    """Return the capability that searches with any LangChain retriever."""

    @capability_node(name="search_documents", labels=["untrusted"])
    async def search_documents(step: StepContext) -> Passages:
        """Search the documents for passages about the question."""
        found = await retriever.ainvoke(step.task)
        return Passages(texts={one.metadata["source"]: one.page_content for one in found})

    return search_documents


@capability_node
class AnswerWithCitations(BaseCapability):
    """Answers a question from passages and names the passages."""

    name = "answer_with_citations"
    description = "Answer a question from the documents, with citations"
    requires = (Passages,)
    provides = (CitedAnswer,)
    always_active = True  # every request is a question about the documents
    examples = ("what happens if the disk is full?", "what does the manual say about the pump?")

    async def execute(self) -> CitedAnswer:
        passages = self.inputs["PASSAGES"].texts
        if not passages:
            return CitedAnswer(text="The documents do not answer this question.", sources=[])
        model = self.chat_model()
        return await self.write(model, passages) if model else self.quote(passages)

    def quote(self, passages: dict[str, str]) -> CitedAnswer:
        """Return the sentence that shares the most words with the question.

        Each place that a passage has lost in the ranking of the index counts like a missing word.
        """
        words = set(re.findall(r"\w+", self.task.lower())) - STOP_WORDS
        sentences = [
            (len(words & set(re.findall(r"\w+", sentence.lower()))) - place, sentence, source)
            for place, (source, text) in enumerate(passages.items())
            for sentence in re.split(r"(?<=[.!?])\s+", text.strip("| "))
        ]
        _, sentence, source = max(sentences, key=lambda rated: rated[0])
        return CitedAnswer(text=sentence, sources=[source])

    async def write(self, model: Any, passages: dict[str, str]) -> CitedAnswer:
        """Let the model answer, and keep only citations of passages that exist."""
        listed = "\n".join(f"[{n}] {text}" for n, text in enumerate(passages.values(), 1))
        reply = await model.ainvoke(
            f"{listed}\n\nQuestion: {self.task}\nAnswer in one or two sentences from these passages"
            " only. End with the number of the passage that you used, such as [2]."
        )
        numbers = {int(number) for number in re.findall(r"\[(\d+)\]", reply.text)}
        sources = [source for n, source in enumerate(passages, 1) if n in numbers]
        text = re.sub(r"\s*\[\d+\]", "", reply.text).strip()
        if not sources or not text:
            return self.quote(passages)
        return CitedAnswer(text=text, sources=sources)


async def answer(question: str, retriever: BaseRetriever, model: Any = None) -> str:
    """Answer a question and return the text with its citations."""
    graph = build_graph([search_capability(retriever), AnswerWithCitations], model=model)
    out = await graph.ainvoke({"messages": [("user", question)]})
    found = out["capability_context_data"].get("CITED_ANSWER", {})
    # The message is written by the model again. The stored answer has the checked citations.
    for cited in found.values():
        return CitedAnswer.model_validate(cited).get_summary()
    return out["messages"][-1].text


def main() -> None:
    """Read the command line and answer one question."""
    parser = argparse.ArgumentParser(description="Answer a question from a folder of documents.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--model", help="chat model as provider:name (default: quote a sentence)")
    options = parser.parse_args()
    retriever = FolderRetriever(folder=options.folder)
    try:
        print(asyncio.run(answer(options.question, retriever, options.model)))
    finally:
        retriever.close()


if __name__ == "__main__":
    main()

"""An agent of two capabilities, as a module: it reads numbers and adds them up."""

from capgraph import CapabilityContext, capability_node


class Numbers(CapabilityContext):
    """Some numbers."""

    values: list[int]


class Total(CapabilityContext):
    """A sum."""

    value: int

    def get_summary(self) -> str:
        """Say it."""
        return f"The total is {self.value}."


@capability_node(examples=["read the numbers"])
async def read() -> Numbers:
    """Read the numbers."""
    return Numbers(values=[1, 2])


@capability_node(examples=["add the numbers up", "what is the total?"])
async def add(numbers: Numbers) -> Total:
    """Add the numbers up to a total."""
    return Total(value=sum(numbers.values))

"""Code examples of the ALS Expert document, with their imports renamed. Only the data sources are supplied here."""

# The examples stand as in the document, without all annotations.
# mypy: disable-error-code="no-untyped-def,type-arg,call-arg,arg-type,empty-body,return-value,no-any-return"

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from capgraph.base import (
    BaseCapability,
    BaseExample,
    BaseInfrastructureNode,
    CapabilityMatch,
    ClassifierExample,
    ErrorClassification,
    ErrorSeverity,
    ExecutionError,
    ExecutionPlan,
    ExecutionRecord,
    ExecutionResult,
    OrchestratorExample,
    OrchestratorGuide,
    PlannedStep,
    TaskClassifierGuide,
    ValidationError,
    capability_node,
    infrastructure_node,
)
from capgraph.prompts import get_framework_prompts
from capgraph.state import AgentState
from capgraph.testing import run_capability

# --- supplied data sources ----------------------------------------------------------------------


async def fetch_weather(location: Any) -> dict[str, Any]:
    return {"location": location, "temperature": 18.0}


async def search_database(query: str) -> list[str]:
    return [f"row about {query}"]


async def transform_sensor_data(data: list[float], config: dict[str, Any]) -> list[float]:
    return [value * config.get("scale", 1) for value in data]


def create_execution_plan(state: Any) -> ExecutionPlan:
    return ExecutionPlan(steps=[PlannedStep(context_key="a", capability="respond")])


@dataclass
class _Extracted:
    task: str


async def extract_task_from_conversation(state: Any) -> _Extracted:
    return _Extracted(state["messages"][-1][1])


# --- capabilities -------------------------------------------------------------------------------


@capability_node
class WeatherCapability(BaseCapability):
    name = "weather_data"
    description = "Retrieve current weather conditions"
    provides = ["WEATHER_DATA"]
    requires = ["LOCATION"]

    @staticmethod
    async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
        location = state.get("location")
        weather_data = await fetch_weather(location)
        return {
            "weather_current_conditions": weather_data,
            "weather_last_updated": datetime.now().isoformat(),
        }


@capability_node
class DatabaseCapability(BaseCapability):
    name = "database_query"
    description = "Execute database queries with connection handling"

    @staticmethod
    def classify_error(exc: Exception, context: dict) -> ErrorClassification:
        if isinstance(exc, ConnectionError):
            return ErrorClassification(
                severity=ErrorSeverity.RETRIABLE,
                user_message="Database connection lost, retrying...",
                metadata={"technical_details": str(exc)},
            )
        return ErrorClassification(
            severity=ErrorSeverity.CRITICAL,
            user_message=f"Database error: {exc}",
            metadata={"technical_details": str(exc)},
        )

    @staticmethod
    async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
        # Implementation with database operations
        pass


@pytest.mark.row("B13")
async def test_the_weather_example_as_a_node() -> None:
    update = await WeatherCapability.langgraph_node({"location": "Berkeley"})
    assert update["weather_current_conditions"] == {"location": "Berkeley", "temperature": 18.0}
    assert datetime.fromisoformat(update["weather_last_updated"])
    assert update["control_has_error"] is False
    assert update["execution_step_results"]["0_weather_data"]["success"] is True


@pytest.mark.row("B14")
async def test_the_weather_example_in_a_graph(agent: Any, step: Any) -> None:
    plan = [step("w", "weather_data", LOCATION="here")]
    bench = agent(WeatherCapability, plans=[plan], given=["LOCATION"])
    out = await bench.ask(
        "How is the weather?", capability_context_data={"LOCATION": {"here": {"name": "Berkeley"}}}
    )
    stored = out["capability_context_data"]["WEATHER_DATA"]["w"]
    assert stored["weather_current_conditions"]["temperature"] == 18.0
    assert out["execution_outcome"]["status"] == "completed"


async def test_the_database_example(agent: Any, step: Any) -> None:
    lost = DatabaseCapability.classify_error(ConnectionError("gone"), {})
    assert lost.severity is ErrorSeverity.RETRIABLE
    assert lost.metadata == {"technical_details": "gone"}
    other = DatabaseCapability.classify_error(ValueError("bad"), {})
    assert other.user_message == "Database error: bad"
    out = await agent(DatabaseCapability, plans=[[step("d", "database_query")]]).ask()
    assert out["execution_outcome"]["status"] == "completed"


class Search(BaseCapability):
    name = "search"
    description = "Search"
    provides = ["SEARCH"]

    @staticmethod
    async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
        query = state.get("user_query", "")
        if not query:
            raise ValidationError("No query provided")

        results = await search_database(query)
        return {
            "search_results": results,
            "search_timestamp": datetime.now().isoformat(),
            "search_result_count": len(results),
        }

    @staticmethod
    def classify_error(exc: Exception, context: dict) -> ErrorClassification:
        if isinstance(exc, KeyError) and "context" in str(exc):
            return ErrorClassification(
                severity=ErrorSeverity.REPLANNING,
                user_message="Required data not available, trying different approach",
                metadata={"technical_details": f"Missing context data: {exc!s}"},
            )
        return BaseCapability.classify_error(exc, context)


class Transform(BaseCapability):
    name = "transform"
    description = "Transform"
    provides = ["PROCESSED"]

    @staticmethod
    async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
        raw_data = state.get("raw_sensor_data", [])
        processing_config = state.get("processing_config", {})

        processed_data = await transform_sensor_data(raw_data, config=processing_config)

        return {
            "processed_sensor_data": processed_data,
            "processing_metadata": {
                "processed_at": datetime.now().isoformat(),
                "record_count": len(processed_data),
                "config_used": processing_config,
            },
        }

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        return {
            "max_attempts": 5,  # More attempts for network issues
            "delay_seconds": 2.0,  # Longer delay for external services
            "backoff_factor": 2.0,  # Exponential backoff
        }


@pytest.mark.row("B44")
async def test_the_retrieval_example() -> None:
    capability_node(Search)
    with pytest.raises(ValidationError, match="No query provided"):
        await run_capability(Search)
    run = await run_capability(Search, state={"user_query": "beam"})
    assert run.output["search_results"] == ["row about beam"]
    assert run.output["search_result_count"] == 1
    found = Search.classify_error(KeyError("context lost"), {"capability": "search"})
    assert found.severity is ErrorSeverity.REPLANNING
    assert Search.classify_error(OSError("x"), {"capability": "search"}).severity is (
        ErrorSeverity.CRITICAL
    )


@pytest.mark.row("B44")
async def test_the_transformation_example() -> None:
    capability_node(Transform)
    run = await run_capability(
        Transform, state={"raw_sensor_data": [1, 2], "processing_config": {"scale": 2}}
    )
    assert run.output["processed_sensor_data"] == [2, 4]
    assert run.output["processing_metadata"]["record_count"] == 2


class TimeRangeCapability(BaseCapability):
    name = "time_range_parsing"
    description = "Parse time references"

    @staticmethod
    async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
        return {}

    def _create_orchestrator_guide(self) -> OrchestratorGuide | None:
        return OrchestratorGuide(
            capability_name="time_range_parsing",
            description="Parse time references into structured datetime ranges",
            when_to_use="When user mentions time periods, dates, or relative time references",
            provides_context="TIME_RANGE with start_date and end_date datetime objects",
            example_usage="For 'show me data from last week' or 'yesterday's performance'",
        )

    def _create_classifier_guide(self) -> TaskClassifierGuide | None:
        return TaskClassifierGuide(
            instructions="Activate when user mentions time-related data requests",
            examples=[
                ClassifierExample(
                    query="Show me data from last week",
                    result=True,
                    reason="Contains time range requiring parsing",
                ),
                ClassifierExample(
                    query="What is the current status?",
                    result=False,
                    reason="Current status request, no time parsing needed",
                ),
            ],
        )


@pytest.mark.row("B6")
def test_the_guides_of_the_time_range_example() -> None:
    capability = TimeRangeCapability()
    guide = capability.orchestrator_guide
    assert guide is not None
    for part in ("time periods", "structured datetime ranges", "TIME_RANGE", "last week"):
        assert part in guide.instructions
    assert capability.classifier_guide is not None
    assert [example.result for example in capability.classifier_guide.examples] == [True, False]


def test_a_guide_without_any_instructions_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="instructions"):
        OrchestratorGuide(capability_name="x")
    with pytest.raises(ValueError, match="wen_to_use"):
        OrchestratorGuide(instructions="x", wen_to_use="y")


@pytest.mark.row("B6")
def test_guides_through_the_prompt_provider() -> None:
    class Ranges(TimeRangeCapability):
        def _create_orchestrator_guide(self):
            prompt_provider = get_framework_prompts()
            builder = prompt_provider.get_time_range_parsing_prompt_builder()
            return builder.get_orchestrator_guide()

        def _create_classifier_guide(self):
            prompt_provider = get_framework_prompts()
            builder = prompt_provider.get_time_range_parsing_prompt_builder()
            return builder.get_classifier_guide()

    capability = Ranges()
    assert isinstance(capability.orchestrator_guide, OrchestratorGuide | None)
    assert isinstance(capability.classifier_guide, TaskClassifierGuide | None)


# --- infrastructure -----------------------------------------------------------------------------


async def test_the_task_extraction_example() -> None:
    @infrastructure_node  # Validates requirements and injects infrastructure!
    class TaskExtractionNode(BaseInfrastructureNode):
        name = "task_extraction"
        description = "Task Extraction and Processing"

        @staticmethod
        async def execute(state: AgentState, **kwargs):
            # Explicit logger retrieval - professional practice
            from capgraph.configs.logger import get_logger

            logger = get_logger("framework", "task_extraction")

            # Define streaming helper here for step awareness
            from capgraph.configs.streaming import get_streamer

            streamer = get_streamer("framework", "task_extraction", state)
            streamer.status("Processing...")

            logger.info("Starting task extraction")

            # Main infrastructure logic
            result = await extract_task_from_conversation(state)
            return {"task_current_task": result.task}

        @staticmethod
        def classify_error(exc: Exception, context: dict) -> ErrorClassification:
            # Infrastructure-specific error classification
            return ErrorClassification(severity=ErrorSeverity.RETRIABLE, user_message=str(exc))

    update = await TaskExtractionNode.langgraph_node({"messages": [("user", "Sing")]})
    assert update == {"task_current_task": "Sing"}
    failed = await TaskExtractionNode.langgraph_node({"messages": []})
    assert failed["control_has_error"] is True
    assert failed["control_error_info"]["classification"]["severity"] == "retriable"


async def test_the_orchestrator_example() -> None:
    @infrastructure_node
    class OrchestratorNode(BaseInfrastructureNode):
        name = "orchestrator"
        description = "Create execution plans"

        @staticmethod
        async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
            from capgraph.configs.logger import get_logger

            logger = get_logger("framework", "orchestrator")
            from capgraph.configs.streaming import get_streamer

            streamer = get_streamer("framework", "orchestrator", state)
            streamer.status("Starting orchestration")
            logger.info("Starting execution planning")
            plan = create_execution_plan(state)
            streamer.status("Orchestration complete")
            logger.info("Execution plan created")
            return {"planning_execution_plan": plan, "planning_ready_for_execution": True}

        @staticmethod
        def get_retry_policy() -> dict[str, Any]:
            return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 2.0}

    update = await OrchestratorNode.langgraph_node({})
    assert update["planning_ready_for_execution"] is True
    assert update["planning_execution_plan"]["steps"][0]["capability"] == "respond"


@pytest.mark.row("B46")
async def test_the_quiet_router_example(caplog: pytest.LogCaptureFixture) -> None:
    @infrastructure_node(quiet=True)
    class RouterNode(BaseInfrastructureNode):
        name = "router"
        description = "Dynamic routing based on agent state"

        @staticmethod
        async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
            # Routing logic without verbose logging
            next_node = "respond"
            return {"control_next_node": next_node}

    with caplog.at_level("INFO", logger="capgraph"):
        assert await RouterNode.langgraph_node({}) == {"control_next_node": "respond"}
    assert caplog.records == []


# --- supporting types ---------------------------------------------------------------------------


@pytest.mark.row("B22")
def test_the_error_examples() -> None:
    error = ExecutionError(
        severity=ErrorSeverity.RETRIABLE,
        message="Database connection failed",
        capability_name="database_query",
        metadata={"technical_details": "PostgreSQL connection timeout after 30 seconds"},
    )
    assert error.capability_name == "database_query"
    error = ExecutionError(
        severity=ErrorSeverity.FATAL,
        message="Critical data corruption detected",
        capability_name="data_processor",
        metadata={
            "technical_details": "Checksum validation failed on primary data store",
            "safety_abort_reason": "Data integrity compromised",
        },
        suggestions=[
            "Initiate emergency backup procedures",
            "Contact system administrator immediately",
            "Do not proceed with further operations",
        ],
    )
    assert error.suggestions is not None
    assert len(error.suggestions) == 3


@pytest.mark.row("B23")
def test_the_result_and_record_examples() -> None:
    now = datetime.now()
    result = ExecutionResult(
        success=True,
        data={"weather_data": {"temperature": 72}, "location": "San Francisco"},
        execution_time=1.23,
        start_time=now,
        end_time=now,
    )
    assert result.error is None
    result = ExecutionResult(
        success=False,
        error=ExecutionError(
            severity=ErrorSeverity.RETRIABLE,
            message="Connection timeout",
            metadata={"technical_details": "HTTP 408 Request Timeout"},
        ),
        execution_time=5.0,
        start_time=now,
        end_time=now,
    )
    assert result.data is None
    record = ExecutionRecord(
        step=PlannedStep(
            context_key="weather_data",
            capability="weather_retrieval",
            task_objective="Get current weather for San Francisco",
            success_criteria="Weather data retrieved with temperature",
        ),
        start_time=now,
        result=ExecutionResult(
            success=True, data={"temperature": 72, "conditions": "sunny"}, execution_time=1.2
        ),
    )
    assert record.end_time is None
    assert record.step["capability"] == "weather_retrieval"


@pytest.mark.row("B25")
def test_the_match_examples() -> None:
    matches = []
    for capability, found in (("weather", True), ("search", False)):
        matches.append((capability, CapabilityMatch(is_match=found)))
    assert [cap for cap, match in matches if match.is_match] == ["weather"]


@pytest.mark.row("B26")
async def test_the_plan_examples_check_and_run(agent: Any) -> None:
    plan = ExecutionPlan(
        steps=[
            PlannedStep(
                context_key="user_location",
                capability="location_detection",
                task_objective="Determine user's current location",
                success_criteria="Location coordinates available",
                expected_output="LOCATION_DATA",
            ),
            PlannedStep(
                context_key="weather_report",
                capability="weather_retrieval",
                task_objective="Get weather for user's location",
                success_criteria="Weather data retrieved successfully",
                expected_output="WEATHER_DATA",
                inputs=[{"LOCATION_DATA": "user_location"}],
            ),
        ]
    )

    @capability_node
    class Locate(BaseCapability):
        name = "location_detection"
        description = "Find the user"
        provides = ["LOCATION_DATA"]

        @staticmethod
        async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
            return {"latitude": 37.8}

    @capability_node
    class Retrieve(BaseCapability):
        name = "weather_retrieval"
        description = "Get the weather"
        provides = ["WEATHER_DATA"]
        requires = ["LOCATION_DATA"]

        @staticmethod
        async def execute(state: AgentState, **kwargs) -> dict[str, Any]:
            place = state["capability_context_data"]["LOCATION_DATA"]["user_location"]
            return {"temperature": 18, "at": place["latitude"]}

    out = await agent(Locate, Retrieve).ask("Weather", planning_execution_plan=plan)
    assert out["capability_context_data"]["WEATHER_DATA"]["weather_report"] == {
        "temperature": 18,
        "at": 37.8,
    }


@pytest.mark.row("B32")
def test_the_example_and_guide_examples() -> None:
    @dataclass
    class CustomExample(BaseExample):
        content: str
        category: str

        def format_for_prompt(self) -> str:
            return f"Category: {self.category}\nContent: {self.content}"

    assert CustomExample("c", "k").format_for_prompt() == "Category: k\nContent: c"
    with pytest.raises(TypeError):
        BaseExample()  # type: ignore[abstract]
    guide = OrchestratorGuide(
        instructions="Use for statistical analysis of numerical data sets",
        examples=[
            OrchestratorExample(
                step=PlannedStep(
                    context_key="analysis_results",
                    capability="statistical_analysis",
                    task_objective="Analyze sensor data for trends and anomalies",
                    success_criteria="Statistical summary with trend analysis complete",
                    expected_output="ANALYSIS_RESULTS",
                    inputs=[{"SENSOR_DATA": "sensor_readings"}],
                ),
                scenario_description="When user requests data analysis or trend identification",
                context_requirements={"SENSOR_DATA": "Numerical time series data"},
            )
        ],
        priority=10,
    )
    text = OrchestratorExample.format_examples_for_prompt(guide.examples)
    assert text.startswith("\n\n**Example Step Planning:**\n\n1. **When user requests")
    assert 'inputs=[{"SENSOR_DATA": "sensor_readings"}]' in text
    weather = TaskClassifierGuide(
        instructions="Activate when user requests weather information or forecasts",
        examples=[
            ClassifierExample(
                query="What's the weather like today?",
                result=True,
                reason="Direct weather information request",
            ),
            ClassifierExample(
                query="What time is it?", result=False, reason="Time request, not weather-related"
            ),
        ],
    )
    before = list(weather.examples)
    text = ClassifierExample.format_examples_for_prompt(weather.examples, rng=random.Random(1))
    assert sorted(text.splitlines()) == sorted(f"  - {e.format_for_prompt()}" for e in before)
    assert weather.examples == before

"""Typed events of a run, and the sinks that take them up."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.telemetry.agent_events import AgentEvent as AgentEvent
    from framework.telemetry.agent_events import AgentEventName as AgentEventName
    from framework.telemetry.agent_events import AgentEventStatus as AgentEventStatus
    from framework.telemetry.agent_events import AgentFailureClass as AgentFailureClass
    from framework.telemetry.agent_events import agent_event as agent_event
    from framework.telemetry.audit_chain import Verification as Verification
    from framework.telemetry.audit_log import AuditLog as AuditLog
    from framework.telemetry.events import AnswerPart as AnswerPart
    from framework.telemetry.events import AnswerToken as AnswerToken
    from framework.telemetry.events import ApprovalAsked as ApprovalAsked
    from framework.telemetry.events import ApprovalGiven as ApprovalGiven
    from framework.telemetry.events import CapabilitiesSelected as CapabilitiesSelected
    from framework.telemetry.events import CircuitChanged as CircuitChanged
    from framework.telemetry.events import Event as Event
    from framework.telemetry.events import EventsLost as EventsLost
    from framework.telemetry.events import ModelCalled as ModelCalled
    from framework.telemetry.events import PlanMade as PlanMade
    from framework.telemetry.events import PolicyActed as PolicyActed
    from framework.telemetry.events import Reclassify as Reclassify
    from framework.telemetry.events import Replan as Replan
    from framework.telemetry.events import Retry as Retry
    from framework.telemetry.events import Status as Status
    from framework.telemetry.events import StepFailed as StepFailed
    from framework.telemetry.events import StepFinished as StepFinished
    from framework.telemetry.events import StepProgress as StepProgress
    from framework.telemetry.events import StepSkipped as StepSkipped
    from framework.telemetry.events import StepStarted as StepStarted
    from framework.telemetry.events import ToolCalled as ToolCalled
    from framework.telemetry.events import TurnFinished as TurnFinished
    from framework.telemetry.events import Usage as Usage
    from framework.telemetry.events import Waiting as Waiting
    from framework.telemetry.events import WaitOver as WaitOver
    from framework.telemetry.events import emit as emit
    from framework.telemetry.events import parse_event as parse_event
    from framework.telemetry.otel import OpenTelemetrySink as OpenTelemetrySink
    from framework.telemetry.shipped import FanoutSink as FanoutSink
    from framework.telemetry.shipped import JsonLinesSink as JsonLinesSink
    from framework.telemetry.shipped import NoopSink as NoopSink
    from framework.telemetry.shipped import RingBufferSink as RingBufferSink
    from framework.telemetry.shipped import SqliteEventSink as SqliteEventSink
    from framework.telemetry.sinks import EventDispatcher as EventDispatcher
    from framework.telemetry.sinks import SentEvent as SentEvent
    from framework.telemetry.sinks import about as about
    from framework.telemetry.usage import ModelPricing as ModelPricing
    from framework.telemetry.usage import PriceTable as PriceTable
    from framework.telemetry.usage import (
        PricingAlreadyRegisteredError as PricingAlreadyRegisteredError,
    )
    from framework.telemetry.usage import UsageSnapshot as UsageSnapshot
    from framework.telemetry.usage import UsageTracker as UsageTracker
    from framework.telemetry.usage import format_cost as format_cost
    from framework.telemetry.usage import has_pricing as has_pricing
    from framework.telemetry.usage import load_pricing_from_file as load_pricing_from_file
    from framework.telemetry.usage import register_pricing as register_pricing
    from framework.telemetry.usage_sinks import FanoutUsageSink as FanoutUsageSink
    from framework.telemetry.usage_sinks import NoopUsageSink as NoopUsageSink
    from framework.telemetry.usage_sinks import RingBufferUsageSink as RingBufferUsageSink
    from framework.telemetry.usage_sinks import SqliteUsageSink as SqliteUsageSink
    from framework.telemetry.usage_sinks import UsageSink as UsageSink

__getattr__, __dir__ = contents(__name__)

"""Settings: one validated tree from YAML files, environment variables and arguments.

Precedence, highest first: keyword arguments, environment (``CAPGRAPH_LIMITS__MAX_PARALLEL=4``),
the YAML files that are given, the defaults below. An unknown key is an error with its path.
"""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.settings_model import Limits, SettingsModel
from capgraph.configs.suggestions import closest_match
from capgraph.configs.yaml_files import deep_merge, format_validation_errors, read_yaml

_PREFIX = "CAPGRAPH_"
_OWN_SERVER_TIMEOUT_SECONDS = 300.0
_FILE_VARIABLE = "CAPGRAPH_CONFIG"
_UPLOADED = ".csv .tsv .txt .tab .dat .json .jsonl .ndjson .parquet .pq .sqlite .sqlite3 .db"
_FILES = "_names_and_values_of_files"


@cache
def load_packaged_defaults() -> dict[str, Any]:
    """Return what ``agent.yml`` says, the names of modules that come with the package."""
    text = resources.files("capgraph.configs").joinpath("agent.yml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


StructuredMethod = Literal["auto", "json_schema", "function_calling", "json_mode", "text"]
PlanMode = Literal["plan", "look", "auto"]
PlanFeature = Literal["references", "for_each", "when", "look_again", "wait_until"]


class ModelSettings(SettingsModel):
    """One chat model.

    Attributes:
        model: ``"provider:name"``, as ``langchain.chat_models.init_chat_model`` reads it.
        temperature: Sampling temperature; the provider's default when not given.
        base_url: Address of an OpenAI-compatible endpoint.
        api_key: Key; the provider's environment variable when not given.
        timeout_seconds: Time limit of one call; by default 60, and 300 for a local model or one
            with a ``base_url``, where a first call may read its prompt for minutes.
        options: Further arguments of the model's class.
        behaviors: What stands around its calls: ``{use: retry, max_retries: 2}``.
        fallbacks: Models that are asked in order when this one cannot be reached, is over its rate
            limit, refuses, or answers in another form: names, or these same fields.
        structured: How the model is made to keep a form: ``json_schema`` (a schema that the server
            enforces), ``function_calling``, ``json_mode`` (any JSON) or ``text`` (the prompt asks
            for JSON). ``auto`` decides by the model's profile, and takes ``json_schema`` for an
            OpenAI-compatible ``base_url``.
    """

    model: str
    temperature: float | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout_seconds: float | None = Field(60.0, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)
    behaviors: list[Any] = Field(default_factory=list)
    fallbacks: list[str | ModelSettings] = Field(default_factory=list)

    @property
    def call_timeout_seconds(self) -> float | None:
        """Time limit of one call, with the default that fits where the model runs.

        >>> ModelSettings(model="openai:m", base_url="http://localhost/v1").call_timeout_seconds
        300.0
        """
        if "timeout_seconds" in self.model_fields_set:
            return self.timeout_seconds
        is_own_server = self.base_url is not None or self.model.startswith("local:")
        return _OWN_SERVER_TIMEOUT_SECONDS if is_own_server else self.timeout_seconds

    @field_validator("fallbacks")
    @classmethod
    def _refuse_chains(cls, value: list[Any]) -> list[Any]:
        if any(isinstance(item, ModelSettings) and item.fallbacks for item in value):
            raise ValueError("a fallback has 'fallbacks' of its own; list all of them here")
        return value

    structured: StructuredMethod = "auto"


class PlanningSettings(SettingsModel):
    """How a model plans.

    Attributes:
        features: Features of plans beside capabilities and parameters that the model may use:
            ``references`` to earlier results, ``for_each``, ``when``, ``look_again``,
            ``wait_until``. ``auto`` takes references and ``for_each`` if outputs fit parameters,
            and the others if planning guides use them.
        mode: ``plan`` plans a request as a whole. ``look`` plans only the steps that can be filled
            in now, and asks the planner again with their results until it answers. ``auto`` lets
            the planner say in each reply whether it wants to see the results. In ``look`` and
            ``auto`` the planner reads the conversation, without a call that extracts the task.
        max_result_tokens: Up to how many tokens of results the planner is shown whole, the latest
            ones first. Other results are shown as a summary or a preview. In ``look`` and ``auto``
            the results of the turn before count, too.
        max_stored_results: How many results of each type that earlier turns stored the planner is
            shown, the latest ones; of older ones it is shown the keys, which a plan may use.
    """

    mode: PlanMode = "plan"
    max_result_tokens: int = Field(2000, ge=0)
    max_stored_results: int = Field(1, ge=0)
    features: Literal["auto", "all"] | list[PlanFeature] = "auto"


class SelectionSettings(SettingsModel):
    """How capabilities are chosen.

    Attributes:
        strategy: ``auto`` leaves the choice to the planning model while it can be shown every
            capability, asks a model first past that, and is ``lexical`` without one; ``model``
            always asks first; ``per_capability`` asks one yes/no question for each capability.
        max_catalog_tokens: Up to how many tokens of descriptions ``auto`` leaves the choice to the
            planning model.
        shortlist: With more capabilities than this, the model sees only the nearest ones.
        max_concurrency: Questions under way at once with ``per_capability``.
    """

    strategy: Literal["auto", "lexical", "model", "per_capability"] = "auto"
    max_catalog_tokens: int = Field(3000, ge=0)
    shortlist: int = Field(20, ge=1)
    max_concurrency: int = Field(5, ge=1)


class ApprovalSettings(SettingsModel):
    """When a person is asked.

    Attributes:
        steps: ``declared`` asks for capabilities that say so, ``all`` for each, ``none`` never.
        plans: Whether every plan is shown before it runs.
        max_rejections: Rejections after which the turn ends instead of planning again.
        callers_may_disable: Whether a person at the command line may switch approvals off.
        ungrounded: ``ask`` asks before an effect with a parameter that a model invented: one that
            stands neither in the conversation, nor in a result that the step reads or that the
            planner looked at, nor among declared defaults and choices. ``refuse`` fails the step, ``allow`` runs it. Every
            approval shows such parameters.
        new_message: Fate of an open question when the thread gets a new message. ``drop`` begins
            a new turn; its outcome names the question. ``keep`` refuses the message until the
            question is answered.
    """

    steps: Literal["declared", "all", "none"] = "declared"
    plans: bool = False
    max_rejections: int = Field(3, ge=1)
    callers_may_disable: bool = False
    ungrounded: Literal["ask", "refuse", "allow"] = "ask"
    new_message: Literal["drop", "keep"] = "drop"


class PersistenceSettings(SettingsModel):
    """Where threads live.

    Attributes:
        url: ``sqlite:///file.db`` or ``postgresql://…``; ``None`` for no persistence.
        encryption_key: 16, 24 or 32 bytes that encrypt checkpoints at rest.
        keep_turns: How many turns of a thread can still be gone back to; ``None`` for all. Messages
            and context data stay whole in any case.
        keep_checkpoints: How many checkpoints of a thread can still be gone back to.
        keep_results: How many results of each type a thread keeps when a turn begins, the latest
            ones; ``None`` for all.
        keep_days: Threads that were not saved for so many days are dropped, unless a person is
            asked, and so is what calls used longer ago. Turns, checkpoints, and days are applied as
            turns end;
            ``capgraph threads prune`` does it at once.
    """

    url: str | None = None
    encryption_key: SecretStr | None = None
    keep_turns: int | None = Field(None, ge=1)
    keep_checkpoints: int | None = Field(None, ge=1)
    keep_results: int | None = Field(None, ge=1)
    keep_days: float | None = Field(None, gt=0)


class AuditSettings(SettingsModel):
    """What is kept of who did what, beside the threads, in a chain that shows any change.

    Attributes:
        keep: Whether runs are audited; ``build_graph(audit=…)`` stands above it.
        signing_key: Signs each record.
        retention_days: Older records are dropped and sealed, once a day.
    """

    keep: bool = False
    signing_key: SecretStr | None = None
    retention_days: float = Field(183, gt=0)


class RoleSettings(SettingsModel):
    """What a role may do.

    Attributes:
        role: Its name.
        mode: ``read_only``, ``workspace_write`` or ``full_access``.
        allowed_tools: The only capabilities that it may use; all that its mode allows when not
            given.
        denied_tools: Capabilities that it may not use whatever else is said.
        tenant: The only tenant for which this holds, in place of what holds for all.
    """

    role: str
    mode: str
    allowed_tools: list[str] | None = None
    denied_tools: list[str] = Field(default_factory=list)
    tenant: str | None = None


class PermissionSettings(SettingsModel):
    """Who may use which capability. Given at all, a caller without a configured role may nothing.

    Attributes:
        roles: What each role may do.
        tool_requirements: Capability name to the least mode for it, beside what it declares.
        cedar: Cedar policies as text, in place of roles (the extra ``cedar``).
    """

    roles: list[RoleSettings] = Field(default_factory=list)
    tool_requirements: dict[str, str] = Field(default_factory=dict)
    cedar: str | None = None


class OidcSettings(SettingsModel):
    """Logging in with OpenID Connect (the extra ``oidc``).

    Attributes:
        issuer: Address of the provider; its configuration stands below it.
        client_id: What the provider calls this server.
        client_secret: Secret that goes with it; none for a public client.
        scopes: What is asked for.
        user_claim: Claim that names the person.
        role_claim: Claim that holds the role; nobody has one when not given.
        tenant_claim: Claim that holds the tenant.
    """

    issuer: str
    client_id: str
    client_secret: SecretStr | None = None
    scopes: list[str] = Field(default_factory=lambda: ["openid", "profile"])
    user_claim: str = "sub"
    role_claim: str | None = None
    tenant_claim: str | None = None


class ProxySettings(SettingsModel):
    """A reverse proxy; what its headers say is believed only where it is trusted.

    Attributes:
        trusted: Addresses of the proxy, or networks such as ``10.0.0.0/8``.
        user_header: Header that names the person; ``None`` where people log in at this server.
        role_header: Header that holds the role.
        tenant_header: Header that holds the tenant.
    """

    trusted: list[str]
    user_header: str | None = "x-forwarded-user"
    role_header: str | None = None
    tenant_header: str | None = None

    @field_validator("trusted")
    @classmethod
    def _are_addresses(cls, trusted: list[str]) -> list[str]:
        for one in trusted:
            ipaddress.ip_network(one)
        return trusted

    def trusts(self, address: str) -> bool:
        """Tell whether a connection from an address is the proxy's.

        >>> ProxySettings(trusted=["10.0.0.0/8"]).trusts("10.1.2.3")
        True
        """
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in ipaddress.ip_network(one) for one in self.trusted)


class McpServeSettings(SettingsModel):
    """What MCP clients of the server may call besides ``ask``.

    Attributes:
        tools: Names of capabilities.
    """

    tools: list[str] = Field(default_factory=list)


class UploadSettings(SettingsModel):
    """Files that people bring along, each person's in a folder of his own.

    Attributes:
        folder: Where these folders are. Data capabilities may read the one of who asks.
        kinds: Ends of names that are taken.
        max_file_bytes: Longest file.
        max_files: Files of one person.
        max_user_bytes: Bytes of all files of one person.
    """

    folder: str
    kinds: list[str] = Field(default_factory=_UPLOADED.split)
    max_file_bytes: int = Field(50_000_000, ge=1)
    max_files: int = Field(200, ge=1)
    max_user_bytes: int = Field(500_000_000, ge=1)


class WebhookSettings(SettingsModel):
    """An address that is told when a person is asked something.

    Attributes:
        url: The address; ``http`` only where nobody else can listen.
        secret: Signs what is told; set ``CAPGRAPH_SERVE__WEBHOOK__SECRET``.
        content: Whether what is asked is told besides the link to it.
    """

    url: str
    secret: SecretStr = Field(min_length=16)
    content: bool = False


class McpSettings(SettingsModel):
    """One MCP server whose tools are capabilities.

    Attributes:
        command: Program and arguments of a server over stdio.
        env: Environment variables of that program, besides a few of this process.
        url: Address of a server over streamable HTTP.
        headers: Headers of each request to that address, such as ``Authorization``.
        prefix: Prefix of the capabilities' names.
        allow: Tools to use; all when not given.
        effects: Tool name to its effect, in place of its annotations.
        approve: Tools whose steps require approval; ``true`` for all.
        examples: Tool name to requests that need it.
        permission: Permission that the tools require; or tool name to that.
        pins: Tool name to the digest of the version that was reviewed.
        timeout_seconds: Time limit of one call.
        sends_externally: Whether arguments of the tools leave the organization.
        mode: Protocol mode; ``legacy`` for a server whose tools ask while they run.
        requires_approval: Approval policy of the tools; or tool name to its policy.
        max_parallel: Maximum number of concurrent steps of a tool; or tool name to that.
        max_attempts: Total attempts of a step; or tool name to that.
        delay_seconds: Delay before the second attempt; or tool name to that.
        classify_error: Function that classifies errors, as ``"module:attribute"``; or tool name to
            that.
        parameters_from: Function that reads parameters from a task, as ``"module:attribute"``; or
            tool name to that.
        on_unknown: Policy for steps of unknown outcome; or tool name to that.
        on_error: What a failure means to a planner that looks (``fail`` or ``observe``); or tool name to
            that.
        always_active: Whether the tools are always selected; or tool name to that.
        effect_key: Parameters that identify an effect; or tool name to them.
        repeatable: Whether an effect may be repeated; or tool name to that.
        cost_usd: Cost of one call in US dollars; or tool name to that.
        behaviors: Middleware of the tools' steps; or tool name to that.
        gate: Quality gate of the results; or tool name to that.
        labels: Labels of the results, beside ``untrusted``; or tool name to them.
        removes_labels: Labels that the results no longer carry; or tool name to them.
        undo: Capability that reverts a step; or tool name to that.
        queue: Queue of the workers that run the steps; or tool name to that.
    """

    command: list[str] | None = Field(None, min_length=1)
    env: dict[str, str] | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    prefix: str = ""
    allow: list[str] | None = None
    effects: dict[str, Literal["none", "idempotent", "once"]] = Field(default_factory=dict)
    approve: bool | list[str] = Field(default_factory=list)
    examples: dict[str, list[str]] = Field(default_factory=dict)
    permission: str | dict[str, str] | None = None
    pins: dict[str, str] | None = None
    timeout_seconds: float = Field(60.0, gt=0)
    sends_externally: bool = True
    mode: str = "auto"
    requires_approval: bool | dict[str, Any] | None = None
    max_parallel: int | dict[str, int] | None = None
    max_attempts: int | dict[str, int] | None = None
    delay_seconds: float | dict[str, float] | None = None
    classify_error: str | dict[str, str] | None = None
    parameters_from: str | dict[str, str] | None = None
    on_unknown: str | dict[str, str] | None = None
    on_error: str | dict[str, str] | None = None
    always_active: bool | dict[str, bool] | None = None
    effect_key: list[str] | dict[str, list[str]] | None = None
    repeatable: bool | dict[str, bool] | None = None
    cost_usd: float | dict[str, float] | None = None
    behaviors: list[Any] | dict[str, list[Any]] | None = None
    gate: dict[str, Any] | None = None
    labels: list[str] | dict[str, list[str]] | None = None
    removes_labels: list[str] | dict[str, list[str]] | None = None
    undo: str | dict[str, str] | None = None
    queue: str | dict[str, str] | None = None

    @model_validator(mode="after")
    def _names_one_server(self) -> McpSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("exactly one of 'command' and 'url' is required")
        if self.url is None and self.headers:
            raise ValueError("'headers' needs 'url'; a server over stdio has 'env'")
        if self.command is None and self.env is not None:
            raise ValueError("'env' needs 'command'; a server behind a URL has 'headers'")
        if {"approve", "requires_approval"} <= self.model_fields_set:
            raise ValueError("'approve' and 'requires_approval' exclude each other")
        return self


class ServeSettings(SettingsModel):
    """How ``capgraph serve`` answers.

    Attributes:
        base_url: Under which address people reach it, where that is another than it listens on.
        allowed_hosts: Further names under which it may be asked.
        allowed_origins: Further origins whose pages may ask it.
        max_body_bytes: Longest body of a request.
        requests_per_minute: Requests of one person, or of one address without a login.
        logins_per_minute: Attempts to log in from one address.
        session_hours: How long a login lasts.
        max_active_runs_per_user: Runs of one person that may be under way at once.
        max_concurrent_runs: Runs that go on at once; others wait in a row.
        keep_runs_days: For how long the events of an ended run can be had again.
        admin_roles: Roles that see the effects, usage and audit of all of their tenant; others see their own.
        uploads: Files that people bring along; none may when not given.
        downloads: Folders from which files that a step made can be had.
        webhook: An address that is told of new questions.
        evaluations: Folder of what ``capgraph eval --json`` left; shown to who oversees.
        mcp: What MCP clients may call.
        oidc: Logging in with OpenID Connect.
        proxy: A reverse proxy that says who asks.
        session_secret: Signs the cookie of a login in progress; the same for every server process
            behind one name. Each process makes its own when not given.
    """

    base_url: str | None = None
    allowed_hosts: list[str] = Field(default_factory=list)
    allowed_origins: list[str] = Field(default_factory=list)
    max_body_bytes: int = Field(1_048_576, ge=1)
    requests_per_minute: float = Field(1200, gt=0)
    logins_per_minute: float = Field(20, gt=0)
    session_hours: float = Field(12, gt=0)
    max_active_runs_per_user: int = Field(16, ge=1)
    max_concurrent_runs: int = Field(200, ge=1)
    keep_runs_days: float = Field(7, gt=0)
    admin_roles: list[str] = Field(default_factory=lambda: ["admin", "auditor"])
    uploads: UploadSettings | None = None
    downloads: list[str] = Field(default_factory=lambda: ["capgraph-output"])
    webhook: WebhookSettings | None = None
    evaluations: str | None = None
    mcp: McpServeSettings = Field(default_factory=lambda: McpServeSettings())
    oidc: OidcSettings | None = None
    proxy: ProxySettings | None = None
    session_secret: SecretStr | None = Field(None, min_length=32)

    @property
    def authenticates_users(self) -> bool:
        """Whether a provider or a proxy says who asks, so that there is no user ``local``."""
        by_proxy = self.proxy is not None and self.proxy.user_header is not None
        return by_proxy or self.oidc is not None


class ScaleSettings(SettingsModel):
    """How turns run on many workers.

    Attributes:
        engine: What carries orders to workers: ``postgres``, in the threads' own database, or
            ``temporal``.
        temporal: Where Temporal is, as ``host:port``.
        lease_seconds: After so long without a sign of life whoever runs a thread, or a worker,
            counts as gone.
        heartbeat_seconds: Time between signs of life; a third of that when not given.
        queues: What ``capgraph worker`` serves without ``--queues``.

    >>> ScaleSettings(lease_seconds=6).heartbeat_interval
    2.0
    """

    engine: Literal["postgres", "temporal"] = "postgres"
    temporal: str = "localhost:7233"
    lease_seconds: float = Field(30.0, gt=0)
    heartbeat_seconds: float | None = Field(None, gt=0)
    queues: list[str] = Field(default_factory=lambda: ["turns"], min_length=1)

    @property
    def heartbeat_interval(self) -> float:
        """Time between signs of life."""
        return self.heartbeat_seconds or self.lease_seconds / 3

    @model_validator(mode="after")
    def _beats_in_time(self) -> ScaleSettings:
        if self.heartbeat_interval > self.lease_seconds / 2:
            raise ValueError(
                f"heartbeat_seconds ({self.heartbeat_interval:g}) has to be at most half of lease_seconds"
                f" ({self.lease_seconds:g}), so that one late beat loses nothing"
            )
        return self


class Settings(BaseSettings):
    """All settings of one agent.

    Attributes:
        name: Name of the agent.
        description: What it is for; used when it says what it can do.
        infrastructure: Modules or packages that hold the infrastructure nodes.
        modules: Modules or packages that hold capabilities and context types.
        tools: LangChain tools and functions as capabilities: ``{import: "app.tools:search",
            effect: none}``, with the keywords of ``tool_capability``.
        graphs: Compiled graphs as capabilities: ``{import: "app.graphs:pricing", input:
            "app.types:Order", output: "app.types:Price"}``, with those of ``graph_capability``.
        agents: Agents as capabilities: ``{import: "app.agents:poet"}``, with those of
            ``agent_capability``.
        mcp: MCP servers whose tools are capabilities: ``{command: [python, server.py]}`` or
            ``{url: "http://…/mcp"}``.
        include: Names of capabilities to keep; ``None`` for all.
        exclude: Names of capabilities to leave out.
        override: Capability name to ``"module:Class"`` that takes its place.
        provided_types: Context types that the caller supplies.
        recipes: Files of recipes, and folders that hold some.
        model: ``"provider:name"`` for all roles; ``None`` runs without a model.
        models: Role (``extraction``, ``selection``, ``planning``, ``answer``, ``capability``)
            to its own model.
        prompts: ``"module:provider"`` of an application's prompts; the built-in ones otherwise.
        limits: Bounds of a run.
        selection: How capabilities are chosen.
        planning: How a model plans.
        approvals: When a person is asked.
        persistence: Where threads live.
        behaviors: What stands around each step and model call: ``{use: retry, max_retries: 2}``,
            with the name of a shipped behaviour (or ``"module:Class"``) and its arguments.
        capabilities: Capability name to its own settings; ``behaviors`` among them is what stands
            around it, ``queue`` names the workers that run its steps.
        budgets: What may be used up, as arguments of ``Budget``: ``{tokens: 100000, per: user}``;
            ``build_graph(budget=…)`` stands above it.
        prices: Model to what it costs, as arguments of ``ModelPricing``: ``{input_per_million: 1,
            output_per_million: 4}``; ``build_graph(prices=…)`` stands above it.
        permissions: Who may use which capability; everybody everything when not given.
        policies: What is asked before a plan is accepted and before a step starts:
            ``{use: information_flow, on_violation: deny}``, ``{use: policy_engine, rules: […]}``.
        answer_gate: What the answer has to be good enough for: ``{use: quality_gate, …}``;
            ``build_graph(answer_gate=…)`` stands above it.
        sinks: What takes up the events of runs: ``{use: json_lines, path: events.jsonl}``.
        audit: What is kept of who did what.
        serve: How ``capgraph serve`` answers.
        scale: How turns run on many workers.
        data_folders: Folders and files that data capabilities may read; none allows no file. In
            ``/srv/data/{user}`` everybody has a folder of his own.
        user: Who asks at the command line; whoever is logged in there when not given. A program
            names its user with each run (``configurable.user_id``).
        role: As what the person at the command line asks.
        tenant: For whom.
        context: Context data that every turn of a new thread begins with.
        secrets: Values that are never shown or kept as they are, besides keys and passwords of
            other settings: they are masked in errors, events and logs.

    >>> Settings().limits.max_planning_attempts
    2
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        extra="forbid",
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    name: str = "capgraph agent"
    description: str = ""
    infrastructure: list[str] = Field(
        default_factory=lambda: list(load_packaged_defaults()["infrastructure"])
    )
    modules: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    graphs: list[dict[str, Any]] = Field(default_factory=list)
    agents: list[dict[str, Any]] = Field(default_factory=list)
    mcp: list[McpSettings] = Field(default_factory=list)
    include: list[str] | None = None
    exclude: list[str] = Field(default_factory=list)
    override: dict[str, str] = Field(default_factory=dict)
    provided_types: list[str] = Field(default_factory=list)
    recipes: list[str] = Field(default_factory=list)
    model: str | None = None
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    prompts: str | None = None
    limits: Limits = Field(default_factory=lambda: Limits())
    selection: SelectionSettings = Field(default_factory=lambda: SelectionSettings())
    planning: PlanningSettings = Field(default_factory=lambda: PlanningSettings())
    approvals: ApprovalSettings = Field(default_factory=lambda: ApprovalSettings())
    persistence: PersistenceSettings = Field(default_factory=lambda: PersistenceSettings())
    behaviors: list[dict[str, Any]] = Field(default_factory=list)
    budgets: list[dict[str, Any]] = Field(default_factory=list)
    prices: dict[str, dict[str, float]] = Field(default_factory=dict)
    permissions: PermissionSettings | None = None
    policies: list[dict[str, Any]] = Field(default_factory=list)
    answer_gate: dict[str, Any] | None = None
    sinks: list[dict[str, Any]] = Field(default_factory=list)
    audit: AuditSettings = Field(default_factory=lambda: AuditSettings())
    serve: ServeSettings = Field(default_factory=lambda: ServeSettings())
    scale: ScaleSettings = Field(default_factory=lambda: ScaleSettings())
    capabilities: dict[str, dict[str, Any]] = Field(default_factory=dict)
    data_folders: list[str] = Field(default_factory=list)
    user: str | None = None
    role: str | None = None
    tenant: str | None = None
    context: dict[str, dict[str, Any]] = Field(default_factory=dict)
    secrets: list[SecretStr] = Field(default_factory=list)

    if not TYPE_CHECKING:  # type checkers derive the arguments from the fields

        def __init__(self, **values: Any) -> None:
            """Read the environment and the arguments.

            Raises:
                ConfigurationError: A key is unknown, or a value does not fit; the message has the
                    path of each.
            """
            files, _ = values.get(_FILES, ((), {}))
            try:
                super().__init__(**values)
            except ValidationError as exc:
                raise _unusable(exc, files) from exc
            except SettingsError as exc:
                raise ConfigurationError(
                    f"The settings cannot be used: {exc}.",
                    fix="Write lists and sections in environment variables as JSON.",
                ) from exc

    def capability_settings(
        self, capability: str, user_folder: str | None = None
    ) -> dict[str, Any]:
        """Return what a capability is told: its own settings, and what holds for all.

        Args:
            capability: Its name.
            user_folder: Name of the folder of who asks; without one nobody's folder is named.

        >>> Settings(data_folders=["/srv/data", "/srv/of/{user}"]).capability_settings("query_data", "ada")
        {'data_folders': ['/srv/data', '/srv/of/ada']}
        """
        uploads = self.serve.uploads
        named = [*self.data_folders, *([f"{uploads.folder}/{{user}}"] if uploads else [])]
        folders = [
            one.replace("{user}", user_folder or "")
            for one in named
            if user_folder or "{user}" not in one
        ]
        own = self.capabilities.get(capability, {})
        told = {name: own[name] for name in own if name not in ("behaviors", "queue")}
        return told | ({"data_folders": folders} if folders else {})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then what the files said."""
        _refuse_misspelt_variables()
        assert isinstance(init_settings, InitSettingsSource)
        files = InitSettingsSource(settings_cls, init_settings.init_kwargs.pop(_FILES, ((), {}))[1])
        return init_settings, env_settings, files


def load_settings(*files: str | os.PathLike[str], **overrides: Any) -> Settings:
    """Read settings from YAML files, the environment and arguments.

    Args:
        *files: YAML files; a later one wins. ``CAPGRAPH_CONFIG`` names one more, read first.
        **overrides: Values that win over everything else.

    Raises:
        ConfigurationError: A file cannot be read, a key is unknown, or a value does not fit; the
            message has the path of each.

    >>> load_settings(limits={"max_parallel": 2}).limits.max_parallel
    2
    """
    named = os.environ.get(_FILE_VARIABLE)
    values: dict[str, Any] = {}
    for file in ([named] if named else []) + [os.fspath(item) for item in files]:
        values = deep_merge(values, read_yaml(file))
    arguments: dict[str, Any] = {**overrides, _FILES: (files, values)}
    return Settings(**arguments)


def _unusable(exc: ValidationError, files: tuple[Any, ...]) -> ConfigurationError:
    about = [_PREFIX + "__".join(map(str, error["loc"])).upper() for error in exc.errors()]
    given = sorted(name for name in os.environ if name.upper() in about)
    told = [
        f"{what}: {', '.join(map(str, names))}"
        for what, names in (("files", files), ("environment", given))
        if names
    ]
    source = f" ({'; '.join(told)})" if told else ""
    listed = format_validation_errors(exc, _known_keys)
    return ConfigurationError(f"The settings cannot be used{source}:\n{listed}")


def _refuse_misspelt_variables() -> None:
    """Refuse a variable that looks like a setting and is none; it would do nothing."""
    known = list(Settings.model_fields)
    for variable in os.environ:
        prefix, name = variable[: len(_PREFIX)], variable[len(_PREFIX) :].lower()
        first, section, rest = name.partition("__")
        if prefix.upper() != _PREFIX or first in known or variable.upper() == _FILE_VARIABLE:
            continue
        near = closest_match(first, [*known, "config"])
        inside = [f"{key}__{field}" for key in known for field in _known_keys((key, ""))]
        if meant := next((key for key in inside if key.replace("__", "_") == name), None):
            fix = f"Write {_PREFIX}{meant.upper()}."
        elif near:
            fix = f"Write {_PREFIX}{(near + section + rest).upper()}."
        elif section:
            fix = f"Use one of: {', '.join(known)}."
        else:
            continue  # a variable of the application's own, for ${...} in its files
        raise ConfigurationError(
            f"The environment variable {variable!r} names no setting: there is no {first!r}.",
            fix=fix,
        )


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """Return the keys that may stand where the last part of a path stands."""
    kind: Any = Settings
    for part in path[:-1]:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field is not None else None
        else:
            kind = (get_args(kind) or [None])[-1]
    is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
    return list(kind.model_fields) if is_section else []

"""A request in Kiro's shapes and spelling; what has its default is not sent, for Kiro refuses nulls and empty lists."""

from msgspec import Struct, field

# What the official client keeps to, and the service is known to accept.
MAX_IMAGES = 10  # in one message
MAX_IMAGE_BYTES = 10 * 1024 * 1024

IMAGE_FORMATS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}

MANUAL = "MANUAL"
VIBE = "vibe"
SUCCESS = "success"
ERROR = "error"


class ImageSource(Struct):
    bytes: str  # base64


class ImageBlock(Struct):
    format: str
    source: ImageSource


class ResultText(Struct):
    text: str


class ToolOutcome(Struct, rename="camel"):
    tool_use_id: str
    status: str
    content: list[ResultText]


class ToolCallEntry(Struct, rename="camel"):
    tool_use_id: str
    name: str
    input: dict[str, object]


class InputSchema(Struct):
    json: dict[str, object]


class ToolSpecification(Struct, rename="camel"):
    name: str
    description: str
    input_schema: InputSchema


class ToolEntry(Struct, rename="camel"):
    tool_specification: ToolSpecification


class UserContext(Struct, rename="camel", omit_defaults=True):
    tool_results: list[ToolOutcome] = field(default_factory=list)
    tools: list[ToolEntry] = field(default_factory=list)


class UserInput(Struct, rename="camel", omit_defaults=True):
    content: str
    model_id: str
    origin: str
    images: list[ImageBlock] = field(default_factory=list)
    user_input_message_context: UserContext | None = None


class ReasoningText(Struct):
    text: str
    signature: str


class ReasoningContent(Struct, rename="camel", omit_defaults=True):
    """One of the two."""

    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class AssistantReply(Struct, rename="camel", omit_defaults=True):
    content: str
    tool_uses: list[ToolCallEntry] = field(default_factory=list)
    reasoning_content: ReasoningContent | None = None


class UserEntry(Struct, rename="camel"):
    user_input_message: UserInput


class AssistantEntry(Struct, rename="camel"):
    assistant_response_message: AssistantReply


Entry = UserEntry | AssistantEntry


class ConversationState(Struct, rename="camel", omit_defaults=True):
    chat_trigger_type: str
    agent_task_type: str
    current_message: UserEntry
    conversation_id: str = ""
    history: list[Entry] = field(default_factory=list)


class Payload(Struct, rename="camel", omit_defaults=True):
    conversation_state: ConversationState
    profile_arn: str | None = None
    agent_mode: str | None = None
    additional_model_request_fields: dict[str, object] = field(default_factory=dict)

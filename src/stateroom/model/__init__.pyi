from .batch import (
    BatchModel as BatchModel,
    GeneratedTokens as GeneratedTokens,
    Prompt as Prompt,
)
from .chat import (
    Message as Message,
    chat_tools as chat_tools,
    completion_message as completion_message,
    items_of as items_of,
    messages_of as messages_of,
    responses_tools as responses_tools,
    template_messages as template_messages,
)
from .items import (
    Item as Item,
    answers_in as answers_in,
    calls_of as calls_of,
    checked_items as checked_items,
    function_call as function_call,
    function_call_output as function_call_output,
    input_items as input_items,
    is_content as is_content,
    kind_of as kind_of,
    last_user_text as last_user_text,
    message as message,
    message_text as message_text,
    newest_turn as newest_turn,
    outputs_of as outputs_of,
    response_object as response_object,
    text_of as text_of,
    with_ids as with_ids,
)
from .judge import (
    Judge as Judge,
    Judgement as Judgement,
    Reading as Reading,
    Vote as Vote,
    majority as majority,
    read_score as read_score,
)
from .limiter import (
    Limiter as Limiter,
    LocalLimiter as LocalLimiter,
    ModelLimits as ModelLimits,
    RequestReport as RequestReport,
)
from .model import (
    NO_SETTINGS as NO_SETTINGS,
    Answer as Answer,
    Model as Model,
    Request as Request,
    Usage as Usage,
    answer_of as answer_of,
)
from .policy import (
    Gold as Gold,
    Noisy as Noisy,
    Policy as Policy,
    Scripted as Scripted,
)
from .replay import Replayed as Replayed
from .segments import (
    TOKEN_FIELDS as TOKEN_FIELDS,
    TOKEN_LISTS as TOKEN_LISTS,
    AnswerTokens as AnswerTokens,
    Exactness as Exactness,
    Segment as Segment,
    with_whole_prompts as with_whole_prompts,
    without_tokens as without_tokens,
)
from .settings import (
    chat_usage as chat_usage,
    responses_settings as responses_settings,
)
from .source import (
    NO_ROW as NO_ROW,
    ModelSource as ModelSource,
    SharedModel as SharedModel,
    default_model as default_model,
    open_model as open_model,
)
from .transformers import (
    Decoder as Decoder,
    TransformersModel as TransformersModel,
    device_name as device_name,
    load_network as load_network,
)

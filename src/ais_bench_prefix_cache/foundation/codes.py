"""Every code that a problem, a warning or a finding can have, with one sentence of what it means.

Codes are stable: scripts look for them in ``error [CODE]`` and in the documents' ``"code"``. A member *is* its code as
a string, in JSON, too; documents that are compared hold its ``value``. ``docs/codes.md`` is made from this list.
"""

from __future__ import annotations

from enum import Enum


class Code(str, Enum):
    """A code; ``sentence`` says what it means wherever it stands."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Code:
        """A string that knows its sentence."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member

    __str__ = str.__str__
    __repr__ = str.__repr__  # messages show what a file says, not how Python holds it

    INTERNAL = "INTERNAL", "This program has a fault."

    # Files and JSON
    MISSING_FILE = "MISSING_FILE", "A file that an argument, a field or a document names does not exist."
    UNREADABLE_FILE = "UNREADABLE_FILE", "A file exists and cannot be read."
    FILE_TOO_LARGE = "FILE_TOO_LARGE", "A file is larger than this program reads."
    FOREIGN_FILE = (
        "FOREIGN_FILE",
        "A file is another one than it should be: a Git LFS pointer, an HTML page, an archive.",
    )
    EMPTY_FILE = "EMPTY_FILE", "A file holds nothing, or a header and no rows."
    FILE_EXISTS = "FILE_EXISTS", "A file would be overwritten, which was not allowed."
    SAME_FILE = "SAME_FILE", "Input and output are one file."
    CANNOT_WRITE = "CANNOT_WRITE", "A file or directory cannot be written."
    DISK_FULL = "DISK_FULL", "The disk is full, or has less room than what is asked for takes."
    NOT_ENOUGH_MEMORY = "NOT_ENOUGH_MEMORY", "This machine has less memory than what is asked for takes."
    OS_ERROR = "OS_ERROR", "The operating system refused something else."
    NO_FREE_DIRECTORY = "NO_FREE_DIRECTORY", "Every time stamp that a new directory could have is taken."
    NO_FREE_NAME = "NO_FREE_NAME", "Every number that a new file could have is taken."
    DIRECTORY_IN_USE = "DIRECTORY_IN_USE", "Another command is working in the directory."
    WRONG_ENCODING = "WRONG_ENCODING", "A text, or the name of a directory, is not UTF-8."
    BYTE_ORDER_MARK = "BYTE_ORDER_MARK", "A JSON file begins with a byte-order mark."
    INVALID_JSON = "INVALID_JSON", "A document or line is not JSON, or not one object."
    INVALID_CSV = "INVALID_CSV", "A file is not CSV."
    NESTED_TOO_DEEPLY = "NESTED_TOO_DEEPLY", "JSON is nested more deeply than any document of this program."
    NOT_AN_OBJECT = "NOT_AN_OBJECT", "A JSON document is no object."
    NOT_A_NUMBER = "NOT_A_NUMBER", "JSON holds NaN or Infinity."
    NUMBER_TOO_LARGE = "NUMBER_TOO_LARGE", "A number does not fit into 64 bits."
    UNUSABLE_TEXT = "UNUSABLE_TEXT", "A text holds half of a surrogate pair or a control character."
    DUPLICATE_KEY = "DUPLICATE_KEY", "A key, column or value appears twice, or two keys say the same."
    MORE_PROBLEMS = "MORE_PROBLEMS", "Further problems of the kind before are only counted."

    # The Scenario
    UNKNOWN_KEY = "UNKNOWN_KEY", "There is no such key."
    MISSING_KEY = "MISSING_KEY", "A key is missing that must be there."
    KEY_OF_OTHER_MODE = "KEY_OF_OTHER_MODE", "A key belongs to another mode of its rule."
    WRONG_KEY = "WRONG_KEY", "A key has not the form that it must have."
    WRONG_TYPE = "WRONG_TYPE", "A value has another type than its field."
    NOT_ALLOWED = "NOT_ALLOWED", "A value is none of the allowed ones."
    OUT_OF_RANGE = "OUT_OF_RANGE", "A number lies outside of its range."
    EMPTY = "EMPTY", "A text or list is empty that must not be."
    WRONG_SIZE = "WRONG_SIZE", "A text or list is too long."
    WRONG_TEXT = "WRONG_TEXT", "A text has not the form that it must have."
    WRONG_URL = "WRONG_URL", "A URL cannot be used, or not for this."
    COUNT_MISMATCH = "COUNT_MISMATCH", "A list has another length than what it belongs to."
    UNKNOWN_GROUP = "UNKNOWN_GROUP", "A group is named that does not exist."
    TOO_SHORT = "TOO_SHORT", "A length cannot hold the tokens that are never shared."
    MISSING_COLUMN = "MISSING_COLUMN", "A CSV file has no column of lengths."
    WRONG_LENGTH = "WRONG_LENGTH", "A cell of a CSV file is no length."
    WRONG_INTERVAL = "WRONG_INTERVAL", "A list of intervals cannot be read."
    WRONG_OPTION = "WRONG_OPTION", "Options of a command do not fit each other, or a value does not fit its option."
    PROMPT_SPEC = "PROMPT_SPEC", "A specification of prompts cannot be used."

    # Corpus and images
    CORPUS_NOT_FOUND = "CORPUS_NOT_FOUND", "The corpus does not exist."
    CORPUS_NOT_A_FILE = "CORPUS_NOT_A_FILE", "The corpus is a directory."
    CORPUS_UNREADABLE = "CORPUS_UNREADABLE", "The corpus cannot be read."
    CORPUS_EMPTY = "CORPUS_EMPTY", "The corpus holds no rows."
    CORPUS_FIELD_MISSING = "CORPUS_FIELD_MISSING", "A line of the corpus has no text under the configured field."
    CORPUS_FIELD_NOT_TEXT = "CORPUS_FIELD_NOT_TEXT", "The configured field of a line is no string."
    CORPUS_TEXT_BLANK = "CORPUS_TEXT_BLANK", "The text of a line is blank."
    CORPUS_TEXT_NOT_UNICODE = "CORPUS_TEXT_NOT_UNICODE", "The text of a line holds half of a surrogate pair."
    CORPUS_ROW_MISSING = "CORPUS_ROW_MISSING", "The selection names a row that the corpus does not have."
    CORPUS_DIGEST_MATCH = "CORPUS_DIGEST_MATCH", "The selection names a digest that not exactly one row has."
    CORPUS_NOT_USABLE = "CORPUS_NOT_USABLE", "The corpus has no words that this tokenizer encodes alike in every place."
    CORPUS_CHANGED = "CORPUS_CHANGED", "The corpus is not what it was when the data set was made."
    CORPUS_MISSING = "CORPUS_MISSING", "The corpus from which the data set was made cannot be read any more."
    MMMU_NOT_FOUND = "MMMU_NOT_FOUND", "The directory of Parquet files does not exist."
    MMMU_EMPTY = "MMMU_EMPTY", "The directory holds no Parquet files."
    MULTIMODAL_EXTRA_MISSING = "MULTIMODAL_EXTRA_MISSING", "Packages for images are not installed."
    NO_IMAGES = "NO_IMAGES", "The Parquet files hold no image."
    IMAGE_SIZE_NOT_FOUND = "IMAGE_SIZE_NOT_FOUND", "The Parquet files hold no image of the wanted size."
    DAMAGED_IMAGES = "DAMAGED_IMAGES", "Images that cannot be read were passed over."
    DAMAGED_PARQUET_FILES = "DAMAGED_PARQUET_FILES", "Parquet files that cannot be read were passed over."
    IMAGE_COLUMN_TYPE = "IMAGE_COLUMN_TYPE", "Image columns that hold no bytes were passed over."

    # Tokenizer and exact text
    TOKENIZER_NOT_FOUND = "TOKENIZER_NOT_FOUND", "There is no tokenizer under this path or name."
    TOKENIZER_NOT_A_DIRECTORY = "TOKENIZER_NOT_A_DIRECTORY", "The tokenizer's path is a file."
    TOKENIZER_PACKAGE_MISSING = "TOKENIZER_PACKAGE_MISSING", "A package that the tokenizer needs is not installed."
    TOKENIZER_NEEDS_REMOTE_CODE = "TOKENIZER_NEEDS_REMOTE_CODE", "The tokenizer needs code that was not allowed."
    TOKENIZER_NO_NETWORK = "TOKENIZER_NO_NETWORK", "The model hub cannot be reached."
    TOKENIZER_DAMAGED = "TOKENIZER_DAMAGED", "Files of the tokenizer are no tokenizer."
    TOKENIZER_NOT_USABLE = "TOKENIZER_NOT_USABLE", "The tokenizer loads, but does not encode."
    TOKENIZER_NOT_LOADED = "TOKENIZER_NOT_LOADED", "The embedded server cannot load the tokenizer."
    TOKENIZER_RANDOM = "TOKENIZER_RANDOM", "The tokenizer encodes the same text differently each time."
    TOKENIZER_SPECIAL_TOKENS = (
        "TOKENIZER_SPECIAL_TOKENS",
        "The tokenizer does not add the same special tokens to every text.",
    )
    TOKENIZER_JOINS_WORDS = "TOKENIZER_JOINS_WORDS", "The tokenizer encodes words that a space joins as one."
    TOKENIZER_WITHOUT_WORDS = "TOKENIZER_WITHOUT_WORDS", "The vocabulary has no plain words."
    TOKENIZER_NEEDED = "TOKENIZER_NEEDED", "Texts must be encoded, and no tokenizer was named."
    NOT_AS_BUILT = "NOT_AS_BUILT", "Making the data set again from its sources gives other bytes."
    TRACE_CHANGED = "TRACE_CHANGED", "A trace is not the one that the data set was made from."
    SIGNATURE_INVALID = "SIGNATURE_INVALID", "A signature was not made of this manifest with this key."
    KEY_UNUSABLE = "KEY_UNUSABLE", "A file cannot be the key of a signature."
    NOT_PROVEN = "NOT_PROVEN", "Something could not be proven, because what it takes was not given."
    SPECIAL_TOKENS_IGNORED = (
        "SPECIAL_TOKENS_IGNORED",
        "The tokenizer's configuration asks for special tokens that the installed transformers does not add.",
    )
    TOKENIZER_CHANGED = "TOKENIZER_CHANGED", "The tokenizer is not the one with which the data set was made."
    PROMPTS_NOT_EXACT = "PROMPTS_NOT_EXACT", "No text keeps the tokens of its words, so no length can be promised."
    LENGTH_NOT_REACHABLE = "LENGTH_NOT_REACHABLE", "No words add up to exactly the wanted number of tokens."
    PROMPT_TOO_SHORT = "PROMPT_TOO_SHORT", "A prompt has no room for what it must hold."
    PLAN_TOO_SHORT = "PLAN_TOO_SHORT", "A planned length does not hold its own parts."
    BLOCK_SIZE_TOO_SMALL = (
        "BLOCK_SIZE_TOO_SMALL",
        "A block has no room for special tokens and a word, or for what tells prompts apart.",
    )
    SEED_TOO_SHORT = "SEED_TOO_SHORT", "The seed has no room for a text of its own."
    SEEDS_EXHAUSTED = "SEEDS_EXHAUSTED", "There are fewer different seeds than requests."
    NO_SEED_MARKERS = "NO_SEED_MARKERS", "No two words can begin the own part of different prompts."
    NO_CODE_WORDS = "NO_CODE_WORDS", "The vocabulary has no words for codes."
    CODE_TOO_LONG = "CODE_TOO_LONG", "A code does not fit into a block."
    HYBRID_WARMUP = "HYBRID_WARMUP", "The warm-up prompts for a hybrid model cannot be made."

    # Traces
    BAD_PROMPT = "BAD_PROMPT", "A prompt of a trace cannot be used."
    BAD_NUMBER = "BAD_NUMBER", "A number of a trace cannot be used."
    BAD_KEY = "BAD_KEY", "A cache key of a trace (salt, adapter) cannot be used."
    BAD_IMAGES = "BAD_IMAGES", "The images of a request cannot be used."
    NO_PROMPT = "NO_PROMPT", "A line of a trace has no prompt."
    NO_HASH_IDS = "NO_HASH_IDS", "A line of a trace has no block ids."
    NO_REQUESTS = "NO_REQUESTS", "A file holds no requests."
    TRACE_BLOCK_SIZE = (
        "TRACE_BLOCK_SIZE",
        "Block ids and lengths of a trace do not fit together or to the wanted blocks.",
    )
    TRACE_NOT_EXACT = "TRACE_NOT_EXACT", "A prompt that continues another's block cannot be made exact."

    # Data sets
    MANIFEST_NAME = "MANIFEST_NAME", "A path is not where a manifest lies."
    WRONG_KIND = "WRONG_KIND", "A file is of another kind than what was asked for."
    SCHEMA_VERSION = "SCHEMA_VERSION", "A manifest has another schema version."
    STATUS = "STATUS", "A manifest has an unknown status."
    NOT_PREPARED = "NOT_PREPARED", "There is a plan, and no data set yet; or none fits the Scenario."
    DISTRIBUTION = "DISTRIBUTION", "The data set is of copied prompts, which the command does not read."
    TRACE = "TRACE", "The data set was made from a trace, which the command does not read."
    CONFIG_IS_FOR_TEXT = "CONFIG_IS_FOR_TEXT", "A template of one's own is only for text data sets."
    DIGEST_MISSING = "DIGEST_MISSING", "A document has lost the digest of its content."
    CONTENT_EDITED = "CONTENT_EDITED", "A document is not what was written: its digest does not match."
    CONFIG_EDITED = "CONFIG_EDITED", "The effective configuration is not what was written."
    LAYOUT_EDITED = "LAYOUT_EDITED", "Values are intact, bytes are not."
    KEY_ORDER = "KEY_ORDER", "Keys are not in their order."
    WRONG_VALUE = "WRONG_VALUE", "A value is not what the other files, or the rules, give."
    FILE_SIZE = "FILE_SIZE", "A file has another size than its manifest says."
    FILE_HASH = "FILE_HASH", "A file has another digest than its manifest says."
    ROW_COUNT = "ROW_COUNT", "A file has another number of rows than it must have."
    CORRESPONDENCE = "CORRESPONDENCE", "Rows of two files do not belong together."
    TRUNCATED = "TRUNCATED", "The last line of a file has no end."
    NOT_UNIQUE = "NOT_UNIQUE", "Rows repeat a value that must differ."
    MARKER_TWICE = "MARKER_TWICE", "Two prompts have the same seed marker."
    PREFIX_DIFFERS = "PREFIX_DIFFERS", "Prompts that share a prefix differ within it."
    SHARING_DIFFERS = "SHARING_DIFFERS", "A prompt of a trace shares more or fewer tokens than its block ids."
    DEEP_CHECK = "DEEP_CHECK", "Encoding the texts again gives other tokens than the file claims."
    IMAGE_DAMAGED = "IMAGE_DAMAGED", "A data URL holds no whole image."
    IMAGE_SIZE = "IMAGE_SIZE", "An image has another size than its scenario."
    ANALYSIS_DAMAGED = "ANALYSIS_DAMAGED", "A section of an analysis is not what a run writes there."
    DAMAGED = "DAMAGED", "The effective configuration of a manifest cannot be read back."

    # Warnings of plans and analyses
    TARGET_UNREACHABLE = "TARGET_UNREACHABLE", "The wanted hit rate lies outside of what can be reached."
    TARGET_DEVIATION = "TARGET_DEVIATION", "Theory misses the wanted hit rate by more than the configured points."
    TRAJECTORY_BEST_EFFORT = (
        "TRAJECTORY_BEST_EFFORT",
        "The total is exact, but the cumulative hit rate may fall back or overshoot on the way.",
    )
    CUMULATIVE_RATE_FALLS = "CUMULATIVE_RATE_FALLS", "The cumulative hit rate of a lane falls."
    CUMULATIVE_RATE_OVERSHOOTS = "CUMULATIVE_RATE_OVERSHOOTS", "The cumulative hit rate of a lane rises above its goal."
    CACHE_TOO_SMALL = "CACHE_TOO_SMALL", "The cache cannot hold what the plan, or one request, needs."
    ASSUME_EMPTY_CACHE = "ASSUME_EMPTY_CACHE", "The cache was not reset, but assumed to be empty."
    ACTUAL_DEVIATION = (
        "ACTUAL_DEVIATION",
        "The counted hit rate differs from theory by more than the configured points.",
    )
    QUERIES_MISMATCH = "QUERIES_MISMATCH", "The server counted another number of prompt tokens than were sent."

    # The service
    CONNECTION_REFUSED = "CONNECTION_REFUSED", "Nothing listens at the URL."
    CONNECTION_LOST = "CONNECTION_LOST", "The connection broke before the answer was complete."
    UNKNOWN_HOST = "UNKNOWN_HOST", "The host name cannot be resolved."
    UNREACHABLE = "UNREACHABLE", "There is no connection for another reason."
    TLS_FAILED = "TLS_FAILED", "There is no secure connection."
    PROXY_FAILED = "PROXY_FAILED", "The proxy of the environment refused."
    TIMEOUT = "TIMEOUT", "No complete answer came in time."
    UNAUTHORIZED = "UNAUTHORIZED", "The API key is missing or wrong."
    NOT_FOUND = "NOT_FOUND", "The server does not know the path or the model."
    HTTP_STATUS = "HTTP_STATUS", "The server refused a request."
    SERVER_ERROR = "SERVER_ERROR", "The server failed."
    UNEXPECTED_ANSWER = "UNEXPECTED_ANSWER", "The answer has not the form of this interface."
    REDIRECTED = "REDIRECTED", "The server points to another place, where nothing is sent."
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE", "An answer is larger than any that is needed."
    NOT_METRICS = "NOT_METRICS", "The metrics URL answers something else than Prometheus text."
    HALTED = "HALTED", "A request was not sent, because the run was stopped."
    MODEL_NOT_SERVED = "MODEL_NOT_SERVED", "The server does not serve the model."
    MODEL_LENGTH = "MODEL_LENGTH", "The longest request does not fit into the model's context."
    IMAGES_NOT_TAKEN = "IMAGES_NOT_TAKEN", "The server does not take requests with images."
    ENGINE_COUNT = "ENGINE_COUNT", "The server has another number of engines than there are ranks."
    ENGINE_LABEL_MAP = "ENGINE_LABEL_MAP", "Requests to a rank are counted by another engine than the configured one."
    RANK_NOT_REACHED = "RANK_NOT_REACHED", "Two ranks are counted by one engine."
    COUNTERS_DO_NOT_MOVE = "COUNTERS_DO_NOT_MOVE", "A request was answered, and no counter moved."
    COUNTER_UNIT = "COUNTER_UNIT", "A counter moved by another number than a request has tokens."
    REQUEST_FIELD = "REQUEST_FIELD", "A generation argument makes the theory impossible."
    TOKENIZER_BOS = "TOKENIZER_BOS", "A special token begins the prompt on one side only."
    TOKENIZER_DIFFERS = "TOKENIZER_DIFFERS", "The server encodes the prompts otherwise than the data set's tokenizer."
    TOKEN_COUNT_DIFFERS = "TOKEN_COUNT_DIFFERS", "The server counts other numbers of tokens in the warm-up prompts."
    NO_RESET_URL = "NO_RESET_URL", "The cache must be emptied, and no reset URL is configured."
    RESET_NOT_OFFERED = "RESET_NOT_OFFERED", "The server offers no reset of its cache."
    RESET_REFUSED = "RESET_REFUSED", "The server refused to reset its cache, because requests are running."
    RESET_FAILED = "RESET_FAILED", "The reset failed."
    RESET_INEFFECTIVE = "RESET_INEFFECTIVE", "The reset was answered, and the cache still hits."
    NOT_WARM = "NOT_WARM", "After the warm-up a rank does not hold all canonical prefixes."
    WARMUP_NOT_COUNTED = "WARMUP_NOT_COUNTED", "The counters did not rise as the warm-up requires."

    # Snapshots of counters
    SNAPSHOT_COUNT = "SNAPSHOT_COUNT", "Not the same number of texts was given for both snapshots."
    SNAPSHOT_EMPTY = "SNAPSHOT_EMPTY", "The text is empty."
    SNAPSHOT_ENCODING = "SNAPSHOT_ENCODING", "The text is not UTF-8."
    SNAPSHOT_NOT_METRICS = "SNAPSHOT_NOT_METRICS", "The text is no Prometheus text."
    SNAPSHOT_LINE = "SNAPSHOT_LINE", "A line is no sample."
    SNAPSHOT_TRUNCATED = "SNAPSHOT_TRUNCATED", "The text is cut off."
    SNAPSHOT_VALUE = "SNAPSHOT_VALUE", "A counter is no whole number of tokens."
    SNAPSHOT_DUPLICATE_SERIES = "SNAPSHOT_DUPLICATE_SERIES", "A series has two values."
    SNAPSHOT_NO_ENGINE_METRICS = "SNAPSHOT_NO_ENGINE_METRICS", "No metric of an inference engine is shown."
    SNAPSHOT_NO_COUNTERS = "SNAPSHOT_NO_COUNTERS", "No counters of the prefix cache are shown."
    SNAPSHOT_NO_HITS = "SNAPSHOT_NO_HITS", "Queries are counted, hits are not."
    SNAPSHOT_GAUGE_ONLY = "SNAPSHOT_GAUGE_ONLY", "Only a momentary gauge of the hit rate is shown."
    SNAPSHOT_OTHER_ENGINE = "SNAPSHOT_OTHER_ENGINE", "The text is of another engine than the configured one."
    SNAPSHOT_SEVERAL_MODELS = "SNAPSHOT_SEVERAL_MODELS", "Counters of several models are shown."
    SNAPSHOT_EXTRA_ENGINES = "SNAPSHOT_EXTRA_ENGINES", "More engines are shown than there are ranks."
    SNAPSHOT_ENGINE_LABELS = "SNAPSHOT_ENGINE_LABELS", "The engine labels do not tell the ranks."
    SNAPSHOT_MISSING_RANKS = "SNAPSHOT_MISSING_RANKS", "Ranks are missing."
    SNAPSHOT_DIFFERENT_SERVERS = "SNAPSHOT_DIFFERENT_SERVERS", "The two snapshots are of different servers."
    SNAPSHOT_DIFFERENT_ENGINES = "SNAPSHOT_DIFFERENT_ENGINES", "The two snapshots show different engines."
    SNAPSHOT_RESTART = "SNAPSHOT_RESTART", "The server was restarted between the snapshots."
    SNAPSHOT_COUNTER_FELL = "SNAPSHOT_COUNTER_FELL", "A counter fell between the snapshots."
    SNAPSHOT_SERIES_CHANGED = "SNAPSHOT_SERIES_CHANGED", "A series went away, or one of another process appeared."
    SNAPSHOT_ROLES = "SNAPSHOT_ROLES", "The text does not tell which side of a deployment counts the prompts."
    SNAPSHOT_HITS_ABOVE_QUERIES = "SNAPSHOT_HITS_ABOVE_QUERIES", "More hits than queries were counted."
    SNAPSHOT_NO_DATA = "SNAPSHOT_NO_DATA", "Nothing was counted between the snapshots."
    SNAPSHOT_BLOCKS = "SNAPSHOT_BLOCKS", "The server counts blocks of a size that it does not show."
    SNAPSHOT_UNIT = "SNAPSHOT_UNIT", "The text does not tell whether blocks or tokens are counted."

    # Findings of the diagnosis
    WRONG_BLOCK_SIZE = "WRONG_BLOCK_SIZE", "The server caches in blocks of another size."
    SERVER_BLOCK_SIZE_MULTIPLE = (
        "SERVER_BLOCK_SIZE_MULTIPLE",
        "The server's blocks are a multiple of the configured size.",
    )
    PREFIX_CACHING_OFF = "PREFIX_CACHING_OFF", "The server says that prefix caching is off."
    HYBRID_MODEL = "HYBRID_MODEL", "The model caches its layers in different ways, so hits come in larger steps."
    SPECULATIVE_DECODING = (
        "SPECULATIVE_DECODING",
        "Every request with hits lacks one block, as with speculative decoding.",
    )
    RANK_HEADER_IGNORED = "RANK_HEADER_IGNORED", "The server does not follow the rank that requests ask for."
    ENGINE_MAP_WRONG = "ENGINE_MAP_WRONG", "The engine labels belong to other ranks."
    FREE_ROUTING = "FREE_ROUTING", "The server or a router chose the ranks; what that was worth."
    HISTORY_REENCODED = (
        "HISTORY_REENCODED",
        "Histories that were sent as messages hit less than the server had computed of them.",
    )
    REQUESTS_MISSING = "REQUESTS_MISSING", "Fewer prompt tokens were counted than planned."
    AISBENCH_WARMUPS = "AISBENCH_WARMUPS", "AISBench sent warm-up requests of its own."
    RETRIES = "RETRIES", "Requests were sent more than once."
    LOAD_GENERATOR_LIMIT = "LOAD_GENERATOR_LIMIT", "A sending process, not the server, may have limited the load."
    REQUESTS_NOT_COMPARED = (
        "REQUESTS_NOT_COMPARED",
        "Several processes sent, and single requests could not be compared with the plan.",
    )
    FOREIGN_TRAFFIC = "FOREIGN_TRAFFIC", "Others used the server during the run."
    TOKENS_ADDED = "TOKENS_ADDED", "The server counts more tokens in each prompt than the plan."
    TOKENS_MISSING = "TOKENS_MISSING", "The server counts fewer tokens in each prompt than the plan."
    CACHE_BYPASSED = "CACHE_BYPASSED", "Prompt tokens were processed without asking the cache."
    PREEMPTIONS = "PREEMPTIONS", "The server preempted requests because its cache was full."
    RESET_PARTIAL = "RESET_PARTIAL", "After the reset some ranks still hit."
    RESET_IGNORED = "RESET_IGNORED", "After the reset the cache still hits."
    EXTERNAL_KV_TIER = "EXTERNAL_KV_TIER", "A tier outside of the device served prompt tokens."
    BLOCK_COUNTERS = "BLOCK_COUNTERS", "The server counts blocks, not tokens."
    NO_HIT_SERIES = "NO_HIT_SERIES", "The counter of hits is not shown."
    SERVER_BUSY = "SERVER_BUSY", "Requests were under way when a snapshot was taken."
    SERVER_ASLEEP = "SERVER_ASLEEP", "The server was asleep when a snapshot was taken."
    COUNTERS_DISAGREE = "COUNTERS_DISAGREE", "Two counters of the server disagree."
    CACHE_NOT_EMPTY = "CACHE_NOT_EMPTY", "More tokens were hit than theory says."
    CACHE_INEFFECTIVE = "CACHE_INEFFECTIVE", "A repeated prompt does not hit."
    HITS_MISSING = "HITS_MISSING", "Fewer tokens were hit than theory says, and nothing shows why."
    NO_LOG_STATS = "NO_LOG_STATS", "The server shows no metrics of its engine."
    GAUGE_ONLY = "GAUGE_ONLY", "The server shows only a momentary gauge."
    RANKS_MISSING = "RANKS_MISSING", "Ranks are missing in a snapshot."
    SERVER_RESTARTED = "SERVER_RESTARTED", "The server was restarted during the run."
    COUNTERS_FELL = "COUNTERS_FELL", "Counters fell during the run."
    SERIES_CHANGED = "SERIES_CHANGED", "A worker was started, stopped or replaced during the run."
    ROLES_MIXED = "ROLES_MIXED", "The counters of several sides of a deployment cannot be told apart."
    HITS_ABOVE_QUERIES = "HITS_ABOVE_QUERIES", "The snapshots were taken in the middle of requests."
    NO_TRAFFIC = "NO_TRAFFIC", "Nothing was counted during the run."
    NO_THEORY = "NO_THEORY", "Hits were counted, and there is no theory to compare them with."

    # AISBench
    AISBENCH_NOT_INSTALLED = "AISBENCH_NOT_INSTALLED", "AISBench is not installed in this Python."
    AISBENCH_PATH_HAS_SPACE = "AISBENCH_PATH_HAS_SPACE", "AISBench or Python lies in a directory with a space."
    AISBENCH_NO_SCRATCH_DIRECTORY = "AISBENCH_NO_SCRATCH_DIRECTORY", "No temporary directory can be used."
    AISBENCH_ARGUMENT_REFUSED = "AISBENCH_ARGUMENT_REFUSED", "An argument would change what is sent."
    AISBENCH_TEMPLATE_NOT_FOUND = "AISBENCH_TEMPLATE_NOT_FOUND", "The template does not exist."
    AISBENCH_TEMPLATE_INVALID = "AISBENCH_TEMPLATE_INVALID", "The template cannot be used."
    AISBENCH_TEMPLATE_LEAKS_KEY = (
        "AISBENCH_TEMPLATE_LEAKS_KEY",
        "The template writes the API key into the configuration.",
    )
    AISBENCH_TOKENIZER_NOT_FOUND = "AISBENCH_TOKENIZER_NOT_FOUND", "AISBench needs a local tokenizer."
    AISBENCH_FAILED = "AISBENCH_FAILED", "AISBench ended with an error or by a signal."
    AISBENCH_TIMEOUT = "AISBENCH_TIMEOUT", "AISBench did not end in time."
    AISBENCH_STALLED = "AISBENCH_STALLED", "Nothing arrived for a long time."
    RAY_UNUSABLE = "RAY_UNUSABLE", "Ray is not installed, or its cluster cannot be reached or has too few cores."
    LOAD_GENERATOR_LOST = "LOAD_GENERATOR_LOST", "A load generator ended, or was lost, in the middle of the run."
    AISBENCH_INCOMPLETE = "AISBENCH_INCOMPLETE", "Requests or files of AISBench are missing."
    AISBENCH_REQUESTS_FAILED = "AISBENCH_REQUESTS_FAILED", "Requests failed."
    AISBENCH_OUTPUT_LENGTH = "AISBENCH_OUTPUT_LENGTH", "Answers do not have their planned length."
    AISBENCH_RESULTS_NOT_FOUND = "AISBENCH_RESULTS_NOT_FOUND", "The performance files of the run are gone."
    AISBENCH_RESULTS_DAMAGED = "AISBENCH_RESULTS_DAMAGED", "A performance file is not what AISBench writes."
    AISBENCH_USAGE_DAMAGED = "AISBENCH_USAGE_DAMAGED", "The record of requests cannot be read."
    RECORDS_DAMAGED = "RECORDS_DAMAGED", "The request records of a run are not what a run writes."
    RECORDS_FORMAT = "RECORDS_FORMAT", "Request records cannot be written in the format that a file name asks for."
    COMPLETION_NEEDS = "COMPLETION_NEEDS", "A package that makes a shell's completion is not installed."
    NOTHING_TO_COMPARE = "NOTHING_TO_COMPARE", "Two sweeps have no point in common."
    SWEEP_DAMAGED = "SWEEP_DAMAGED", "A file of a sweep is not what a sweep writes."
    SCENARIO_CHANGED = "SCENARIO_CHANGED", "The Scenario is not the one with which a sweep was begun."
    REPORT_NEEDS = "REPORT_NEEDS", "A package that a report in this form is made with is not installed."
    NO_RUN = "NO_RUN", "The analysis records no run."

    # Calculators
    IMPOSSIBLE_VALUE = "IMPOSSIBLE_VALUE", "A number cannot be used."
    MODEL_CONFIG = "MODEL_CONFIG", "The configuration of a model cannot be used."
    HEADS_AND_RANKS = "HEADS_AND_RANKS", "KV heads cannot be shared among the ranks."
    NO_CACHE = "NO_CACHE", "No layer of the model keeps anything per token."
    NO_FREE_BLOCK = "NO_FREE_BLOCK", "There are not enough free blocks."
    NO_SUCH_TOKEN = "NO_SUCH_TOKEN", "The request has no such token."
    NO_SUCH_RANK = "NO_SUCH_RANK", "A request or a warm-up prompt names a rank that is not there."
    NO_CAPACITY_CURVE = "NO_CAPACITY_CURVE", "One replay cannot answer for all sizes."
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE", "A request does not fit into the cache."
    NAME_TWICE = "NAME_TWICE", "Two requests have one name."

    # Embedded server and demonstration
    INVALID_SERVER_OPTION = "INVALID_SERVER_OPTION", "An option of the embedded server cannot be used."
    SERVER_EXTRA_MISSING = "SERVER_EXTRA_MISSING", "Packages of the embedded server are not installed."
    SERVER_NOT_STARTED = "SERVER_NOT_STARTED", "The embedded server did not start in time."
    ADDRESS_NOT_AVAILABLE = "ADDRESS_NOT_AVAILABLE", "The embedded server cannot listen at the address."
    API_KEY_NOT_SET = "API_KEY_NOT_SET", "The variable that holds the API key is not set."
    DEMO_NEEDS_TOKENIZER = "DEMO_NEEDS_TOKENIZER", "The package with the demonstration's tokenizer is not installed."
    DEMO_SERVER_FAILED = "DEMO_SERVER_FAILED", "The demonstration's server did not start."
    DEMO_STEP_FAILED = "DEMO_STEP_FAILED", "A step of the demonstration failed."
    THEORY_IS_NOT_COUNTER = "THEORY_IS_NOT_COUNTER", "In the demonstration the counters differ from theory."

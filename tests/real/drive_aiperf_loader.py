"""Runs in AIPerf's own Python: prints what its loader makes of a file of conversations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aiperf.dataset.loader.multi_turn import MultiTurnDatasetLoader

path = Path(sys.argv[1])
with path.open(encoding="utf-8") as lines:
    first = json.loads(next(lines))
loader = MultiTurnDatasetLoader(filename=str(path))
conversations = loader.convert_to_conversations(loader.load_dataset())
found = [
    {
        "session": conversation.session_id,
        "system": conversation.system_message,
        "turns": [
            [[text for each in turn.texts for text in each.contents], turn.max_tokens, turn.delay, turn.extra_body]
            for turn in conversation.turns
        ],
    }
    for conversation in conversations
]
print(json.dumps({"can_load": MultiTurnDatasetLoader.can_load(first), "conversations": found}))

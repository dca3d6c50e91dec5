"""A conversation, streamed.

python chat.py [MODEL] [MESSAGE]...

Without a model it is the built-in one, which was trained for stories and not for conversations.
"""

from __future__ import annotations

import sys

import fulmen


def main(arguments: list[str]) -> None:
    path = arguments[0] if arguments else None
    model = fulmen.Model.load(path)
    # The built-in model has no chat template of its own.
    template = None if model.tokenizer.has_chat_template else "chatml"
    messages = [{"role": "system", "content": "You answer in one sentence."}]
    for question in arguments[1:] or ["Tell me about a little dog.", "And then?"]:
        messages.append({"role": "user", "content": question})
        print(f"> {question}")
        answer = ""
        for chunk in model.chat(messages, template=template, max_tokens=60, stream=True):
            piece = chunk["choices"][0]["delta"].get("content", "")
            print(piece, end="", flush=True)
            answer += piece
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main(sys.argv[1:])

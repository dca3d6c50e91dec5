"""Text of one prompt."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

import fulmen

PROMPT = "Once upon a time"


def test_text_is_a_string_that_knows_its_tokens(model: fulmen.Model) -> None:
    text = model.generate(PROMPT, max_tokens=12)
    assert isinstance(text, str) and text.startswith(", there was a")
    assert len(text.tokens) == 12
    assert model.tokenizer.decode(model.tokenizer.encode(PROMPT) + text.tokens) == PROMPT + text
    assert text.finish_reason == "length"
    assert text.prompt_tokens == len(model.tokenizer.encode(PROMPT, prompt=True))
    assert text.prefill_seconds > 0 and text.decode_seconds > 0 and text.tokens_per_second > 0
    assert text.parsed is None and text.stop is None and text.logprobs == []


def test_devices_agree(model: fulmen.Model, cpu_model: fulmen.Model) -> None:
    assert model.generate(PROMPT, max_tokens=24) == cpu_model.generate(PROMPT, max_tokens=24)


def test_a_story_ends_by_itself(model: fulmen.Model) -> None:
    text = model.generate(PROMPT)
    assert text.finish_reason == "stop"
    assert text.tokens[-1] in model.tokenizer.end_token_ids


def test_ignore_end_goes_on(model: fulmen.Model) -> None:
    ended = model.generate(PROMPT)
    more = model.generate(PROMPT, ignore_end=True, max_tokens=len(ended.tokens) + 5)
    assert len(more.tokens) == len(ended.tokens) + 5


def test_pieces_are_the_text(model: fulmen.Model) -> None:
    whole = model.generate(PROMPT, max_tokens=20)
    stream = model.generate(PROMPT, max_tokens=20, stream=True)
    pieces = list(stream)
    assert len(pieces) > 5 and "".join(pieces) == whole == stream.result
    assert stream.result.tokens == whole.tokens
    assert list(stream) == [], "an ended stream stays ended"


def test_the_result_of_a_stream_waits_for_it(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, max_tokens=20, stream=True)
    first = next(stream)
    assert stream.result.startswith(first) and len(stream.result.tokens) == 20


def test_async_for(model: fulmen.Model) -> None:
    async def collect() -> str:
        return "".join([piece async for piece in model.generate(PROMPT, max_tokens=10, stream=True)])

    assert asyncio.run(collect()) == model.generate(PROMPT, max_tokens=10)


def test_generate_async_of_several_at_once(cpu_model: fulmen.Model) -> None:
    async def both() -> list[fulmen.Text]:
        prompts = [PROMPT, "One day", "Lily"]
        return await asyncio.gather(*(cpu_model.generate_async(p, max_tokens=8) for p in prompts))

    texts = asyncio.run(both())
    assert texts[0] == cpu_model.generate(PROMPT, max_tokens=8)
    assert texts[1] == cpu_model.generate("One day", max_tokens=8)


def test_an_async_task_that_is_cancelled_cancels_the_stream(cpu_model: fulmen.Model) -> None:
    async def run() -> fulmen.Stream:
        stream = cpu_model.generate(PROMPT, stream=True, ignore_end=True)

        async def consume() -> None:
            async for _ in stream:
                await asyncio.sleep(0)

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream.cancel()
        return stream

    stream = asyncio.run(run())
    assert stream.result.finish_reason in ("cancelled", "length")


def test_callback_gets_the_pieces(model: fulmen.Model) -> None:
    pieces: list[str] = []
    text = model.generate(PROMPT, max_tokens=10, on_piece=pieces.append)
    assert "".join(pieces) == text


def test_an_exception_of_the_callback_ends_the_call(cpu_model: fulmen.Model) -> None:
    def stop(piece: str) -> None:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        cpu_model.generate(PROMPT, on_piece=stop)
    assert cpu_model.generate(PROMPT, max_tokens=3), "the model goes on"


def test_tokens_as_prompt(model: fulmen.Model) -> None:
    tokens = model.tokenizer.encode(PROMPT, prompt=True)
    assert model.generate(tokens, max_tokens=6) == model.generate(PROMPT, max_tokens=6)
    assert model.generate(tuple(tokens), max_tokens=6) == model.generate(PROMPT, max_tokens=6)


@pytest.mark.parametrize("stop", ["girl", ["xyz", "girl"], ("girl",)])
def test_stop_strings_end_the_text_and_are_not_part_of_it(cpu_model: fulmen.Model, stop: str) -> None:
    text = cpu_model.generate(PROMPT, stop=stop)
    assert "girl" not in text and text.stop == "girl" and text.finish_reason == "stop"
    assert cpu_model.generate(PROMPT, max_tokens=40).startswith(text + "girl")


def test_a_seed_repeats_and_others_differ(model: fulmen.Model) -> None:
    draw = [model.generate(PROMPT, max_tokens=16, temperature=1.2, seed=seed) for seed in (1, 1, 2, 3)]
    assert draw[0] == draw[1]
    assert len(set(draw)) > 1


def test_without_a_seed_draws_differ(cpu_model: fulmen.Model) -> None:
    assert len({cpu_model.generate(PROMPT, max_tokens=16, temperature=1.5) for _ in range(4)}) > 1


def test_top_k_of_one_is_greedy(model: fulmen.Model) -> None:
    greedy = model.generate(PROMPT, max_tokens=10)
    assert model.generate(PROMPT, max_tokens=10, temperature=2.0, top_k=1, seed=5) == greedy


def test_penalties_change_the_text(cpu_model: fulmen.Model) -> None:
    plain = cpu_model.generate(PROMPT, max_tokens=60)
    assert cpu_model.generate(PROMPT, max_tokens=60, repeat_penalty=1.8) != plain


def test_the_same_call_gives_the_same_text(model: fulmen.Model) -> None:
    texts = {model.generate(PROMPT, max_tokens=30) for _ in range(3)}
    model.generate("Something else entirely", max_tokens=5)
    texts.add(model.generate(PROMPT, max_tokens=30))
    assert len(texts) == 1


def test_logprobs(model: fulmen.Model) -> None:
    text = model.generate(PROMPT, max_tokens=5, logprobs=3)
    assert [entry.token for entry in text.logprobs] == text.tokens
    for entry in text.logprobs:
        assert entry.logprob <= 0 and len(entry.top) == 3
        assert entry.top[0][0] == entry.token, "greedy takes the most likely token"
        assert math.isclose(entry.top[0][1], entry.logprob, abs_tol=1e-4)


def test_several_threads_use_one_model(cpu_model: fulmen.Model) -> None:
    prompts = [PROMPT, "One day", "The dog", "Lily had"]
    expected = [cpu_model.generate(prompt, max_tokens=10) for prompt in prompts]
    texts: dict[int, str] = {}

    def work(at: int) -> None:
        texts[at] = cpu_model.generate(prompts[at % 4], max_tokens=10)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [texts[at] for at in range(8)] == expected * 2


def test_a_stream_moves_to_another_thread(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, max_tokens=10, stream=True)
    pieces: list[str] = [next(stream)]
    thread = threading.Thread(target=lambda: pieces.extend(stream))
    thread.start()
    thread.join()
    assert "".join(pieces) == cpu_model.generate(PROMPT, max_tokens=10)


def test_threads_share_the_pieces_of_a_stream(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, max_tokens=60, ignore_end=True, stream=True)
    taken: list[list[str]] = [[], [], []]
    threads = [threading.Thread(target=pieces.extend, args=(stream,)) for pieces in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = cpu_model.generate(PROMPT, max_tokens=60, ignore_end=True, stream=True)
    assert sorted(sum(taken, [])) == sorted(alone), "each piece goes to one of them"
    assert stream.result == alone.result


def test_cancel_from_another_thread(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, stream=True, ignore_end=True)
    next(stream)
    threading.Timer(0.05, stream.cancel).start()
    rest = list(stream)
    assert stream.result.finish_reason in ("cancelled", "length")
    assert len(rest) < 2000
    assert cpu_model.generate(PROMPT, max_tokens=4) == ", there was a", "the next call is not cancelled"


def test_a_late_cancel_does_not_reach_the_next_call(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, max_tokens=3, stream=True)
    assert stream.result.finish_reason == "length"
    stream.cancel()
    assert cpu_model.generate(PROMPT, max_tokens=12).finish_reason == "length"


def test_a_stream_as_context(cpu_model: fulmen.Model) -> None:
    with cpu_model.generate(PROMPT, stream=True, ignore_end=True) as stream:
        next(stream)
    assert stream.result.finish_reason in ("cancelled", "length")


def test_a_dropped_stream_is_cancelled(cpu_model: fulmen.Model) -> None:
    for _ in range(5):
        next(cpu_model.generate(PROMPT, stream=True, ignore_end=True))
    assert cpu_model.generate(PROMPT, max_tokens=3)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"top_p": math.nan}, ValueError, "top_p"),
        ({"min_p": math.nan}, ValueError, "min_p"),
        ({"repeat_penalty": 0.0}, ValueError, "repetition penalty"),
        ({"frequency_penalty": math.inf}, ValueError, "frequency penalty"),
        ({"max_tokens": -1}, OverflowError, None),
        ({"max_tokens": 10**40}, OverflowError, None),
        ({"top_k": 2**32}, OverflowError, None),
        ({"seed": -1}, OverflowError, None),
        ({"max_tokens": "many"}, TypeError, None),
        ({"temperature": "hot"}, TypeError, None),
        ({"stop": [1]}, TypeError, None),
        ({"stop": [""]}, ValueError, "stop"),
        ({"colour": "red"}, TypeError, "colour"),
        ({"regex": "a", "grammar": 'start: "a"'}, ValueError, "at most one"),
        ({"logprobs": 999}, OverflowError, None),
    ],
)
def test_wrong_options_are_exceptions(
    cpu_model: fulmen.Model, options: dict[str, object], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        cpu_model.generate(PROMPT, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([], fulmen.ArgumentError, "the prompt is empty"),
        ([5000000], fulmen.ArgumentError, "outside the vocabulary"),
        ([2**40], OverflowError, None),
        ([-1], OverflowError, None),
        (["a", "b"], fulmen.ArgumentError, "generate_many"),
        (None, TypeError, None),
        (5, TypeError, None),
        ("\ud800", UnicodeEncodeError, "surrogates"),
        ("word " * 20000, fulmen.ContextError, "does not fit into the context"),
    ],
)
def test_wrong_prompts_are_exceptions(
    cpu_model: fulmen.Model, prompt: object, error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        cpu_model.generate(prompt)  # type: ignore[call-overload]
    assert cpu_model.generate(PROMPT, max_tokens=2)


def test_no_tokens_are_an_empty_text(cpu_model: fulmen.Model) -> None:
    text = cpu_model.generate(PROMPT, max_tokens=0)
    assert text == "" and text.finish_reason == "length"


def test_no_stop_strings(cpu_model: fulmen.Model) -> None:
    assert cpu_model.generate(PROMPT, max_tokens=4, stop=None) == ", there was a"


def test_a_token_cancels_a_call_of_another_thread(model: fulmen.Model) -> None:
    cancel = fulmen.CancelToken()
    pieces: list[str] = []

    def on_piece(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            thread = threading.Thread(target=cancel.cancel)
            thread.start()
            thread.join()

    text = model.generate(PROMPT, ignore_end=True, cancel=cancel, on_piece=on_piece)
    assert cancel.cancelled and text.finish_reason in ("cancelled", "length")
    assert text.startswith("".join(pieces[:3]))
    assert model.generate(PROMPT, max_tokens=4).finish_reason == "length", "the model goes on"


def test_a_token_that_was_cancelled_ends_calls_at_once(cpu_model: fulmen.Model) -> None:
    cancel = fulmen.CancelToken()
    assert not cancel.cancelled and repr(cancel) == "<fulmen.CancelToken>"
    cancel.cancel()
    assert cpu_model.generate(PROMPT, cancel=cancel).finish_reason == "cancelled"
    texts = cpu_model.generate_many([PROMPT] * 2, cancel=cancel)
    assert [text.finish_reason for text in texts] == ["cancelled"] * 2
    for call in (
        lambda: cpu_model.embed(["a", "b"], cancel=cancel),
        lambda: cpu_model.embed("a", cancel=cancel),
        lambda: cpu_model.logits(PROMPT, cancel=cancel),
        lambda: cpu_model.score(PROMPT, cancel=cancel),
        lambda: cpu_model.perplexity(PROMPT * 10, window=16, cancel=cancel),
        lambda: fulmen.Model.load(device="cpu", cancel=cancel),
    ):
        with pytest.raises(fulmen.CancelledError):
            call()


def test_a_token_ends_a_long_call(cpu_model: fulmen.Model) -> None:
    cancel = fulmen.CancelToken()

    def progress(done: int, total: int) -> None:
        if done < total:
            cancel.cancel()

    with pytest.raises(fulmen.CancelledError):
        cpu_model.perplexity("Once upon a time " * 400, window=32, progress=progress, cancel=cancel)

//! `/v1/completions` and `/v1/embeddings`.

use fulmen_engine::SchedulerConfig;
use fulmen_engine::mock::MockModel;
use serde_json::{Value, json};

use crate::server::{TOKENIZER, TestModel, scripted, start};
use fulmen_model::tokenizer::Special;

const PATH: &str = "/v1/completions";

#[test]
fn texts_and_tokens_are_continued() {
    let server = start(scripted(&[" there was a bird"]));
    let text = json!({ "prompt": "Once", "max_tokens": 100, "seed": 0 });
    let answer = server.ok(PATH, &text);
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], " there was a bird");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let tokens = TOKENIZER.encode_prompt("Once", Special::AsText);
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.len());
    let by_tokens = server.ok(PATH, &json!({ "prompt": tokens, "max_tokens": 100, "seed": 0 }));
    assert_eq!(by_tokens["choices"], answer["choices"]);
    let several =
        server.ok(PATH, &json!({ "prompt": ["Once", "Twice"], "max_tokens": 100, "seed": 0, "n": 2 }));
    assert_eq!(several["choices"].as_array().unwrap().len(), 4);
    assert_eq!(several["choices"][3]["index"], 3);
    let lists = server.ok(PATH, &json!({ "prompt": [tokens, tokens], "seed": 0 }));
    assert_eq!(lists["choices"].as_array().unwrap().len(), 2);
    assert_eq!(lists["usage"]["prompt_tokens"], 2 * tokens.len());
}

#[test]
fn sixteen_tokens_are_the_default() {
    let server = start(TestModel::default());
    let answer = server.ok(PATH, &json!({ "prompt": "Once", "ignore_eos": true }));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn the_prompt_is_echoed() {
    let server = start(scripted(&[" bird"]));
    let body = json!({ "prompt": "A little", "echo": true, "seed": 0 });
    assert_eq!(server.ok(PATH, &body)["choices"][0]["text"], "A little bird");
    let only = json!({ "prompt": "A little", "echo": true, "max_tokens": 0 });
    let answer = server.ok(PATH, &only);
    assert_eq!(answer["choices"][0]["text"], "A little");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = server.post(PATH, &streamed).chunks();
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "A little bird");
}

#[test]
fn a_prompt_alone_is_echoed_as_a_stream_and_checked() {
    let server = start(scripted(&[" bird"]));
    let body = json!({
        "prompt": ["A little", "A big"], "echo": true, "max_tokens": 0, "n": 2, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let chunks = server.post(PATH, &body).chunks();
    let mut texts = vec![String::new(); 4];
    let mut ends = vec![0; 4];
    for chunk in &chunks[..chunks.len() - 1] {
        let choice = &chunk["choices"][0];
        let at = choice["index"].as_u64().unwrap() as usize;
        texts[at] += choice["text"].as_str().unwrap();
        ends[at] += usize::from(choice["finish_reason"] == "length");
    }
    assert_eq!(texts, ["A little", "A little", "A big", "A big"]);
    assert_eq!(ends, [1; 4]);
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 0);
    let tokens = |text| TOKENIZER.encode_prompt(text, Special::AsText).len();
    assert_eq!(usage["prompt_tokens"], tokens("A little") + tokens("A big"));
    // As any prompt, it must fit into the context.
    for stream in [false, true] {
        let long = json!({ "prompt": vec![5; 5000], "echo": true, "max_tokens": 0, "stream": stream });
        let reply = server.post(PATH, &long);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (400, &json!("context_length_exceeded")),
            "{}",
            reply.text()
        );
    }
}

#[test]
fn logprobs_have_offsets() {
    let server = start(scripted(&["one two"]));
    let answer = server.ok(PATH, &json!({ "prompt": "x", "logprobs": 1, "seed": 0 }));
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), logprobs["token_logprobs"].as_array().unwrap().len());
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 1);
}

/// The logprobs of a choice: tokens, their log-probabilities, the most likely ones, offsets.
fn logprobs_of(choice: &Value) -> [Vec<Value>; 4] {
    ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
        .map(|name| choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("{choice}")).clone())
}

#[test]
fn an_echoed_prompt_has_log_probabilities() {
    let server = start(scripted(&[" bird"]));
    let text = "A little hé cat, and another one";
    let prompt = TOKENIZER.encode_prompt(text, Special::AsText);
    let body = json!({ "prompt": text, "echo": true, "logprobs": 2, "max_tokens": 100, "seed": 0 });
    let answer = server.ok(PATH, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], format!("{text} bird"));
    let [tokens, values, top, offsets] = logprobs_of(choice);
    let bird = TOKENIZER.encode(" bird", Special::AsText).len();
    // Also the token that ends the text: whoever scores prompts counts tokens from the end.
    for list in [&tokens, &values, &top, &offsets] {
        assert_eq!(list.len(), prompt.len() + bird + 1, "{choice}");
    }
    assert!(values[0].is_null() && top[0].is_null(), "the first token follows nothing");
    for at in 1..prompt.len() {
        assert_eq!(values[at], json!(-0.25 * at as f64), "{choice}");
        assert_eq!(top[at].as_object().unwrap().len(), 2, "{choice}");
    }
    assert!(values[prompt.len()..].iter().all(|value| *value == json!(-0.5)), "{choice}");
    let characters = |text: &str| text.chars().count();
    assert_eq!((&offsets[0], &offsets[prompt.len()]), (&json!(0), &json!(characters(text))));
    let shown = |id: u32| String::from_utf8_lossy(TOKENIZER.token_bytes(id).unwrap()).into_owned();
    let whole: Vec<char> = text.chars().collect();
    for (at, &id) in prompt.iter().enumerate() {
        assert_eq!(tokens[at], shown(id));
        let offset = offsets[at].as_u64().unwrap() as usize;
        // The first word loses the space that the tokenizer adds; a token may be a part of a character.
        if offset > 1 && !shown(id).contains(char::REPLACEMENT_CHARACTER) {
            let rest: String = whole[offset..].iter().collect();
            assert!(rest.starts_with(&shown(id)), "{:?} at {offset} of {text:?}", shown(id));
        }
    }
    let by_tokens = json!({ "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 100, "seed": 0 });
    assert_eq!(server.ok(PATH, &by_tokens)["choices"], answer["choices"]);
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], usage["completion_tokens"].as_u64()),
        (&json!(prompt.len()), Some(bird as u64 + 1))
    );
    // Without echo, the prompt has none.
    let plain = server.ok(PATH, &json!({ "prompt": text, "logprobs": 2, "max_tokens": 100, "seed": 0 }));
    assert_eq!(logprobs_of(&plain["choices"][0])[0].len(), bird);
}

#[test]
fn a_prompt_is_scored_without_a_generated_token() {
    let server = start(scripted(&["", " bird"]));
    let prompts = ["A little", "A big house"];
    let lengths = prompts.map(|text| TOKENIZER.encode_prompt(text, Special::AsText).len());
    let mut body =
        json!({ "prompt": prompts, "echo": true, "logprobs": 0, "max_tokens": 0, "n": 2, "seed": 0 });
    let answer = server.ok(PATH, &body);
    for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&choice["text"], &choice["finish_reason"]),
            (&json!(prompts[index / 2]), &json!("length"))
        );
        let [tokens, values, top, _] = logprobs_of(choice);
        assert_eq!((tokens.len(), values.len(), top.len()), [lengths[index / 2]; 3].into());
        assert!(values[0].is_null() && values[1] == json!(-0.25) && top[1] == json!({}), "{choice}");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(answer["usage"]["prompt_tokens"], lengths[0] + lengths[1]);

    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let chunks = server.post(PATH, &body).chunks();
    let (last, chunks) = chunks.split_last().unwrap();
    assert_eq!(last["usage"], answer["usage"]);
    for index in 0..4 {
        let of_choice = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|c| c["index"] == index);
        let [scored, end] = of_choice.collect::<Vec<_>>()[..] else { panic!("{chunks:?}") };
        assert_eq!(scored["text"], answer["choices"][index]["text"]);
        assert_eq!(scored["logprobs"], answer["choices"][index]["logprobs"]);
        assert_eq!((&end["text"], &end["finish_reason"]), (&json!(""), &json!("length")));
    }
}

#[test]
fn an_echoed_prompt_with_log_probabilities_is_streamed() {
    let server = start(scripted(&[" there was a bird"]));
    let mut body = json!({ "prompt": "A little", "echo": true, "logprobs": 1, "max_tokens": 100, "seed": 0 });
    let whole = server.ok(PATH, &body)["choices"][0].clone();
    body["stream"] = json!(true);
    let chunks = server.post(PATH, &body).chunks();
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(whole["text"], text);
    let mut joined = [const { Vec::new() }; 4];
    for choice in choices.iter().filter(|choice| !choice["logprobs"].is_null()) {
        for (all, part) in joined.iter_mut().zip(logprobs_of(choice)) {
            all.extend(part);
        }
    }
    assert_eq!(joined, logprobs_of(&whole));
}

/// The log-probabilities of a model: those of the mock are a function of all tokens before.
#[test]
fn log_probabilities_of_prompts_are_those_of_the_model() {
    let server = start(TestModel::default());
    let prompt: Vec<u32> = (0..300).map(|at| 10 + at * 7 % 200).collect();
    let config = SchedulerConfig::new(TOKENIZER.vocab_size() as u32, 2048, 256);
    let expected = MockModel::new(&config).prompt_logprobs(&prompt, 9);
    let body = json!({ "prompt": prompt, "echo": true, "logprobs": 0, "max_tokens": 1, "seed": 9 });
    // The second time the prompt is in the prefix cache.
    for _ in 0..2 {
        let [_, values, ..] = logprobs_of(&server.ok(PATH, &body)["choices"][0]);
        let value = |value: &Value| value.as_f64().map(|value| value as f32);
        let values: Vec<Option<f32>> = values[..prompt.len()].iter().map(value).collect();
        assert_eq!(values, expected.iter().map(|token| token.logprob).collect::<Vec<_>>());
    }
}

#[test]
fn offsets_count_characters() {
    let server = start(scripted(&["Où es-tu, Zoë? Là, là"]));
    let answer = server.ok(PATH, &json!({ "prompt": "x", "logprobs": 0, "seed": 0, "max_tokens": 100 }));
    let text: Vec<char> = answer["choices"][0]["text"].as_str().unwrap().chars().collect();
    let logprobs = &answer["choices"][0]["logprobs"];
    let offsets = logprobs["text_offset"].as_array().unwrap();
    let mut compared = 0;
    for (token, offset) in logprobs["tokens"].as_array().unwrap().iter().zip(offsets).skip(1) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let rest: String = text[offset..].iter().collect();
        // A token may be a part of a character.
        if !token.contains(char::REPLACEMENT_CHARACTER) && offset > 12 {
            assert!(rest.starts_with(token), "{token:?} at {offset} of {text:?}");
            compared += 1;
        }
    }
    assert!(compared > 1, "{answer}");
}

#[test]
fn what_is_not_supported_is_refused() {
    let server = start(scripted(&["x"]));
    let cases = [
        (json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (json!({ "prompt": "x", "best_of": 3 }), "best_of"),
        (json!({ "prompt": "x", "echo": true, "logprobs": 100 }), "top_logprobs"),
        (json!({ "prompt": "x", "logprobs": 100 }), "top_logprobs"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": vec!["x"; 100] }), "prompt"),
        (json!({ "prompt": [99_999_999] }), "prompt"),
        (json!({ "prompt": [[1], [99_999_999]] }), "prompt"),
        (json!({ "prompt": { "text": "x" } }), "prompt"),
        (json!({ "prompt": "x", "max_tokens": 0 }), "max_tokens"),
    ];
    for (body, param) in cases {
        let reply = server.post(PATH, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"], param, "{body}: {}", reply.text());
    }
    assert_eq!(server.post(PATH, &json!({})).status, 400);
}

#[test]
fn embeddings_have_length_one() {
    let server = start(scripted(&["x"]));
    let answer = server.ok("/v1/embeddings", &json!({ "input": "bird", "model": "test" }));
    assert_eq!(
        answer["data"][0]["embedding"],
        json!([0.6, 0.8]).to_string().parse::<serde_json::Value>().unwrap()
    );
    assert_eq!(answer["object"], "list");
    let several = json!({ "input": ["a", "b"], "encoding_format": "base64" });
    let answer = server.ok("/v1/embeddings", &several);
    assert_eq!(answer["data"][1]["index"], 1);
    assert_eq!(answer["data"][1]["embedding"], "mpkZP83MTD8=");
    let failed = server.post("/v1/embeddings", &json!({ "input": vec![1; 13] }));
    assert_eq!(failed.status, 500, "{}", failed.text());
    let long = server.post("/v1/embeddings", &json!({ "input": vec![1; 5000] }));
    assert_eq!(long.status, 400, "{}", long.text());
    for body in [json!({ "input": [] }), json!({ "input": "" }), json!({ "input": "x", "dimensions": 2 })] {
        let reply = server.post("/v1/embeddings", &body);
        // A tokenizer that adds BOS makes a text of nothing.
        assert!(reply.status == 400 || body["input"] == "", "{body}: {}", reply.text());
    }
}
